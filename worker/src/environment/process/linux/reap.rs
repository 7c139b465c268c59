//! Removal of sandboxes of dead owners.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::time::Instant;

use super::owner_file::{OwnerClaim, OwnerFile, ProcessIdentity, SandboxHold};
use super::{create, launcher};
use crate::environment::{DeadOwners, ReapReport};

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

async fn remove_one(base: &Path, sandbox: &AbandonedSandbox) -> io::Result<()> {
    let AbandonedSandbox { id, groups, is_owner_known } = sandbox;
    let directory = base.join(id);
    let begun = Instant::now();
    let mut killed = false;
    // The supervisor holds a shared lock while any process of the sandbox is alive.
    let _lock = loop {
        let lock = match File::open(&directory) {
            Ok(lock) => lock,
            // The sandbox has no directory yet, or no longer.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break None,
            Err(error) => return Err(error),
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break Some(lock),
            Err(Errno::WOULDBLOCK) if *is_owner_known => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other("its processes run, and its owner file is empty"));
            }
            Err(error) => return Err(error.into()),
        }
        let waited = begun.elapsed();
        if waited > EXIT_TIMEOUT && !killed {
            launcher::kill_recorded(&directory);
            killed = true;
        }
        if waited > EXIT_TIMEOUT + KILL_TIMEOUT {
            return Err(io::Error::other("its processes do not exit"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    create::remove_sandbox(base, id, &directory, groups).await
}
