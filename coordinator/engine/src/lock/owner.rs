//! Owners of a run, and the proof that an owner is dead.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;

use rollout_protocol::id::OwnerId;
use rollout_store::host::{DeadOwners as _, HostOwners, Owner};
use serde::{Deserialize, Serialize};

use crate::journal::RunLayout;

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

    /// Whether `other` is proven dead: it ran on this kernel, and is gone or no longer holds its
    /// lock.
    pub(super) fn proves_dead(&self, other: &Self) -> bool {
        let (me, it) = (&self.process, &other.process);
        let same_kernel =
            !me.boot_id.is_empty() && (&me.host, &me.boot_id) == (&it.host, &it.boot_id);
        same_kernel
            && (HostOwners::new(me.clone()).is_dead(it)
                || self.holds_file_of(other)
                || is_unlocked(other))
    }

    /// Whether `other` seems to have ended with an earlier boot of this machine: the name and the id of
    /// the machine are the same, and so is the file that it had locked and this process has locked. That
    /// is no proof: a copy of a machine, or a container with a fixed machine id, has all of that too.
    pub(super) fn is_of_earlier_boot(&self, other: &Self) -> bool {
        let (me, it) = (&self.process, &other.process);
        // A device may have another number after a boot.
        let same_file = self.file.zip(other.file).is_some_and(|(own, its)| own.inode == its.inode);
        same_file && me.boot_id != it.boot_id && HostOwners::new(me.clone()).is_dead(it)
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
    fn owner_of_earlier_boot_is_of_the_same_machine_and_file_and_not_proven_dead() {
        let owner = |host: &str, boot: &str, inode: Option<u64>| {
            let mut owner = LockOwner::current(&RunLayout::new(Path::new("/nowhere")));
            (owner.process.host, owner.process.boot_id) = (host.to_owned(), boot.to_owned());
            owner.file = inode.map(|inode| FileId { device: boot.len() as u64, inode });
            owner
        };
        let machine = "host/0123456789abcdef";
        let (me, earlier) = (owner(machine, "now", Some(7)), owner(machine, "earlier", Some(7)));
        assert!(me.is_of_earlier_boot(&earlier));
        assert!(!me.proves_dead(&earlier), "a copy of the machine may be alive");
        for (host, boot, inode) in [
            (machine, "now", Some(7)),
            (machine, "", Some(7)),
            (machine, "earlier", Some(8)),
            (machine, "earlier", None),
            ("host/fedcba9876543210", "earlier", Some(7)),
            ("other/0123456789abcdef", "earlier", Some(7)),
            ("host", "earlier", Some(7)),
        ] {
            let other = owner(host, boot, inode);
            assert!(!me.is_of_earlier_boot(&other), "{host} {boot} {inode:?}");
        }
        assert!(!owner(machine, "now", None).is_of_earlier_boot(&earlier), "it holds no lock");
        let unknown = owner("host", "now", Some(7));
        let earlier = owner("host", "earlier", Some(7));
        assert!(!unknown.is_of_earlier_boot(&earlier), "another host may have this name");
    }
}
