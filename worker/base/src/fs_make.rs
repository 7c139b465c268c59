//! Directories that are made without those far above them: a directory that something moved or removed
//! must not reappear in part, empty and without the locks and marks that were in it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::supervise;

/// Directories above one in a scratch directory which may be missing. The directory of the worker is not
/// among them.
pub const SCRATCH_DEPTH: u32 = 2;

/// Makes a directory in a scratch directory, unless it exists.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the directory of the worker is missing, too.
pub async fn make_scratch_directory(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    supervise::blocking(move || make_directory(&path, SCRATCH_DEPTH)).await
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

/// Makes a directory at or below the scratch directory of an execution, unless it exists, with those above
/// it. Blocks.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the directory of the worker is missing, too; [`ErrorKind::InvalidInput`] if
/// `path` is not in `scratch`.
pub fn make_in_scratch(scratch: &Path, path: &Path) -> io::Result<()> {
    let below = path.strip_prefix(scratch).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    // Those between both, and the directory of all scratch directories.
    let above = u32::try_from(below.components().count()).unwrap_or(u32::MAX).saturating_add(1);
    make_directory(path, above)
}

/// Makes a directory below another one, unless it exists; that one is not made. Blocks.
///
/// # Errors
/// [`ErrorKind::NotFound`] if `root` is missing; [`ErrorKind::InvalidInput`] if `path` is not below it.
pub fn make_below(root: &Path, path: &Path) -> io::Result<()> {
    let below = path.strip_prefix(root).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let count = u32::try_from(below.components().count()).unwrap_or(u32::MAX);
    let above = count.checked_sub(1).ok_or(ErrorKind::InvalidInput)?;
    make_directory(path, above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_below_one_that_is_gone_is_not_made() {
        let parent = tempfile::tempdir().expect("a directory");
        let root = parent.path().join("run");
        let error = make_below(&root, &root.join("a/b")).expect_err("it is gone");
        assert_eq!((error.kind(), root.exists()), (ErrorKind::NotFound, false));
        fs::create_dir(&root).expect("made");
        for below in ["a/b/c", "a/b", "d"] {
            make_below(&root, &root.join(below)).expect("made");
            assert!(root.join(below).is_dir(), "{below}");
        }
        for elsewhere in [&root, &parent.path().join("other")] {
            let error = make_below(&root, elsewhere).expect_err("it is not below");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }

    #[tokio::test]
    async fn scratch_directories_do_not_make_that_of_the_worker() {
        let root = tempfile::tempdir().expect("a directory");
        let worker = root.path().join("workers/w-1");
        let artifacts = worker.join("scratch/exec/artifacts");
        fs::create_dir(root.path().join("workers")).expect("made");
        let refused = make_scratch_directory(&artifacts).await.expect_err("it is gone");
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        assert!(!worker.exists());
        fs::create_dir(&worker).expect("made");
        make_scratch_directory(&artifacts).await.expect("made");
        assert!(artifacts.is_dir());
    }

    #[test]
    fn directories_of_an_execution_are_made_unless_that_of_the_worker_is_gone() {
        let root = tempfile::tempdir().expect("a directory");
        let worker = root.path().join("w-1");
        let scratch = worker.join("scratch/exec");
        for below in ["", "command", "steps/first/logs/verifier"] {
            let path = scratch.join(below);
            let refused = make_in_scratch(&scratch, &path).expect_err("it is gone");
            assert_eq!((refused.kind(), worker.exists()), (ErrorKind::NotFound, false), "{below}");
            fs::create_dir(&worker).expect("made");
            make_in_scratch(&scratch, &path).expect("made");
            assert!(path.is_dir(), "{below}");
            fs::remove_dir_all(&worker).expect("removed");
        }
        let error = make_in_scratch(&scratch, &worker).expect_err("it is not in it");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

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
