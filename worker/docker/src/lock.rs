//! Locks between processes of one host.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rollout_base::supervise;

/// The lock file of an image's build. Its modification time is the time of the image's last use.
pub(super) fn lock_path(locks: &Path, tag: &str) -> PathBuf {
    locks.join(format!("{}.lock", tag.rsplit(':').next().unwrap_or(tag)))
}

/// Records a use of an image.
pub(super) async fn touch(path: PathBuf) {
    supervise::blocking(move || touch_blocking(&path)).await;
}

fn touch_blocking(path: &Path) {
    if let Some(parent) = path.parent() {
        // If this fails, opening the file reports the reason.
        std::fs::create_dir_all(parent).ok();
    }
    let file = File::options().create(true).truncate(false).write(true).open(path);
    // Without the new time the image seems older than it is and may be built again.
    if let Err(error) = file.and_then(|file| file.set_modified(SystemTime::now())) {
        tracing::debug!(path = %path.display(), %error, "cannot record the use of an image");
    }
}

/// Takes the lock of the file at `path` unless another process holds it. The file is created if
/// absent and stays. Blocks.
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

/// Takes the lock of the file at `path`, which is created if absent and stays. Dropping the file
/// releases the lock. Cancel-safe.
///
/// # Errors
/// When the file cannot be created or locked.
pub(super) async fn exclusive(path: &Path) -> io::Result<File> {
    let mut pause = Duration::from_millis(10);
    loop {
        let path = path.to_owned();
        if let Some(file) = supervise::blocking(move || try_exclusive(&path)).await? {
            return Ok(file);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}
