//! Storage limit of a sandbox.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rollout_base::open_files;
use rollout_base::supervise::{self, Task};
use tokio::time::Instant;

use super::control::ConnectionCloser;
use super::tree::SandboxTree;
use super::usage::{DiskUsage, measure};

/// Shortest time between two measurements.
const MIN_MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// A measurement may use at most one part in this many of the time.
const MEASURE_TIME_DIVISOR: u32 = 20;

/// The message about an exceeded limit.
pub(super) type ExceededLimit = Arc<OnceLock<String>>;

/// Measures repeatedly until the limit is exceeded, and then ends the sandbox.
pub(super) fn watch(
    tree: Arc<SandboxTree>,
    limit_mb: u64,
    exceeded: ExceededLimit,
    closer: ConnectionCloser,
) -> Task<()> {
    supervise::spawn("sandbox-storage", async move {
        let mut pause = MIN_MEASURE_INTERVAL;
        loop {
            tokio::time::sleep(pause).await;
            let begun = Instant::now();
            let found = measure_once(&tree, limit_mb).await;
            pause = MIN_MEASURE_INTERVAL.max(begun.elapsed() * MEASURE_TIME_DIVISOR);
            let Some(what) = found else { continue };
            // Set only once: the sandbox ends now.
            let _first = exceeded.set(what);
            closer.close();
            return;
        }
    })
}

/// Measures once; returns a message if a limit is exceeded.
pub(super) async fn measure_once(tree: &Arc<SandboxTree>, limit_mb: u64) -> Option<String> {
    let (tree, limit) = (Arc::clone(tree), limit_mb.saturating_mul(1024 * 1024));
    let walk = open_files::walk_permit().await;
    let measuring = supervise::blocking(move || {
        let _walk = walk;
        measure(tree.root(), limit)
    });
    match measuring.await {
        Ok(DiskUsage::Bytes(bytes)) if bytes > limit => {
            Some(format!("storage limit exceeded: more than {limit_mb} MiB"))
        }
        Ok(DiskUsage::TooDeep) => Some(
            "storage limit exceeded: directories are nested too deeply to be measured".to_owned(),
        ),
        Ok(DiskUsage::Bytes(_)) => None,
        Err(error) => {
            tracing::debug!(%error, "cannot measure the storage of a sandbox");
            None
        }
    }
}
