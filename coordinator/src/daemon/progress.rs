//! Progress of a run, folded from its events.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rollout_protocol::error::ErrorClass;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::ItemId;
use rollout_protocol::record::{ItemOutcome, Settlement};
use rollout_protocol::search::SearchEvent;
use tokio::sync::watch;

use super::event_feed::EventFeed;
use super::record::HostedProgress;
use crate::events::{EventBatch, EventSink, ReportError, RunResult, SinkReport, SinkStarter};

/// Stage of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SessionStage {
    /// It reads the job, makes its plan, or waits for the lock.
    #[default]
    Opening,
    /// It takes commands.
    Opened,
    /// It is over.
    Ended,
}

/// Progress of one session. Memory grows with running trials only.
#[derive(Debug)]
pub(super) struct SessionProgress {
    fold: Mutex<ProgressFold>,
    stage: watch::Sender<SessionStage>,
    /// Is told of every batch.
    feed: Arc<EventFeed>,
}

#[derive(Debug, Default)]
struct ProgressFold {
    progress: HostedProgress,
    running: HashSet<ItemId>,
    /// Sum of the rewards of this session's results.
    rewards: f64,
    /// Whether the session has started.
    is_started: bool,
}

impl SessionProgress {
    /// The progress of a session after that of an earlier one.
    pub(super) fn new(former: HostedProgress, feed: Arc<EventFeed>) -> Self {
        let fold = ProgressFold { progress: former, ..ProgressFold::default() };
        Self { fold: Mutex::new(fold), stage: watch::Sender::new(SessionStage::default()), feed }
    }

    /// A sink that feeds it.
    pub(super) fn sink(self: &Arc<Self>) -> SinkStarter {
        let progress = Arc::clone(self);
        Box::new(move |_| Ok(Box::new(ProgressSink(progress))))
    }

    /// The feed that is told of every batch.
    pub(super) fn feed(&self) -> Arc<EventFeed> {
        Arc::clone(&self.feed)
    }

    /// A snapshot.
    pub(super) fn snapshot(&self) -> HostedProgress {
        self.fold().snapshot()
    }

    /// The stage of the session.
    pub(super) fn stage(&self) -> watch::Receiver<SessionStage> {
        self.stage.subscribe()
    }

    /// Notes that the session is over.
    pub(super) fn end(&self) {
        self.stage.send_replace(SessionStage::Ended);
        self.feed.changed();
    }

    fn fold(&self) -> MutexGuard<'_, ProgressFold> {
        self.fold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, batch: &[RunEvent]) {
        let mut opened = false;
        let mut fold = self.fold();
        for event in batch {
            opened |= matches!(
                event.kind,
                EventKind::RunOpened | EventKind::Search(SearchEvent::SearchStarted { .. })
            );
            fold.apply(&event.kind);
        }
        drop(fold);
        if opened {
            self.stage.send_replace(SessionStage::Opened);
        }
        self.feed.changed();
    }
}

impl ProgressFold {
    fn apply(&mut self, kind: &EventKind) {
        match kind {
            EventKind::RunStarted { run, epoch, total, .. } => {
                // Every result of former sessions follows.
                *self = Self { is_started: true, ..Self::default() };
                self.progress.run = Some(*run);
                self.progress.session = *epoch;
                self.progress.total = *total;
            }
            EventKind::TrialPhase { item, .. } => {
                self.running.insert(*item);
            }
            EventKind::TrialRetry { item, .. }
            | EventKind::TrialLost { item, .. }
            | EventKind::ExecutionEnded { item, .. } => {
                self.running.remove(item);
            }
            EventKind::TrialSettled { settlement, .. } => {
                self.running.remove(&settlement.item);
                self.count(settlement, true);
            }
            EventKind::TrialReopened { former: Some(former), .. } => self.count(former, false),
            EventKind::RunEnded { .. } => self.running.clear(),
            _ => {}
        }
    }

    /// Adds a result, or removes it.
    fn count(&mut self, settlement: &Settlement, is_added: bool) {
        let change = |count: &mut u64| {
            *count = if is_added { *count + 1 } else { count.saturating_sub(1) };
        };
        let (progress, verdict) = (&mut self.progress, &settlement.verdict);
        change(&mut progress.settled);
        match verdict.outcome {
            ItemOutcome::Completed => change(&mut progress.completed),
            ItemOutcome::Failed => change(&mut progress.failed),
            ItemOutcome::Cancelled => change(&mut progress.cancelled),
            ItemOutcome::Unverified => change(&mut progress.unverified),
        }
        let class = verdict.error.as_ref().map(|error| error.class);
        if verdict.outcome == ItemOutcome::Failed && class == Some(ErrorClass::Infrastructure) {
            change(&mut progress.infrastructure_failures);
        }
        let Some(reward) = verdict.reward.filter(|_| verdict.outcome == ItemOutcome::Completed)
        else {
            return;
        };
        self.rewards += if is_added { reward } else { -reward };
        if reward >= 1.0 {
            change(&mut progress.passed);
        }
    }

    fn snapshot(&self) -> HostedProgress {
        let progress = &self.progress;
        let mean = || self.rewards / progress.completed as f64;
        let mean_reward = match self.is_started {
            true => (progress.completed > 0).then(mean),
            false => progress.mean_reward,
        };
        HostedProgress { running: self.running.len() as u64, mean_reward, ..progress.clone() }
    }
}

struct ProgressSink(Arc<SessionProgress>);

#[async_trait]
impl EventSink for ProgressSink {
    async fn accept(&mut self, batch: &EventBatch) {
        self.0.apply(batch);
    }

    async fn finish(
        self: Box<Self>,
        _result: Option<RunResult>,
    ) -> Result<SinkReport, ReportError> {
        Ok(SinkReport::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::event_feed::EventSource;
    use crate::results::testing;

    fn settled(attempt: u32, reward: f64) -> RunEvent {
        let trial = testing::trial("a", "t", attempt);
        let settlement = testing::settlement(trial, 1, testing::passed(reward));
        let settlement = Arc::new(settlement);
        testing::event(1, EventKind::TrialSettled { ordinal: 0, replayed: false, settlement })
    }

    #[test]
    fn progress_counts_results_of_the_last_session() {
        let progress = {
            let former = HostedProgress { settled: 7, ..Default::default() };
            let source = EventSource::Log("no-such-file".into());
            SessionProgress::new(former, Arc::new(EventFeed::new(source)))
        };
        assert_eq!(progress.snapshot().settled, 7);
        let started = EventKind::RunStarted {
            run: testing::run(),
            job: "j".to_owned(),
            epoch: 2,
            total: 3,
            started_at: testing::at(0),
        };
        let stage = progress.stage();
        let opened = testing::event(0, EventKind::RunOpened);
        progress.apply(&[testing::event(0, started), settled(1, 1.0), opened, settled(2, 0.0)]);
        let seen = progress.snapshot();
        assert_eq!((seen.session, seen.total, seen.settled), (2, 3, 2));
        assert_eq!((seen.completed, seen.passed, seen.mean_reward), (2, 1, Some(0.5)));
        assert_eq!(*stage.borrow(), SessionStage::Opened);
    }
}
