//! Directories that are made without those far above them: a directory that something moved or removed
//! must not reappear in part, empty and without the locks and marks that were in it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::supervise;

/// Most missing directories above one for the files of an execution that are made with it: those below
/// its scratch directory, and not that of its worker.
const ABOVE_IN_SCRATCH: u32 = 2;

/// Makes a directory for files of an execution, unless it exists, with what is missing of its scratch
/// directory.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the directory of the worker was moved or removed.
pub async fn make_in_scratch(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    supervise::blocking(move || make_in_scratch_blocking(&path)).await
}

/// The same. Blocks.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the directory of the worker was moved or removed.
pub fn make_in_scratch_blocking(path: &Path) -> io::Result<()> {
    make_directory(path, ABOVE_IN_SCRATCH)
}

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

    #[test]
    fn directory_of_execution_is_not_made_without_that_of_its_worker() {
        let root = tempfile::tempdir().expect("a directory");
        let worker = root.path().join("worker");
        let refused = make_in_scratch_blocking(&worker.join("scratch/1/command"));
        assert_eq!(refused.expect_err("no worker").kind(), ErrorKind::NotFound);
        assert!(!worker.exists(), "nothing is left");
        fs::create_dir(&worker).expect("made");
        for name in ["scratch/1/command", "scratch/1/harness/1", "scratch/1/steps/1/verifier"] {
            make_in_scratch_blocking(&worker.join(name)).expect("made");
            assert!(worker.join(name).is_dir(), "{name}");
        }
    }
}
