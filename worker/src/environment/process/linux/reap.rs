//! Removal of sandboxes of dead owners.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::time::Instant;

use super::owner_file::{OwnerFile, ProcessIdentity, SandboxHold};
use super::{create, launcher};
use crate::environment::{DeadOwners, ReapReport};

/// Time for a sandbox to notice that its worker has ended, before it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for a killed sandbox to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Splits sandboxes into those to remove and the number of those to keep.
pub(super) fn select_abandoned(
    base: &Path,
    claims: Vec<(String, Option<OwnerFile>)>,
    dead: &dyn DeadOwners,
) -> (Vec<(String, OwnerFile)>, usize) {
    let (mut doomed, mut kept) = (Vec::new(), 0);
    for (id, claim) in claims {
        match claim.filter(|claim| is_abandoned(base, &id, claim, dead)) {
            Some(claim) => doomed.push((id, claim)),
            None => kept += 1,
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
pub(super) async fn remove(base: &Path, abandoned: Vec<(String, OwnerFile)>) -> ReapReport {
    let mut reaped = ReapReport::default();
    for (id, claim) in abandoned {
        match remove_one(base, &id, &claim).await {
            Ok(()) => reaped.removed.push(id),
            Err(error) => reaped.failed.push((id, error.to_string())),
        }
    }
    reaped
}

async fn remove_one(base: &Path, id: &str, owner_file: &OwnerFile) -> io::Result<()> {
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
            Err(Errno::WOULDBLOCK) => {}
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
    create::remove_sandbox(base, id, &directory, owner_file).await
}
