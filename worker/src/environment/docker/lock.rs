//! Locks between processes of one host.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The file that locks the build of an image. Its time is that of the image's last use.
pub(super) fn lock_path(locks: &Path, tag: &str) -> PathBuf {
    locks.join(format!("{}.lock", tag.rsplit(':').next().unwrap_or(tag)))
}

/// Notes that an image is used.
pub(super) fn touch(path: &Path) {
    if let Some(parent) = path.parent() {
        // Opening the file says what is wrong with the directory.
        std::fs::create_dir_all(parent).ok();
    }
    let file = File::options().create(true).truncate(false).write(true).open(path);
    // Without the note the image seems older than it is, and may be built again.
    if let Err(error) = file.and_then(|file| file.set_modified(SystemTime::now())) {
        tracing::debug!(path = %path.display(), %error, "cannot note the use of an image");
    }
}

/// Takes the lock of the file at `path`, which is made when absent and stays, unless another has it.
pub(super) fn try_exclusive(path: &Path) -> io::Result<Option<File>> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes the lock of the file at `path`, which is made when absent and stays. The lock ends when
/// the file is dropped. Waiting can be given up at any time.
///
/// # Errors
/// When the file cannot be made or locked.
pub(super) async fn exclusive(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    let mut pause = Duration::from_millis(10);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(pause).await,
            Err(TryLockError::Error(error)) => return Err(error),
        }
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}
