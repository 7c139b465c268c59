//! Removals: at once when an object becomes useless, retried when that fails.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use rollout_engine::Fence;
use rollout_protocol::Timestamp;

use super::directory::remove_all;
use super::{
    DesiredRepositoryState, FailedRemoval, RepositoryMaintenance, SearchDirectory, SearchError,
};
use crate::workloads::search::manifest::{
    CleanupKind, DeferredCleanup, ManifestEvent, ManifestEventKind, SearchManifest,
};

/// Wait before the second try, seconds; each further wait is twice as long.
const FIRST_RETRY_SECONDS: i64 = 5;

/// Longest wait, seconds.
const MAX_RETRY_SECONDS: i64 = 600;

/// Retries due removals, unless another process owns the search. Returns whether anything was
/// tried.
pub(super) fn retry(
    directory: &SearchDirectory,
    manifest: &mut SearchManifest,
    repository: &mut dyn RepositoryMaintenance,
    fence: &Fence,
    now: Timestamp,
) -> Result<bool, SearchError> {
    if manifest.state.deferred_cleanup.iter().all(|item| item.next_retry_at > now) {
        return Ok(false);
    }
    fence.check()?;
    let (due, mut waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut manifest.state.deferred_cleanup)
        .into_iter()
        .partition(|item| item.next_retry_at <= now);
    for mut item in due {
        let removed = match item.kind {
            CleanupKind::Dir => remove(directory, &item.path),
            CleanupKind::Worktree | CleanupKind::Branch => repository.remove(&item),
        };
        match removed {
            Ok(()) => {
                let kind =
                    ManifestEventKind::CleanedUp { path: item.path, attempts: item.attempts };
                manifest.events.push(ManifestEvent { at: now, kind });
            }
            Err(reason) => {
                item.attempts = item.attempts.saturating_add(1);
                item.next_retry_at = next_retry(now, item.attempts);
                item.reason = reason;
                waiting.push(item);
            }
        }
    }
    waiting.sort_by(|a, b| a.path.cmp(&b.path));
    manifest.state.deferred_cleanup = waiting;
    Ok(true)
}

/// Makes the repository match the manifest, unless another process owns the search. Queues failed
/// removals and returns whether there were any.
pub(super) fn reconcile(
    directory: &SearchDirectory,
    manifest: &mut SearchManifest,
    repository: &mut dyn RepositoryMaintenance,
    fence: &Fence,
    wanted: &DesiredRepositoryState,
    now: Timestamp,
) -> Result<bool, SearchError> {
    fence.check()?;
    let waiting = &manifest.state.deferred_cleanup;
    let deferred: BTreeSet<String> = waiting.iter().map(|item| item.path.clone()).collect();
    let mut failed = repository.reconcile(wanted, &deferred)?;
    for path in wanted.useless_dirs.difference(&deferred) {
        if let Err(reason) = remove(directory, path) {
            failed.push(FailedRemoval { path: path.clone(), kind: CleanupKind::Dir, reason });
        }
    }
    let items = failed.into_iter().map(|FailedRemoval { path, kind, reason }| DeferredCleanup {
        path,
        kind,
        reason,
        attempts: 1,
        next_retry_at: next_retry(now, 1),
    });
    let before = deferred.len();
    manifest.state.deferred_cleanup.extend(items);
    manifest.state.deferred_cleanup.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(manifest.state.deferred_cleanup.len() > before)
}

fn remove(directory: &SearchDirectory, path: &str) -> Result<(), String> {
    let Some(path) = directory.resolve_below(path) else {
        return Err("it is not below the directory of the search".to_owned());
    };
    remove_all(&path).map_err(|error| match error {
        SearchError::File { source, .. } => source.to_string(),
        other => other.to_string(),
    })
}

fn next_retry(now: Timestamp, attempts: u32) -> Timestamp {
    let doubled = 1i64.checked_shl(attempts.saturating_sub(1).min(20)).unwrap_or(i64::MAX);
    let wait = FIRST_RETRY_SECONDS.saturating_mul(doubled).min(MAX_RETRY_SECONDS);
    now.saturating_add(SignedDuration::from_secs(wait)).unwrap_or(Timestamp::MAX)
}
