//! Statuses of the trials of a run, folded from its events, and the announcements of hook events of
//! its running trials.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollout_engine::core::AnnouncedChunk;
use rollout_protocol::Timestamp;
use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::executor::TrialStatus;
use rollout_protocol::id::{ExecId, ItemId, RunId};
use rollout_protocol::record::Settlement;
use tokio::sync::Notify;

use super::ExecutorError;
use crate::events::{EventBatch, EventSink, ReportError, RunResult, SinkReport, SinkStarter};
use crate::workloads::job::EventChunkListener;

/// Statuses of the trials that were started, or that events named. Memory grows with them: a settled
/// trial keeps its settlement.
#[derive(Debug, Default)]
pub(super) struct TrialStates {
    fold: Mutex<StatesFold>,
    /// Notified when the run is opened, and when there are no more events.
    progress: Notify,
}

#[derive(Debug, Default)]
struct StatesFold {
    run: Option<RunId>,
    opened: bool,
    ended: bool,
    trials: HashMap<ItemId, TrialState>,
}

#[derive(Debug)]
struct TrialState {
    status: TrialStatus,
    /// Announcements of the newest execution that has any; empty when the trial is settled. One for
    /// about every second of the execution.
    chunks: Vec<AnnouncedChunk>,
    /// Number of announcements so far, of all executions.
    revision: u64,
    /// Notified when the trial is settled or has a new announcement; `None` while no call waits.
    changed: Option<Arc<Notify>>,
}

/// A change of a trial that its events depend on.
#[derive(Debug)]
pub(super) enum TrialProgress {
    /// It has its result.
    Settled(Arc<Settlement>),
    /// Hook events were announced.
    Announced {
        /// Increases with every announcement.
        revision: u64,
        /// The announcements of one execution, all so far.
        chunks: Vec<AnnouncedChunk>,
    },
}

impl TrialStates {
    /// A sink that feeds the statuses.
    pub(super) fn sink(self: &Arc<Self>) -> SinkStarter {
        let states = Arc::clone(self);
        Box::new(move |_| Ok(Box::new(StatesSink(states))))
    }

    /// Waits until the run is opened; `None` when it ended before.
    pub(super) async fn wait_opened(&self) -> Option<RunId> {
        loop {
            let mut told = std::pin::pin!(self.progress.notified());
            told.as_mut().enable();
            {
                let fold = self.fold();
                if fold.opened {
                    return fold.run;
                }
                if fold.ended {
                    return None;
                }
            }
            told.await;
        }
    }

    /// Adds a trial that is started.
    pub(super) fn start(&self, trial: ItemId) -> Result<(), ExecutorError> {
        let mut fold = self.fold();
        let ended = fold.ended;
        match fold.trials.get(&trial) {
            Some(known) if known.status.settlement().is_some() => Ok(()),
            _ if ended => Err(ExecutorError::Ended),
            Some(_) => Ok(()),
            None => {
                fold.trials.insert(trial, TrialState::new(TrialStatus::Queued));
                Ok(())
            }
        }
    }

    /// The status of a trial.
    pub(super) fn status(&self, trial: &ItemId) -> Result<TrialStatus, ExecutorError> {
        let fold = self.fold();
        let status = fold.trials.get(trial).map(|state| state.status.clone());
        let status = status.ok_or_else(|| unknown(trial))?;
        if fold.ended && status.settlement().is_none() {
            return Err(ExecutorError::Ended);
        }
        Ok(status)
    }

    /// Waits until a trial is settled, or has announcements after the revision `seen`.
    pub(super) async fn wait_progress(
        &self,
        trial: &ItemId,
        seen: u64,
    ) -> Result<TrialProgress, ExecutorError> {
        loop {
            let changed = {
                let mut fold = self.fold();
                let ended = fold.ended;
                let state = fold.trials.get_mut(trial).ok_or_else(|| unknown(trial))?;
                if let Some(settlement) = state.status.settlement() {
                    return Ok(TrialProgress::Settled(Arc::clone(settlement)));
                }
                if ended {
                    return Err(ExecutorError::Ended);
                }
                if state.revision > seen {
                    let (revision, chunks) = (state.revision, state.chunks.clone());
                    return Ok(TrialProgress::Announced { revision, chunks });
                }
                let changed = Arc::clone(state.changed.get_or_insert_default());
                // Registered while the lock is held: no notification is missed.
                let mut waiting = Box::pin(changed.notified_owned());
                waiting.as_mut().enable();
                waiting
            };
            changed.await;
        }
    }

    fn apply(&self, events: &[RunEvent]) {
        let mut fold = self.fold();
        for event in events {
            fold.apply(event);
        }
        if events.iter().any(|event| matches!(event.kind, EventKind::RunOpened)) {
            self.progress.notify_waiters();
        }
    }

    fn end(&self) {
        let mut fold = self.fold();
        fold.ended = true;
        for state in fold.trials.values_mut() {
            state.notify();
        }
        self.progress.notify_waiters();
    }

    fn fold(&self) -> MutexGuard<'_, StatesFold> {
        self.fold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(trial: &ItemId) -> ExecutorError {
    ExecutorError::UnknownTrial { trial: trial.to_string() }
}

impl TrialState {
    const fn new(status: TrialStatus) -> Self {
        Self { status, chunks: Vec::new(), revision: 0, changed: None }
    }

    /// Adds an announcement. Those of a later execution replace those of an earlier one.
    fn announce(&mut self, chunk: AnnouncedChunk) {
        if self.status.settlement().is_some() {
            return;
        }
        if let Some(known) = self.chunks.first().filter(|known| known.exec != chunk.exec) {
            let runs = |exec: &ExecId| matches!(&self.status, TrialStatus::Running { exec: running, .. } if running == exec);
            if !(chunk.try_id > known.try_id || runs(&chunk.exec)) {
                return;
            }
            self.chunks.clear();
        }
        self.chunks.push(chunk);
        self.revision += 1;
        self.notify();
    }

    fn notify(&mut self) {
        if let Some(changed) = self.changed.take() {
            changed.notify_waiters();
        }
    }
}

impl StatesFold {
    fn apply(&mut self, event: &RunEvent) {
        match &event.kind {
            EventKind::RunStarted { run, .. } => self.run = Some(*run),
            EventKind::RunOpened => self.opened = true,
            EventKind::TrialPhase { item, try_id, exec, phase, .. } => {
                let (try_id, exec, phase) = (*try_id, *exec, *phase);
                self.set(*item, TrialStatus::Running { try_id, exec, phase, waiting_for: None });
            }
            EventKind::TrialParked { item, exec, dependency, .. } => {
                self.set_waiting_for(item, exec, Some(*dependency));
            }
            EventKind::TrialUnparked { item, exec, .. } => {
                self.set_waiting_for(item, exec, None);
            }
            EventKind::TrialRetry { item, error, wait_ms, .. } => {
                let (error, next_try_at) = (error.clone(), after(event.at, *wait_ms));
                self.set(*item, TrialStatus::Waiting { error, next_try_at });
            }
            EventKind::TrialLost { item, exec, .. }
            | EventKind::ExecutionEnded { item, exec, .. } => self.end_execution(item, exec),
            EventKind::TrialSettled { settlement, .. } => {
                let settlement = Arc::clone(settlement);
                let item = settlement.item;
                self.set(item, TrialStatus::Settled { settlement });
                if let Some(state) = self.trials.get_mut(&item) {
                    state.chunks = Vec::new();
                    state.notify();
                }
            }
            EventKind::TrialReopened { item, .. } => self.set(*item, TrialStatus::Queued),
            EventKind::LockTakeover { .. }
            | EventKind::RunStopping { .. }
            | EventKind::RunPaused
            | EventKind::RunContinued
            | EventKind::Warning { .. }
            | EventKind::Backlog { .. }
            | EventKind::RunEnded { .. }
            | EventKind::Search(_) => {}
        }
    }

    fn set(&mut self, item: ItemId, status: TrialStatus) {
        self.trials.entry(item).or_insert_with(|| TrialState::new(TrialStatus::Queued)).status =
            status;
    }

    fn set_waiting_for(&mut self, item: &ItemId, of: &ExecId, dependency: Option<Dependency>) {
        if let Some(TrialStatus::Running { exec, waiting_for, .. }) = self.status_mut(item)
            && exec == of
        {
            *waiting_for = dependency;
        }
    }

    /// An execution no longer runs. Another one may have been shown meanwhile.
    fn end_execution(&mut self, item: &ItemId, of: &ExecId) {
        if let Some(status) = self.status_mut(item)
            && let TrialStatus::Running { exec, .. } = status
            && exec == of
        {
            *status = TrialStatus::Queued;
        }
    }

    fn status_mut(&mut self, item: &ItemId) -> Option<&mut TrialStatus> {
        self.trials.get_mut(item).map(|state| &mut state.status)
    }
}

fn after(at: Timestamp, wait_ms: u64) -> Timestamp {
    at.checked_add(Duration::from_millis(wait_ms)).unwrap_or(Timestamp::MAX)
}

/// Announcements of trials that were not started are those of trials of earlier sessions.
impl EventChunkListener for TrialStates {
    fn on_event_chunk(&self, chunk: AnnouncedChunk) {
        let mut fold = self.fold();
        let queued = || TrialState::new(TrialStatus::Queued);
        fold.trials.entry(chunk.item).or_insert_with(queued).announce(chunk);
    }
}

/// Feeds the statuses. Its end is the end of the events, however the run ended.
struct StatesSink(Arc<TrialStates>);

#[async_trait]
impl EventSink for StatesSink {
    async fn accept(&mut self, batch: &EventBatch) {
        self.0.apply(batch);
    }

    async fn finish(self: Box<Self>, _: Option<RunResult>) -> Result<SinkReport, ReportError> {
        Ok(SinkReport::default())
    }
}

impl Drop for StatesSink {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests;
