//! Acknowledgements of reports that wait for the coordinators' journals.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rollout_protocol::id::RunId;
use rollout_protocol::wire::delivery::PublishError;
use tokio::sync::Notify;

use crate::traits::QueueError;

#[derive(Debug, Default)]
pub(super) struct DurableAcks {
    state: Mutex<DurableAckState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct DurableAckState {
    /// Last sequence that the run's journal holds.
    durable_sequences: HashMap<RunId, u64>,
    /// Number of times that all sequences became invalid.
    invalidations: u64,
}

/// The sequences that one batch of reports waits for, one per run in it.
#[derive(Debug)]
pub(super) struct AwaitedReports {
    sequences: Vec<(RunId, u64)>,
    invalidations: u64,
}

impl DurableAcks {
    /// The sequences that must be journalled before reports of these runs with these answers are
    /// durable.
    pub(super) fn awaited(
        &self,
        runs: &[RunId],
        answers: &[Result<u64, PublishError>],
    ) -> AwaitedReports {
        let mut sequences: Vec<(RunId, u64)> = Vec::with_capacity(1);
        for (run, answer) in runs.iter().zip(answers) {
            let Ok(sequence) = answer else { continue };
            match sequences.iter_mut().find(|(known, _)| known == run) {
                Some((_, last)) => *last = *sequence,
                None => sequences.push((*run, *sequence)),
            }
        }
        AwaitedReports { sequences, invalidations: self.state().invalidations }
    }

    /// Waits until all of them are journalled. Cancel-safe.
    pub(super) async fn wait(&self, awaited: &AwaitedReports) -> Result<(), QueueError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.state();
                if state.invalidations != awaited.invalidations {
                    let reason =
                        "the broker lost its state before the report was journalled".to_owned();
                    return Err(QueueError::Unreachable { reason });
                }
                let holds = |(run, sequence): &(RunId, u64)| {
                    state.durable_sequences.get(run).is_some_and(|reached| reached >= sequence)
                };
                if awaited.sequences.iter().all(holds) {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    pub(super) fn mark_durable(&self, run: RunId, sequence: u64) {
        let mut state = self.state();
        let reached = state.durable_sequences.entry(run).or_default();
        *reached = sequence.max(*reached);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Invalidates all sequences: waiting workers must report again.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn invalidate(&self) {
        let mut state = self.state();
        state.durable_sequences.clear();
        state.invalidations += 1;
        drop(state);
        self.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, DurableAckState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
