//! The limit on open files of this process, and how many executions and tree walks fit below it.

use std::sync::{Arc, OnceLock};

use rustix::process::{Resource, Rlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Open files of one execution at their peak: its sandbox, the streams of a command, captured
/// output, a connection to an engine.
const PER_EXECUTION: u64 = 16;

/// Open files of one walk through the tree of an environment, or of one extraction of such a tree:
/// one for each directory on the way down, the stream and the file that is read or written.
const PER_WALK: u64 = rollout_protocol::limits::ARCHIVE_DEPTH as u64 + 4;

/// Limit on concurrent walks: more would only wait for the disk.
const MAX_WALKS: u64 = 32;

/// Open files of everything else: the journal, the blob store, result files, connections, git.
const RESERVED: u64 = 32;

/// The limit that this process was started with, once it was raised.
static STARTED_WITH: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the limit on open files as far as the system lets this process. Must be called before
/// anything else; programs in sandboxes keep the former limit.
pub fn raise_limit() {
    let now = rustix::process::getrlimit(Resource::Nofile);
    STARTED_WITH.get_or_init(|| now.current);
    if now.current == now.maximum {
        return;
    }
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "cannot raise the limit on open files");
    }
}

/// The limit for programs in sandboxes: the one that this process was started with. Programs that
/// use `select` break with more than 1,024. `None` when the limit was never raised.
pub fn program_limit() -> Option<u64> {
    *STARTED_WITH.get()?
}

/// The limit of this process; `None` when there is none.
pub fn limit() -> Option<u64> {
    rustix::process::getrlimit(Resource::Nofile).current
}

/// How many of `wanted` executions fit below the limit beside the files that are open already: at
/// least one.
pub fn max_executions(wanted: u32) -> u32 {
    limit().map_or(wanted, |limit| fitting_executions(wanted, limit, open_now()))
}

fn fitting_executions(wanted: u32, limit: u64, open: u64) -> u32 {
    let free = limit.saturating_sub(open + RESERVED + max_walks(limit) * PER_WALK);
    let most = (free / PER_EXECUTION).max(1);
    wanted.min(u32::try_from(most).unwrap_or(u32::MAX))
}

/// How many walks may run concurrently.
fn max_walks(limit: u64) -> u64 {
    (limit / 4 / PER_WALK).clamp(1, MAX_WALKS)
}

/// Open files of this process.
fn open_now() -> u64 {
    // Without /proc a few are assumed: standard streams and the runtime's own.
    std::fs::read_dir("/proc/self/fd").map_or(16, |all| all.count() as u64)
}

/// Waits until one more walk through the tree of an environment, or one more extraction, fits. It
/// counts until the permit is dropped. A holder must not wait for another permit: there may be only
/// one.
pub async fn walk_permit() -> OwnedSemaphorePermit {
    static WALKS: OnceLock<Arc<Semaphore>> = OnceLock::new();
    let most = || limit().map_or(MAX_WALKS, max_walks);
    let permits = WALKS.get_or_init(|| {
        Arc::new(Semaphore::new(usize::try_from(most()).unwrap_or(Semaphore::MAX_PERMITS)))
    });
    Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fd_limit_low_reduces_executions_to_at_least_one() {
        assert_eq!(fitting_executions(100, 20_000, 20), 100);
        assert!((1..100).contains(&fitting_executions(100, 1024, 20)));
        assert!((2..20).contains(&fitting_executions(100, 256, 20)));
        assert_eq!(fitting_executions(100, 90, 20), 1);
        assert_eq!(fitting_executions(4, u64::MAX, 20), 4);
    }

    #[test]
    fn fd_use_of_executions_and_walks_stays_below_limit() {
        for limit in [256, 1024, 4096, 65_536] {
            let executions = u64::from(fitting_executions(u32::MAX, limit, 20));
            let used = 20 + RESERVED + max_walks(limit) * PER_WALK + executions * PER_EXECUTION;
            assert!(used <= limit, "{used} of {limit}");
        }
    }
}
