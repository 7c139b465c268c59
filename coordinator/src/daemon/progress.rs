//! Progress of a run, folded from its events.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::ItemId;
use rollout_protocol::search::SearchEvent;
use tokio::sync::watch;

use super::event_feed::EventFeed;
use super::record::{HostedKind, HostedProgress};
use crate::events::{EventBatch, EventSink, ReportError, RunResult, SinkReport, SinkStarter};
use crate::results::metrics::{Tally, TrialScore};

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
    kind: HostedKind,
    running: HashSet<ItemId>,
    /// The results, once the session has started.
    tally: Tally,
    /// Whether the session has started.
    is_started: bool,
}

impl SessionProgress {
    /// The progress of a session after that of an earlier one.
    pub(super) fn new(kind: HostedKind, former: HostedProgress, feed: Arc<EventFeed>) -> Self {
        let fold = ProgressFold { progress: former, kind, ..ProgressFold::default() };
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
                *self = Self { is_started: true, kind: self.kind, ..Self::default() };
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
                self.tally.add(&TrialScore::from_settlement(settlement));
            }
            EventKind::TrialReopened { former: Some(former), .. } => {
                self.tally.remove(&TrialScore::from_settlement(former));
            }
            EventKind::RunEnded { .. } => self.running.clear(),
            _ => {}
        }
    }

    fn snapshot(&self) -> HostedProgress {
        let running = self.running.len() as u64;
        if !self.is_started {
            return HostedProgress { running, ..self.progress.clone() };
        }
        let tally = &self.tally;
        HostedProgress {
            running,
            settled: tally.settled(),
            completed: tally.completed,
            failed: tally.failed,
            cancelled: tally.cancelled,
            unverified: tally.unverified,
            passed: tally.passed,
            infrastructure_failures: tally.failures.infrastructure,
            mean_reward: tally.rewards.mean(),
            // The evals of a search have no rewards.
            scored: (self.kind != HostedKind::Tree).then(|| tally.score().into()),
            ..self.progress.clone()
        }
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
    use rollout_protocol::error::{ErrorClass, ErrorType};
    use rollout_protocol::record::{Settlement, Verdict};

    use super::*;
    use crate::daemon::event_feed::EventSource;
    use crate::results::report::ScoreFigures;
    use crate::results::testing;

    fn settlement(attempt: u32, verdict: Verdict) -> Settlement {
        testing::settlement(testing::trial("a", "t", attempt), 1, verdict)
    }

    fn settled(attempt: u32, reward: f64) -> RunEvent {
        testing::settled(0, settlement(attempt, testing::passed(reward)))
    }

    fn progress(kind: HostedKind, former: HostedProgress) -> SessionProgress {
        let source = EventSource::Log("no-such-file".into());
        SessionProgress::new(kind, former, Arc::new(EventFeed::new(source)))
    }

    fn started(total: u64) -> EventKind {
        EventKind::RunStarted {
            run: testing::run(),
            job: "j".to_owned(),
            epoch: 2,
            total,
            started_at: testing::at(0),
        }
    }

    #[test]
    fn progress_counts_results_of_the_last_session() {
        let former = HostedProgress { settled: 7, ..Default::default() };
        let progress = progress(HostedKind::Job, former);
        assert_eq!(progress.snapshot().settled, 7);
        let started = started(3);
        let stage = progress.stage();
        let opened = testing::event(0, EventKind::RunOpened);
        progress.apply(&[testing::event(0, started), settled(1, 1.0), opened, settled(2, 0.0)]);
        let seen = progress.snapshot();
        assert_eq!((seen.session, seen.total, seen.settled), (2, 3, 2));
        assert_eq!((seen.completed, seen.passed, seen.mean_reward), (2, 1, Some(0.5)));
        assert_eq!(*stage.borrow(), SessionStage::Opened);
    }

    #[test]
    fn progress_with_failures_is_scored_like_result_of_run() {
        let failure = |class| testing::failed(testing::error(ErrorType::InternalError, class, "x"));
        let unverified_step =
            Verdict { unverified_steps: vec!["two".into()], ..testing::passed(1.0) };
        let verdicts = [
            testing::passed(0.75),
            testing::passed(1.0),
            unverified_step,
            testing::passed(2.0),
            failure(ErrorClass::Agent),
            failure(ErrorClass::Infrastructure),
        ];
        let settlements: Vec<Settlement> =
            (1..).zip(verdicts).map(|(attempt, verdict)| settlement(attempt, verdict)).collect();
        let mut tally = Tally::default();
        for settlement in &settlements {
            tally.add(&TrialScore::from_settlement(settlement));
        }
        for kind in [HostedKind::Job, HostedKind::Executor, HostedKind::Tree] {
            let progress = progress(kind, HostedProgress::default());
            progress.apply(&[testing::event(0, started(6))]);
            for settlement in &settlements {
                progress.apply(&[testing::settled(0, settlement.clone())]);
            }
            let seen = progress.snapshot();
            let scored = (kind != HostedKind::Tree).then(|| ScoreFigures::from(tally.score()));
            assert_eq!(seen.scored, scored);
            assert_eq!((seen.mean_reward, seen.passed), (Some(4.75 / 4.0), 1));
            assert_eq!((seen.settled, seen.failed, seen.infrastructure_failures), (6, 2, 1));
        }
        let score = tally.score();
        assert_eq!((score.passed, score.trials, score.mean_reward), (1, 5, Some(0.75)));
    }

    #[test]
    fn progress_of_reopened_trial_is_as_if_it_had_not_settled() {
        let progress = progress(HostedKind::Job, HostedProgress::default());
        progress.apply(&[testing::event(0, started(2)), settled(1, 0.5)]);
        let before = progress.snapshot();
        let other = settlement(2, testing::passed(1.0));
        progress.apply(&[testing::settled(1, other.clone())]);
        assert_ne!(progress.snapshot(), before);
        let (item, name) = (other.item, other.name.clone());
        let former = Some(Arc::new(other));
        let reopened = EventKind::TrialReopened { item, name, ordinal: 1, former };
        progress.apply(&[testing::event(2, reopened)]);
        assert_eq!(progress.snapshot(), before);
    }
}
