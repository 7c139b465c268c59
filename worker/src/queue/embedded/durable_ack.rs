//! Acknowledgements of reports that wait for the coordinators' journals.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rollout_protocol::id::RunId;
use rollout_protocol::wire::delivery::PublishError;
use tokio::sync::Notify;

use crate::queue::traits::QueueError;

#[derive(Debug, Default)]
pub(super) struct DurableAcks {
    state: Mutex<DurableAckState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct DurableAckState {
    /// Last sequence that the run's journal holds.
    reached: HashMap<RunId, u64>,
    /// Number of times that all sequences became invalid.
    disturbances: u64,
}

/// The sequences that one batch of reports waits for, one per run in it.
#[derive(Debug)]
pub(super) struct AwaitedReports {
    last: Vec<(RunId, u64)>,
    disturbances: u64,
}

impl DurableAcks {
    /// The sequences that must be journalled before reports of these runs with these answers are
    /// durable.
    pub(super) fn awaited(
        &self,
        runs: &[RunId],
        answers: &[Result<u64, PublishError>],
    ) -> AwaitedReports {
        let mut last: Vec<(RunId, u64)> = Vec::with_capacity(1);
        for (run, answer) in runs.iter().zip(answers) {
            let Ok(sequence) = answer else { continue };
            match last.iter_mut().find(|(known, _)| known == run) {
                Some((_, last)) => *last = *sequence,
                None => last.push((*run, *sequence)),
            }
        }
        AwaitedReports { last, disturbances: self.state().disturbances }
    }

    /// Waits until all of them are journalled. Cancel-safe.
    pub(super) async fn wait(&self, awaited: &AwaitedReports) -> Result<(), QueueError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.state();
                if state.disturbances != awaited.disturbances {
                    let reason =
                        "the broker lost its state before the report was journalled".to_owned();
                    return Err(QueueError::Unreachable { reason });
                }
                let holds = |(run, sequence): &(RunId, u64)| {
                    state.reached.get(run).is_some_and(|reached| reached >= sequence)
                };
                if awaited.last.iter().all(holds) {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    pub(super) fn mark_durable(&self, run: RunId, sequence: u64) {
        let mut state = self.state();
        let reached = state.reached.entry(run).or_default();
        *reached = sequence.max(*reached);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Invalidates all sequences: waiting workers must report again.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn invalidate(&self) {
        let mut state = self.state();
        state.reached.clear();
        state.disturbances += 1;
        drop(state);
        self.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, DurableAckState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
