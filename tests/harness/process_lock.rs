//! Named locks between all test processes of this user, for what two tests must not use at the same
//! time. The kernel releases a lock when its process ends, in whatever way.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::PathBuf;

/// A lock that this process holds until the value is dropped.
#[derive(Debug)]
pub struct ProcessLock {
    _file: File,
}

impl ProcessLock {
    /// Waits for a lock.
    ///
    /// # Panics
    /// When its file cannot be opened.
    pub fn acquire(name: &str) -> Self {
        let file = open(name);
        file.lock().expect("a lock");
        Self { _file: file }
    }

    /// Takes a lock unless it is held.
    ///
    /// # Panics
    /// When its file cannot be opened.
    pub fn try_acquire(name: &str) -> Option<Self> {
        let file = open(name);
        match file.try_lock() {
            Ok(()) => Some(Self { _file: file }),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(error)) => panic!("cannot lock {name}: {error}"),
        }
    }
}

fn open(name: &str) -> File {
    let path = directory().join(name);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Not below `TMPDIR`, of which every run of tests has its own.
fn directory() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let directory = PathBuf::from(format!("/tmp/rollout-test-locks-{user}"));
    fs::create_dir_all(&directory).expect("a directory of locks");
    directory
}
