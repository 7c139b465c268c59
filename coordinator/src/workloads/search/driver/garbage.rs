//! Garbage collection of a search, outside of a session.

use rollout_engine::Fence;
use rollout_protocol::Timestamp;

use super::{DesiredRepositoryState, RepositoryMaintenance, SearchDirectory, SearchError, cleanup};

/// The result of a garbage collection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GarbageReport {
    /// Removed objects.
    pub removed: Vec<String>,
    /// Objects that could not be removed, with the reasons.
    pub failed: Vec<(String, String)>,
}

/// Retries all queued removals, whether due or not, and removes everything else that the search
/// does not need. Only the owner of the search may call it. Blocks.
///
/// # Errors
/// [`SearchError`]; objects removed before stay removed.
pub fn collect_garbage(
    directory: &SearchDirectory,
    repository: &mut dyn RepositoryMaintenance,
    fence: &Fence,
) -> Result<GarbageReport, SearchError> {
    let mut manifest = directory.manifest()?;
    let waiting: Vec<String> =
        manifest.state.deferred_cleanup.iter().map(|item| item.path.clone()).collect();
    let now = Timestamp::now();
    for item in &mut manifest.state.deferred_cleanup {
        item.next_retry_at = now;
    }
    let mut changed = cleanup::retry(directory, &mut manifest, repository, fence, now)?;
    let wanted = DesiredRepositoryState::from_manifest(&manifest);
    changed |= cleanup::reconcile(directory, &mut manifest, repository, fence, &wanted, now)?;
    if changed {
        manifest.updated_at = now;
        directory.write(&manifest, fence)?;
    }
    let still = manifest.state.deferred_cleanup.into_iter();
    let failed: Vec<(String, String)> = still.map(|item| (item.path, item.reason)).collect();
    let is_left = |path: &String| failed.iter().any(|(there, _)| there == path);
    Ok(GarbageReport {
        removed: waiting.into_iter().filter(|path| !is_left(path)).collect(),
        failed,
    })
}
