//! Disks of a worker: no work is taken while one is nearly full or takes no writes, and executions on
//! one that takes none are given back.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollout_protocol::wire::control::StopLevel;

use super::WorkerShared;
use super::connection::wait_for_update;
use crate::disk::{CheckAge, WriteFault};

/// Interval of checks of a disk that takes no work.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a disk takes no writes before what runs is given back.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(30);

/// The same for a disk that gives no answer: one that is very busy does so at last.
const GIVE_BACK_SILENT_AFTER: Duration = Duration::from_secs(300);

/// How long a disk gives no answer before work that waits for it is left: what was ended did not end.
const HUNG_AFTER: Duration = Duration::from_secs(360);

/// Watches the disks. Never ends.
pub(super) async fn watch_disks(shared: Arc<WorkerShared>) -> Infallible {
    let is_busy = || !shared.registry.is_empty();
    tokio::select! {
        never = shared.disks.watch(is_busy, shared.registry.changes()) => never,
        never = give_back_from_failed_disk(&shared) => never,
    }
}

/// Waits until every disk has space for more work and takes writes. A shortage and its end are logged
/// once, as are other faults where they are found.
pub(super) async fn wait_for_disks(shared: &WorkerShared) {
    loop {
        let age = age_for_pull(shared);
        let low = shared.disks.low(age).await;
        let was_low = shared.low_disk.swap(low.is_some(), Ordering::Relaxed);
        match &low {
            Some(low) if !was_low => {
                tracing::warn!("{low}: no work is started until space is freed");
            }
            None if was_low => {
                tracing::info!("every disk has enough space again: work is started again");
            }
            _ => {}
        }
        if was_low != low.is_some() {
            shared.registry.note_change();
        }
        if low.is_none() && shared.disks.failed(age).await.is_none() {
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// How new checks must be before a pull. A worker without executions checks its disks when work arrives.
fn age_for_pull(shared: &WorkerShared) -> CheckAge {
    match shared.registry.is_empty() {
        true => CheckAge::Idle,
        false => CheckAge::Recent,
    }
}

/// Whether every disk has space for more work and takes writes, before a pull.
pub(super) async fn are_usable(shared: &WorkerShared) -> bool {
    are_usable_at(shared, age_for_pull(shared)).await
}

/// The same for work that has arrived, which may have been long after the checks before the pull. It is
/// given back before its lease ends without an extension.
pub(super) async fn may_begin(shared: &WorkerShared) -> bool {
    if shared.disks.was_well_lately() {
        return true;
    }
    tokio::select! {
        is_usable = are_usable_at(shared, CheckAge::Recent) => is_usable,
        // A disk may give no answer.
        () = tokio::time::sleep(shared.config.lease / 4) => false,
        () = shared.wait_for_shutdown() => false,
    }
}

async fn are_usable_at(shared: &WorkerShared, age: CheckAge) -> bool {
    shared.disks.low(age).await.is_none() && shared.disks.failed(age).await.is_none()
}

/// Waits until a disk has given no answer for so long that work on it may never end.
pub(super) async fn wait_until_hung(shared: &WorkerShared) {
    let mut hung = shared.disk_hung.subscribe();
    if hung.wait_for(|is_hung| *is_hung).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The result of work on a disk; `None` if the disk gives no answer.
pub(super) async fn unless_hung<T>(
    shared: &WorkerShared,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = wait_until_hung(shared) => None,
    }
}

/// Ends what runs on a disk that takes no writes for a while. Its items run again elsewhere: here they
/// would be held without end, and what they leave could not be kept.
async fn give_back_from_failed_disk(shared: &WorkerShared) -> Infallible {
    let is_due = |fault: &WriteFault| {
        let limit = if fault.is_silent { GIVE_BACK_SILENT_AFTER } else { GIVE_BACK_AFTER };
        !fault.is_shortage && fault.since.elapsed() >= limit
    };
    let mut changes = shared.registry.changes();
    loop {
        while shared.registry.is_empty() {
            shared.disk_hung.send_replace(false);
            wait_for_update(&mut changes).await;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        let is_hung = |fault: WriteFault| fault.is_silent && fault.since.elapsed() >= HUNG_AFTER;
        shared.disk_hung.send_replace(shared.disks.last_faults().any(is_hung));
        let Some(fault) = shared.disks.last_faults().find(is_due) else { continue };
        let mut count = 0;
        for execution in shared.registry.all() {
            if execution.is_running() && !execution.is_stopped() {
                execution.stop(StopLevel::Kill);
                count += 1;
            }
        }
        if count > 0 {
            let message = &fault.message;
            tracing::error!("{message}: {count} executions are ended and their items given back");
        }
    }
}
