//! Removing what a search does not need, beside any sitting.

use rollout_protocol::Timestamp;

use super::{DesiredRepositoryState, RepositoryMaintenance, SearchDirectory, SearchError, cleanup};
use crate::engine::Fence;

/// What was removed, and what is still there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GarbageReport {
    /// What waited for its removal and is gone.
    pub removed: Vec<String>,
    /// What is still there, and why.
    pub left: Vec<(String, String)>,
}

/// Removes what waits for it, whenever it would have been tried again, and whatever else the search
/// does not want. Only the owner of the search may. Blocks.
///
/// # Errors
/// [`SearchError`]; what was removed before stays removed.
pub fn collect_garbage(
    directory: &SearchDirectory,
    keeper: &mut dyn RepositoryMaintenance,
    fence: &Fence,
) -> Result<GarbageReport, SearchError> {
    let mut manifest = directory.manifest()?;
    let waiting: Vec<String> =
        manifest.state.deferred_cleanup.iter().map(|item| item.path.clone()).collect();
    let now = Timestamp::now();
    for item in &mut manifest.state.deferred_cleanup {
        item.next_retry_at = now;
    }
    let mut changed = cleanup::retry(directory, &mut manifest, keeper, fence, now)?;
    let wanted = DesiredRepositoryState::from_manifest(&manifest);
    changed |= cleanup::reconcile(directory, &mut manifest, keeper, fence, &wanted, now)?;
    if changed {
        manifest.updated_at = now;
        directory.write(&manifest, fence)?;
    }
    let still = manifest.state.deferred_cleanup.into_iter();
    let left: Vec<(String, String)> = still.map(|item| (item.path, item.reason)).collect();
    let is_left = |path: &String| left.iter().any(|(there, _)| there == path);
    Ok(GarbageReport { removed: waiting.into_iter().filter(|path| !is_left(path)).collect(), left })
}
