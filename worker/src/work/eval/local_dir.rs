//! Directories of this process: locking, measuring and removal.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rollout_base::fs_remove;
use rollout_base::shown_path::shown;
use rustix::fs::FlockOperation;

use super::EvalFilesError;

/// Name of the lock file in a directory that one process uses.
pub(super) const LOCK_FILE: &str = "lock";

/// A directory that belongs to this process while this lives.
#[derive(Debug)]
pub(super) struct CacheDirLock {
    file: File,
}

impl CacheDirLock {
    /// Creates the directory if it is missing, and locks it.
    pub(super) fn acquire(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join(LOCK_FILE);
        let file = File::options().create(true).truncate(false).write(true).open(&path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file }),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                let text = format!("cannot lock {}: another process uses it", shown(dir));
                Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for CacheDirLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that was just forked holds the file until it executes.
        let _closed_anyway = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Whether something is at a path, as far as can be told.
pub(super) async fn exists(path: &Path) -> bool {
    tokio::fs::try_exists(path).await.unwrap_or(false)
}

/// Removes a file or directory, if it exists.
pub(super) async fn remove_path(path: &Path) -> Result<(), EvalFilesError> {
    let removed = fs_remove::remove(path).await;
    removed.map_err(|source| EvalFilesError::disk_error("remove", path, source))
}

/// Bytes of the files below a directory, as far as they can be read.
pub(super) fn bytes_below(path: &Path) -> u64 {
    let (mut bytes, mut dirs): (u64, Vec<PathBuf>) = (0, vec![path.to_owned()]);
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        for entry in entries.flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => dirs.push(entry.path()),
                Ok(found) => bytes += found.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Marks a directory as just used. Best effort: it only decides the order of eviction.
pub(super) fn touch(path: &Path) {
    if let Ok(dir) = File::open(path) {
        let _untouched = dir.set_modified(std::time::SystemTime::now());
    }
}
