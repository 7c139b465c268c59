//! Removal of sandboxes of dead owners.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_base::supervise;
use rollout_environment::{DeadOwners, ReapReport};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::time::Instant;

use super::owner_file::{OwnerClaim, OwnerFile, ProcessIdentity, SandboxHold};
use super::{create, launcher};

/// Time for a sandbox to notice that its worker has ended, before it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for a killed sandbox to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A sandbox to remove.
#[derive(Debug)]
pub(super) struct AbandonedSandbox {
    id: String,
    /// Control groups made for it.
    groups: Vec<PathBuf>,
    /// Whether its owner is known to be dead, so that its processes may be killed.
    is_owner_known: bool,
}

/// Splits sandboxes into those to remove and the number of those to keep. `groups` has the control
/// groups that a sandbox may have.
pub(super) fn select_abandoned(
    base: &Path,
    claims: Vec<(String, OwnerClaim)>,
    dead: &dyn DeadOwners,
    groups: impl Fn(&str) -> Vec<PathBuf>,
) -> (Vec<AbandonedSandbox>, usize) {
    let (mut doomed, mut kept) = (Vec::new(), 0);
    for (id, claim) in claims {
        match claim {
            OwnerClaim::Written(owner) if is_abandoned(base, &id, &owner, dead) => {
                let groups = owner.groups;
                doomed.push(AbandonedSandbox { id, groups, is_owner_known: true });
            }
            OwnerClaim::Lost => {
                let groups = groups(&id);
                doomed.push(AbandonedSandbox { id, groups, is_owner_known: false });
            }
            OwnerClaim::Written(_) | OwnerClaim::Unknown => kept += 1,
        }
    }
    (doomed, kept)
}

/// Whether a sandbox has no live owner or user.
fn is_abandoned(base: &Path, id: &str, owner_file: &OwnerFile, dead: &dyn DeadOwners) -> bool {
    let owner = &owner_file.labels.owner;
    if owner_file.preserved || owner.uid != rustix::process::geteuid().as_raw() {
        return false;
    }
    let abandoned =
        owner_file.writer == ProcessIdentity::current() && !SandboxHold::exists(&base.join(id));
    abandoned || dead.is_dead(owner)
}

/// Removes sandboxes.
pub(super) async fn remove(base: &Path, abandoned: Vec<AbandonedSandbox>) -> ReapReport {
    let mut reaped = ReapReport::default();
    for sandbox in abandoned {
        match remove_one(base, &sandbox).await {
            Ok(()) => reaped.removed.push(sandbox.id),
            Err(error) => reaped.failed.push((sandbox.id, error.to_string())),
        }
    }
    reaped
}

/// The lock of the directory of a sandbox.
enum SandboxLock {
    /// This process has it, unless there is no directory yet, or no longer.
    Taken(Option<File>),
    /// A process of the sandbox is alive.
    Held,
}

impl SandboxLock {
    fn try_take(directory: &Path) -> io::Result<Self> {
        let lock = match File::open(directory) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Taken(None)),
            Err(error) => return Err(error),
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self::Taken(Some(lock))),
            Err(Errno::WOULDBLOCK) => Ok(Self::Held),
            Err(error) => Err(error.into()),
        }
    }
}

async fn remove_one(base: &Path, sandbox: &AbandonedSandbox) -> io::Result<()> {
    let AbandonedSandbox { id, groups, is_owner_known } = sandbox;
    let directory = base.join(id);
    let begun = Instant::now();
    let mut killed = false;
    // The supervisor holds a shared lock while any process of the sandbox is alive.
    let _lock = loop {
        let path = directory.clone();
        match supervise::blocking(move || SandboxLock::try_take(&path)).await? {
            SandboxLock::Taken(lock) => break lock,
            SandboxLock::Held if *is_owner_known => {}
            SandboxLock::Held => {
                return Err(io::Error::other("its processes run, and its owner file is empty"));
            }
        }
        let waited = begun.elapsed();
        if waited > EXIT_TIMEOUT && !killed {
            let path = directory.clone();
            supervise::blocking(move || launcher::kill_recorded(&path)).await;
            killed = true;
        }
        if waited > EXIT_TIMEOUT + KILL_TIMEOUT {
            return Err(io::Error::other("its processes do not exit"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    create::remove_sandbox(base, id, &directory, groups).await
}
