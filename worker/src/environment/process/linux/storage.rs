//! Watches the disk that a sandbox takes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::control::Closer;
use super::tree::Tree;
use super::usage::{Usage, measure};
use crate::descriptors;
use crate::supervise::{self, Task};

/// Shortest time between two measurements.
const SHORTEST: Duration = Duration::from_secs(1);

/// A measurement may take one part in so many of the time.
const SHARE: u32 = 20;

/// What was found above the limit.
pub(super) type Exceeded = Arc<OnceLock<String>>;

/// Measures again and again until the limit is exceeded; the sandbox is ended then.
pub(super) fn watch(
    tree: Arc<Tree>,
    limit_mb: u64,
    exceeded: Exceeded,
    closer: Closer,
) -> Task<()> {
    supervise::spawn("sandbox-storage", async move {
        let mut pause = SHORTEST;
        loop {
            tokio::time::sleep(pause).await;
            let begun = Instant::now();
            let found = look(&tree, limit_mb).await;
            pause = SHORTEST.max(begun.elapsed() * SHARE);
            let Some(what) = found else { continue };
            // Set once: the sandbox ends now.
            let _first = exceeded.set(what);
            closer.close();
            return;
        }
    })
}

/// Measures once: what exceeds the limit, if anything does.
pub(super) async fn look(tree: &Arc<Tree>, limit_mb: u64) -> Option<String> {
    let (tree, limit) = (Arc::clone(tree), limit_mb.saturating_mul(1024 * 1024));
    let walk = descriptors::walk().await;
    let measuring = supervise::blocking(move || {
        let _walk = walk;
        measure(tree.root(), limit)
    });
    match measuring.await {
        Ok(Usage::Bytes(bytes)) if bytes > limit => {
            Some(format!("storage limit exceeded: more than {limit_mb} MiB"))
        }
        Ok(Usage::TooDeep) => Some(
            "storage limit exceeded: directories are nested too deeply to be measured".to_owned(),
        ),
        Ok(Usage::Bytes(_)) => None,
        Err(error) => {
            tracing::debug!(%error, "the storage of a sandbox was not measured");
            None
        }
    }
}
