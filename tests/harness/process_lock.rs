//! Named locks between all test processes of this user, for what two tests must not use at the same
//! time. The kernel releases a lock when its process ends, in whatever way.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

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

/// Not below `TMPDIR`, of which every run of tests has its own. The files stay: one that is removed could be
/// locked by a process while another one locks its successor.
fn directory() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let directory = PathBuf::from(format!("/tmp/rollout-test-locks-{user}"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.and_then(|()| check_owner(&directory, user))
        .unwrap_or_else(|error| panic!("cannot keep locks in {}: {error}", directory.display()));
    directory
}

/// Refuses a directory of another user, who could hold or replace its locks, and a link to one.
fn check_owner(directory: &Path, user: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() {
        return Err(io::Error::other("it is no directory; remove it"));
    }
    match found.uid() {
        owner if owner == user => Ok(()),
        owner => Err(io::Error::other(format!("user {owner} owns it, not user {user}; remove it"))),
    }
}
