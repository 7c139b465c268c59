//! Ownership on a host, and the proof that an owner is dead.
//!
//! Everything that a worker creates carries its [`Owner`]. A reaper removes only things of owners
//! that are proven dead, and never by age. A death is proven by one of
//! * a different boot of the same machine; two hosts may have the same name,
//! * the owner's process no longer exists, or its pid belongs to another process, seen from the
//!   owner's own PID namespace,
//! * the lock of the owner's [`WorkerDir`] is free: the kernel releases it with the process.

mod marks;
mod owner;
mod process;
mod worker_dir;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

pub use self::marks::DirectoryMarks;
pub use self::owner::{DeadOwners, Owner};
pub use self::process::start_ticks;
pub use self::worker_dir::{WorkerDir, WorkerDirError};

/// Name of the lock in a worker directory.
const LOCK: &str = "lock";

/// Name of the file that says who owns a worker directory.
const OWNER_FILE: &str = "owner.json";

/// Decides which owners are dead, as seen from the host of this process.
#[derive(Debug)]
pub struct HostOwners {
    current: Owner,
    /// Worker directories of dead owners whose lock this process now holds, so that the lock is no
    /// longer a proof.
    adopted: RwLock<HashSet<PathBuf>>,
}

impl HostOwners {
    /// Decides for `me`, the owner that this process is.
    pub fn new(current: Owner) -> Self {
        Self { current, adopted: RwLock::default() }
    }

    /// Remembers that the owner of an adopted directory is dead.
    pub fn adopt(&self, dir: &WorkerDir) {
        let mut adopted = self.adopted.write().unwrap_or_else(PoisonError::into_inner);
        adopted.insert(dir.path().to_owned());
    }

    fn has_adopted(&self, lock: &Path) -> bool {
        self.adopted.read().unwrap_or_else(PoisonError::into_inner).contains(lock)
    }
}

impl DeadOwners for HostOwners {
    fn is_dead(&self, owner: &Owner) -> bool {
        let current = &self.current;
        if owner == current || owner.host != current.host || owner.host.is_empty() {
            return false;
        }
        if self.has_adopted(&owner.lock) {
            return true;
        }
        let same_boot = !current.boot_id.is_empty() && owner.boot_id == current.boot_id;
        if !same_boot {
            let known = !current.boot_id.is_empty() && !owner.boot_id.is_empty();
            // Without the machine's id it may be alive on another host of the same name.
            return known
                && (process::identifies_machine(&current.host)
                    || worker_dir::is_abandoned(&owner.lock));
        }
        let same_pids = current.pid_namespace != 0 && owner.pid_namespace == current.pid_namespace;
        (same_pids && process::is_gone(owner.pid, owner.start_ticks))
            || worker_dir::is_abandoned(&owner.lock)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A released lock may still be held for a moment by a child process that another test starts.
    pub(super) fn until(mut reached: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !reached() {
            assert!(Instant::now() < deadline, "still not");
            std::thread::yield_now();
        }
    }

    fn current() -> Owner {
        Owner::current(PathBuf::from("/nowhere"))
    }

    #[test]
    fn owner_of_current_process_is_complete() {
        let me = current();
        assert!(!me.host.is_empty());
        assert_eq!(me.pid, std::process::id());
        assert_eq!(Owner::from_label(&me.to_label().expect("a label")), Some(me.clone()));
        assert_eq!(Owner::from_label("{}"), None);
        if cfg!(target_os = "linux") {
            assert_eq!(me.boot_id.len(), 36, "{me:?}");
            assert!(me.pid_namespace != 0 && me.start_ticks != 0, "{me:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn owner_is_dead_only_with_proof() {
        let me = Owner { host: "debian/1".into(), ..current() };
        let owners = HostOwners::new(me.clone());
        let mut child =
            Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("started");
        let start_ticks = process::start_ticks(child.id()).expect("known");
        let other = Owner { pid: child.id(), start_ticks, ..me.clone() };
        assert!(!owners.is_dead(&me));
        assert!(!owners.is_dead(&other));
        assert!(owners.is_dead(&Owner { start_ticks: start_ticks + 1, ..other.clone() }));
        assert!(owners.is_dead(&Owner { boot_id: "another".into(), ..other.clone() }));
        for host in ["another/1", "debian/2", "debian"] {
            let elsewhere = Owner { host: host.into(), boot_id: "another".into(), ..other.clone() };
            assert!(!owners.is_dead(&elsewhere), "{host}");
        }
        assert!(!owners.is_dead(&Owner { boot_id: String::new(), ..other.clone() }));
        let contained = Owner { pid_namespace: 1, start_ticks: 1, ..other.clone() };
        assert!(!owners.is_dead(&contained), "its numbers mean nothing here");
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(owners.is_dead(&other));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn owner_of_other_boot_without_machine_id_needs_free_lock() {
        let me = Owner { host: "debian".into(), ..current() };
        let owners = HostOwners::new(me.clone());
        let base = tempfile::TempDir::new().expect("a directory");
        let dir = WorkerDir::create(base.path()).expect("created");
        let other = Owner { boot_id: "another".into(), lock: dir.path().to_owned(), ..me };
        assert!(!owners.is_dead(&other), "it may be alive on another machine");
        assert!(!owners.is_dead(&Owner { lock: "/nowhere".into(), ..other.clone() }));
        drop(dir);
        until(|| owners.is_dead(&other));
    }

    #[test]
    fn owner_with_free_lock_is_dead() {
        let base = tempfile::TempDir::new().expect("a directory");
        let dir = WorkerDir::create(base.path()).expect("created");
        let hidden = Owner { pid_namespace: 1, pid: 1, ..Owner::current(dir.path().to_owned()) };
        let owners = HostOwners::new(current());
        assert!(!owners.is_dead(&hidden));
        drop(dir);
        if cfg!(target_os = "linux") {
            until(|| owners.is_dead(&hidden));
        }
        let mut adopted = Vec::new();
        until(|| {
            adopted = WorkerDir::adoptable(base.path()).expect("listed");
            !adopted.is_empty()
        });
        assert!(!owners.is_dead(&hidden), "somebody holds the lock");
        owners.adopt(&adopted[0]);
        assert!(owners.is_dead(&hidden));
    }
}
