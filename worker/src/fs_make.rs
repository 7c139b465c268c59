//! Directories that are made without those far above them: a directory that something moved or removed
//! must not reappear in part, empty and without the locks and marks that were in it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes a directory, unless it exists, with at most `above` missing directories above it. Blocks.
///
/// # Errors
/// [`ErrorKind::NotFound`] if more are missing.
pub fn make_directory(path: &Path, above: u32) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound && above > 0 => {
            make_directory(path.parent().ok_or(error)?, above - 1)?;
            make_directory(path, 0)
        }
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_as_many_missing_directories_are_made_as_allowed() {
        let root = tempfile::tempdir().expect("a directory");
        let deep = root.path().join("a/b/c");
        let refused = make_directory(&deep, 1).expect_err("two are missing");
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        assert!(!root.path().join("a").exists(), "nothing is left");
        make_directory(&deep, 2).expect("made");
        make_directory(&deep, 0).expect("it exists");
        assert!(deep.is_dir());
    }
}
