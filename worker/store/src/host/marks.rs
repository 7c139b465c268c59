//! Marks of a worker directory: its lock and its owner file. A directory without them is not found when its
//! worker is dead, so work in it would be lost.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{LOCK, OWNER_FILE};

/// The marks that a directory had when its owner looked first.
#[derive(Debug, Clone, Default)]
pub struct DirectoryMarks {
    directory: PathBuf,
    /// Its lock, which its owner holds open: the number of the file stays, on any file system.
    lock: Option<FileIdentity>,
    has_owner: bool,
}

/// Device and number of a file.
type FileIdentity = (u64, u64);

impl DirectoryMarks {
    /// Those that a directory has now: none if it is not the directory of a worker. Blocks.
    pub fn of(directory: &Path) -> Self {
        let find = |name: &str| fs::symlink_metadata(directory.join(name)).ok();
        let (lock, has_owner) = (find(LOCK).as_ref().map(identity), find(OWNER_FILE).is_some());
        Self { directory: directory.to_owned(), lock, has_owner }
    }

    /// Checks that the directory still has them, and no other lock in the place of its own. Blocks.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if it has not; errors of the disk, which name no path.
    pub fn check(&self) -> io::Result<()> {
        if let Some(lock) = self.lock {
            self.check_file(LOCK, |meta| identity(meta) == lock)?;
        }
        if self.has_owner {
            self.check_file(OWNER_FILE, |_| true)?;
        }
        Ok(())
    }

    fn check_file(&self, name: &str, is_own: impl Fn(&Metadata) -> bool) -> io::Result<()> {
        let is_there = match fs::symlink_metadata(self.directory.join(name)) {
            Ok(meta) => is_own(&meta),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        let missing = || format!("its file {name} was removed or replaced");
        is_there.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, missing()))
    }
}

fn identity(meta: &Metadata) -> FileIdentity {
    (meta.dev(), meta.ino())
}

#[cfg(test)]
mod tests {
    use super::super::WorkerDir;
    use super::*;

    #[test]
    fn worker_dir_made_again_or_in_part_has_not_the_marks_of_its_owner() {
        let base = tempfile::tempdir().expect("a directory");
        let dir = WorkerDir::create(base.path()).expect("created");
        let marks = DirectoryMarks::of(dir.path());
        marks.check().expect("they are there");
        let aside = base.path().join("aside");
        fs::rename(dir.path(), &aside).expect("moved");
        assert!(marks.check().is_err(), "it is gone");
        fs::create_dir(dir.path()).expect("made");
        fs::write(dir.path().join(LOCK), "").expect("written");
        fs::copy(aside.join(OWNER_FILE), dir.path().join(OWNER_FILE)).expect("copied");
        let error = marks.check().expect_err("the lock is another one");
        assert_eq!(error.to_string(), "its file lock was removed or replaced");
        fs::rename(dir.path(), base.path().join("other")).expect("moved");
        fs::rename(&aside, dir.path()).expect("moved back");
        marks.check().expect("they are back");
        fs::remove_file(dir.path().join(OWNER_FILE)).expect("removed");
        assert!(marks.check().is_err(), "one is gone");
    }

    #[test]
    fn directory_that_had_no_marks_misses_none() {
        let base = tempfile::tempdir().expect("a directory");
        DirectoryMarks::of(base.path()).check().expect("there is nothing to miss");
    }
}
