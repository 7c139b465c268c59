//! The end of a session: the release of the run, and removal of what a completed run leaves in the
//! queue.

use rollout_protocol::id::RunId;
use rollout_queue::traits::{Dispatch, QueueError};
use tokio::time::timeout;

use super::CLOSE_TIMEOUT;
use crate::{LockLostError, RunLock, RunState};

/// Releases the run in this state. A completed run needs no reports any more: they are removed once
/// the KV store has its end. What a worker reports later stays for the next sweep of the queue.
///
/// # Errors
/// [`LockLostError`].
pub async fn release(
    run: RunId,
    lock: &RunLock,
    dispatch: &dyn Dispatch,
    state: RunState,
) -> Result<(), LockLostError> {
    // Taken before the release: the reports that the next session waits for come later.
    let last = match state {
        RunState::Completed => in_time(dispatch.last_report_sequence(run)).await,
        RunState::Running | RunState::Stopped => None,
    };
    let is_released = lock.release(Some(state)).await?;
    if let Some(last) = last.filter(|last| is_released && *last > 0) {
        in_time(dispatch.remove_reports(run, last)).await;
    }
    Ok(())
}

/// The answer of the queue. Reports that stay only take space until a sweep removes them.
async fn in_time<T>(asked: impl Future<Output = Result<T, QueueError>>) -> Option<T> {
    let reason = match timeout(CLOSE_TIMEOUT, asked).await {
        Ok(Ok(answer)) => return Some(answer),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer for {} s", CLOSE_TIMEOUT.as_secs()),
    };
    tracing::warn!("cannot remove the reports of the ended run from the queue: {reason}");
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollout_queue::contract::samples;
    use rollout_queue::embedded::model::BrokerModelConfig;
    use rollout_queue::embedded::{EmbeddedKvStore, EmbeddedQueue};
    use rollout_queue::traits::{KvStore, WorkSource as _};
    use tokio::sync::mpsc;

    use super::*;
    use crate::journal::RunLayout;
    use crate::{KvLockOptions, LockOptions, RunEntryInfo};

    /// Reports left after a release in this state.
    async fn left_after(state: RunState, kv: Option<KvLockOptions>) -> bool {
        let queue = EmbeddedQueue::with_immediate_acks(BrokerModelConfig::default());
        let report = samples::report(1, 1);
        let run = report.run;
        queue.report(vec![report]).await.expect("reachable");
        let directory = tempfile::tempdir().expect("a directory");
        let layout = RunLayout::new(directory.path());
        let options = LockOptions { kv, ..LockOptions::default() };
        let (_stop, mut stops) = mpsc::channel(1);
        let (lock, _grant) = RunLock::acquire(&layout, &options, &mut stops).await.expect("free");
        release(run, &lock, &queue, state).await.expect("still ours");
        queue.last_report_sequence(run).await.expect("reachable") > 0
    }

    fn kv_lock() -> Option<KvLockOptions> {
        let kv_store: Arc<dyn KvStore> = Arc::new(EmbeddedKvStore::default());
        Some(KvLockOptions { kv_store, info: RunEntryInfo::default() })
    }

    #[tokio::test]
    async fn release_of_completed_run_removes_its_reports() {
        assert!(!left_after(RunState::Completed, kv_lock()).await);
        assert!(left_after(RunState::Stopped, kv_lock()).await, "the next session reads them");
        assert!(left_after(RunState::Completed, None).await, "no other process knows of its end");
    }
}
