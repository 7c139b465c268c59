//! Checks of directories by a write: a small file is written, synced and removed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Name of the file. One that a killed process left is written over by the next check.
const CHECK_FILE: &str = ".write-check";

/// A whole block, so that a full disk is noticed.
const CONTENT: [u8; 4096] = [0; 4096];

/// Whether a directory takes writes. Blocks.
///
/// # Errors
/// The system's error, which names no path.
pub fn check_writes(directory: &Path) -> io::Result<()> {
    let path = directory.join(CHECK_FILE);
    let written = write(&path);
    let removed = match fs::remove_file(&path) {
        // Another check removed it; the first error says more if there is no such directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    written.and(removed)
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&CONTENT)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_of_a_directory_leaves_nothing_and_finds_a_removed_one() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("work");
        fs::create_dir(&directory).expect("made");
        check_writes(&directory).expect("it takes writes");
        assert_eq!(fs::read_dir(&directory).expect("readable").count(), 0);
        fs::remove_dir(&directory).expect("removed");
        let removed = check_writes(&directory).expect_err("it was removed");
        assert_eq!(removed.kind(), io::ErrorKind::NotFound);
        fs::write(&directory, "a file").expect("written");
        let replaced = check_writes(&directory).expect_err("a file is in its place");
        assert_eq!(replaced.kind(), io::ErrorKind::NotADirectory);
    }
}
