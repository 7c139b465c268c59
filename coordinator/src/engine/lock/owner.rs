//! Owners of a run, and the proof that an owner is dead.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;

use rollout_protocol::id::OwnerId;
use rollout_worker::environment::{DeadOwners as _, Owner};
use rollout_worker::host::HostOwners;
use serde::{Deserialize, Serialize};

use crate::engine::journal::RunLayout;

/// A process that owns a run, or wants to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockOwner {
    /// Created for one acquisition of the lock.
    pub id: OwnerId,
    /// The process; the path of its lock is the run directory.
    pub process: Owner,
    /// The file that it holds locked; `None` when it took the run over from a process that holds
    /// it.
    pub file: Option<FileId>,
}

/// Identity of a file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

impl FileId {
    pub(super) fn from_file(file: &File) -> std::io::Result<Self> {
        file.metadata().map(|metadata| Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

impl LockOwner {
    /// This process, which holds no lock yet.
    pub(super) fn current(layout: &RunLayout) -> Self {
        let root = layout.root();
        let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        Self { id: OwnerId::from_bytes(rand::random()), process: Owner::current(root), file: None }
    }

    /// Whether `other` is proven dead: it ran on this machine before the last boot, or it ran on
    /// this kernel, and is gone or no longer holds its lock.
    pub(super) fn proves_dead(&self, other: &Self) -> bool {
        let (me, it) = (&self.process, &other.process);
        let same_kernel =
            !me.boot_id.is_empty() && (&me.host, &me.boot_id) == (&it.host, &it.boot_id);
        HostOwners::new(me.clone()).is_dead(it)
            || (same_kernel && (self.holds_file_of(other) || is_unlocked(other)))
    }

    /// Whether this process holds the lock that `other` held.
    pub(super) fn holds_file_of(&self, other: &Self) -> bool {
        other.file.is_some() && self.file == other.file
    }

    /// Process and host, for people.
    pub fn describe(&self) -> String {
        let host = self.process.host.split('/').next().unwrap_or_default();
        format!("process {} on {host}", self.process.pid)
    }
}

/// Whether no process holds the very file that an owner locked.
fn is_unlocked(owner: &LockOwner) -> bool {
    let path = RunLayout::new(&owner.process.lock).lock();
    let file = OpenOptions::new().write(true).open(path);
    file.is_ok_and(|file| {
        owner.file.is_some()
            && FileId::from_file(&file).ok() == owner.file
            && file.try_lock().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn owner_of_earlier_boot_is_dead_only_on_the_same_machine() {
        let owner = |host: &str, boot: &str| {
            let mut owner = LockOwner::current(&RunLayout::new(Path::new("/nowhere")));
            (owner.process.host, owner.process.boot_id) = (host.to_owned(), boot.to_owned());
            owner
        };
        let me = owner("host/0123456789abcdef", "now");
        assert!(me.proves_dead(&owner("host/0123456789abcdef", "earlier")));
        for (host, boot) in [
            ("host/0123456789abcdef", ""),
            ("host/fedcba9876543210", "earlier"),
            ("other/0123456789abcdef", "earlier"),
            ("host", "earlier"),
        ] {
            assert!(!me.proves_dead(&owner(host, boot)), "{host} {boot}");
        }
        let unknown = owner("host", "now");
        assert!(!unknown.proves_dead(&owner("host", "earlier")), "another host may have this name");
    }
}
