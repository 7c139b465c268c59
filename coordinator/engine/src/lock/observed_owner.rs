//! The owner that a lock file names, as a reader of the run sees it. A reader takes no lock.

use std::path::Path;

use rollout_protocol::Timestamp;
use rollout_store::host::{DeadOwners as _, HostOwners, Owner};

use super::lock_file::LockFile;

/// The owner that a lock file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedOwner {
    file: LockFile,
}

impl ObservedOwner {
    /// Parses a lock file; `None` if it is not one that this version can read.
    pub fn parse(text: &[u8]) -> Option<Self> {
        LockFile::parse(text).map(|file| Self { file })
    }

    /// Name of its host.
    pub fn host(&self) -> &str {
        &self.file.hostname
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.file.pid
    }

    /// Its epoch: the number of its session.
    pub fn epoch(&self) -> u32 {
        self.file.epoch
    }

    /// When it took the lock, on its clock.
    pub fn created_at(&self) -> Timestamp {
        self.file.created_at
    }

    /// When it last renewed the lock, on its clock.
    pub fn last_heartbeat_at(&self) -> Timestamp {
        self.file.last_heartbeat_at
    }

    /// Whether this host proves that the process has ended. Doubt is false.
    pub fn is_dead(&self) -> bool {
        HostOwners::new(Owner::current(Path::new("").to_owned())).is_dead(&self.file.owner.process)
    }
}

#[cfg(test)]
mod tests {
    use super::super::owner::LockOwner;
    use super::*;
    use crate::journal::RunLayout;

    #[test]
    fn owner_of_lock_file_is_dead_only_with_proof() {
        let directory = tempfile::tempdir().expect("a directory");
        let owner = LockOwner::current(&RunLayout::new(directory.path()));
        let mut file = LockFile::new(owner, 3);
        let text = serde_json::to_vec(&file).expect("JSON");
        let observed = ObservedOwner::parse(&text).expect("a lock file");
        assert_eq!((observed.epoch(), observed.pid()), (3, std::process::id()));
        assert!(!observed.is_dead(), "it is this process");
        file.owner.process.start_ticks += 1;
        let text = serde_json::to_vec(&file).expect("JSON");
        let observed = ObservedOwner::parse(&text).expect("a lock file");
        assert_eq!(observed.is_dead(), cfg!(target_os = "linux"), "its process id is used again");
        assert_eq!(ObservedOwner::parse(b"{}"), None);
    }
}
