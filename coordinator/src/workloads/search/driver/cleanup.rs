//! What is to be removed: at once when it becomes useless, and again later when that failed.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use rollout_protocol::Timestamp;

use super::directory::remove_all;
use super::{Directory, Keeper, Left, TreeError, Wanted};
use crate::engine::Fence;
use crate::workloads::search::manifest::{Cleanup, CleanupKind, Event, EventKind, Manifest};

/// Wait before the second try, seconds; each further wait is twice as long.
const FIRST_WAIT: i64 = 5;

/// Longest wait, seconds.
const LONGEST_WAIT: i64 = 600;

/// Tries again to remove what is due, unless the search is somebody else's by now. Whether anything
/// was tried.
pub(super) fn retry(
    directory: &Directory,
    manifest: &mut Manifest,
    keeper: &mut dyn Keeper,
    fence: &Fence,
    now: Timestamp,
) -> Result<bool, TreeError> {
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
            CleanupKind::Worktree | CleanupKind::Branch => keeper.remove(&item),
        };
        match removed {
            Ok(()) => {
                let kind = EventKind::CleanedUp { path: item.path, attempts: item.attempts };
                manifest.events.push(Event { at: now, kind });
            }
            Err(reason) => {
                item.attempts = item.attempts.saturating_add(1);
                item.next_retry_at = later(now, item.attempts);
                item.reason = reason;
                waiting.push(item);
            }
        }
    }
    waiting.sort_by(|a, b| a.path.cmp(&b.path));
    manifest.state.deferred_cleanup = waiting;
    Ok(true)
}

/// Makes everything what the manifest wants, unless the search is somebody else's by now. What could
/// not be removed is noted down; whether anything was.
pub(super) fn keep(
    directory: &Directory,
    manifest: &mut Manifest,
    keeper: &mut dyn Keeper,
    fence: &Fence,
    wanted: &Wanted,
    now: Timestamp,
) -> Result<bool, TreeError> {
    fence.check()?;
    let waiting = &manifest.state.deferred_cleanup;
    let deferred: BTreeSet<String> = waiting.iter().map(|item| item.path.clone()).collect();
    let mut left = keeper.keep(wanted, &deferred)?;
    for path in wanted.useless.difference(&deferred) {
        if let Err(reason) = remove(directory, path) {
            left.push(Left { path: path.clone(), kind: CleanupKind::Dir, reason });
        }
    }
    let items = left.into_iter().map(|Left { path, kind, reason }| Cleanup {
        path,
        kind,
        reason,
        attempts: 1,
        next_retry_at: later(now, 1),
    });
    let before = deferred.len();
    manifest.state.deferred_cleanup.extend(items);
    manifest.state.deferred_cleanup.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(manifest.state.deferred_cleanup.len() > before)
}

fn remove(directory: &Directory, path: &str) -> Result<(), String> {
    let Some(path) = directory.below(path) else {
        return Err("it is not below the directory of the search".to_owned());
    };
    remove_all(&path).map_err(|error| match error {
        TreeError::File { source, .. } => source.to_string(),
        other => other.to_string(),
    })
}

fn later(now: Timestamp, attempts: u32) -> Timestamp {
    let doubled = 1i64.checked_shl(attempts.saturating_sub(1).min(20)).unwrap_or(i64::MAX);
    let wait = FIRST_WAIT.saturating_mul(doubled).min(LONGEST_WAIT);
    now.saturating_add(SignedDuration::from_secs(wait)).unwrap_or(Timestamp::MAX)
}
