//! The run lock: one process owns a run directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::file;
use crate::journal::Layout;

/// The lock on a run directory, held while this value lives. The operating system releases it when
/// the process dies, however it dies.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
    info: PathBuf,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("the run in {} is owned by {holder}", root.display())]
    Held {
        /// The run directory.
        root: PathBuf,
        /// Who, as far as is known.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// Who holds a run, for people: the lock itself is the file's.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    host: String,
    pid: u32,
    acquired_at: Timestamp,
}

impl RunLock {
    /// Takes the lock of an existing run directory.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn acquire(layout: &Layout) -> Result<Self, LockError> {
        let path = layout.lock();
        let failed = |source| LockError::Io { path: path.clone(), source };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let root = layout.root().to_owned();
                return Err(LockError::Held { root, holder: holder(layout) });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let me =
            Holder { host: host_name(), pid: std::process::id(), acquired_at: Timestamp::now() };
        let info = layout.lock_info();
        let text = serde_json::to_vec_pretty(&me).expect("plain text fields");
        file::replace(&info, &text).map_err(failed)?;
        Ok(Self { _file: file, info })
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Only information: a leftover file misleads nobody, since the lock itself is asked first.
        drop(std::fs::remove_file(&self.info));
    }
}

/// `host`, pid and time of the process that says it holds the lock.
fn holder(layout: &Layout) -> String {
    std::fs::read(layout.lock_info())
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Holder>(&bytes).ok())
        .map_or_else(
            || "another process".to_owned(),
            |holder| {
                let Holder { host, pid, acquired_at } = holder;
                format!("process {pid} on {host} since {acquired_at}")
            },
        )
}

/// Name of this host.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
