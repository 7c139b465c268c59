//! Locks between processes of one host.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

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
