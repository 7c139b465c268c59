//! The progress of a run, folded from its events. The time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, Settlement};
use rollout_protocol::spec::budget::ModelUse;

use crate::events::running::RunningExecutions;
use crate::results::metrics::{Tally, TrialScore};

/// The displayed progress.
#[derive(Debug, Default)]
pub(super) struct RunProgress {
    /// Known once the session has started.
    pub(super) identity: Option<RunIdentity>,
    pub(super) stage: RunStage,
    pub(super) is_paused: bool,
    /// The settled trials.
    pub(super) tally: Tally,
    /// Cost of the executions that settled trials.
    pub(super) cost: f64,
    /// Use of their model calls.
    pub(super) model_use: ModelUse,
    /// Items without a result by size class, as far as the run says.
    pub(super) pending: BTreeMap<String, u64>,
    /// Those of them that no worker could run.
    pub(super) waiting_for_worker: BTreeMap<String, u64>,
    total: u64,
    running: RunningExecutions,
    /// When the session began, and with it the wait of trials that never ran.
    opened_at: Option<Instant>,
    /// Since when trials wait again whose execution ended without a verdict.
    requeued: BTreeMap<ItemId, Instant>,
}

/// Names of a run.
#[derive(Debug)]
pub(super) struct RunIdentity {
    pub(super) run: RunId,
    pub(super) name: String,
    pub(super) session: u32,
}

/// The stage of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum RunStage {
    #[default]
    Opening,
    Open,
    Stopping,
    Ended,
}

impl RunProgress {
    /// Applies an event.
    pub(super) fn apply(&mut self, event: &RunEvent, now: Instant) {
        self.running.apply(event, now);
        match &event.kind {
            EventKind::RunStarted { run, job, epoch, total, .. } => {
                self.identity = Some(RunIdentity { run: *run, name: job.clone(), session: *epoch });
                self.total = *total;
                self.opened_at = Some(now);
            }
            EventKind::RunOpened => {
                self.stage = RunStage::Open;
                self.opened_at = Some(now);
            }
            EventKind::TrialPhase { item, .. } | EventKind::TrialParked { item, .. } => {
                self.requeued.remove(item);
            }
            EventKind::TrialRetry { item, .. } | EventKind::TrialLost { item, .. } => {
                self.requeued.insert(*item, now);
            }
            EventKind::TrialSettled { settlement, .. } => {
                self.requeued.remove(&settlement.item);
                self.settle(settlement);
            }
            EventKind::TrialReopened { item, former, .. } => {
                if let Some(former) = former {
                    self.reopen(former);
                }
                self.requeued.insert(*item, now);
            }
            EventKind::RunStopping { .. } => self.stage = RunStage::Stopping,
            EventKind::RunPaused => self.is_paused = true,
            EventKind::RunContinued => self.is_paused = false,
            EventKind::RunEnded { .. } => self.stage = RunStage::Ended,
            EventKind::Backlog { pending, waiting_for_worker } => {
                self.pending.clone_from(pending);
                self.waiting_for_worker.clear();
                for waiting in waiting_for_worker {
                    let of_class = self.waiting_for_worker.entry(waiting.class.clone());
                    *of_class.or_default() += waiting.items;
                }
            }
            EventKind::LockTakeover { .. }
            | EventKind::TrialUnparked { .. }
            | EventKind::ExecutionEnded { .. }
            | EventKind::Warning { .. }
            | EventKind::Search(_) => {}
        }
    }

    fn settle(&mut self, settlement: &Settlement) {
        self.tally.add(&TrialScore::from_settlement(settlement));
        self.cost += settlement.verdict.cost;
        self.model_use = self.model_use.plus(settlement.verdict.model_use);
    }

    fn reopen(&mut self, former: &Settlement) {
        self.tally.remove(&TrialScore::from_settlement(former));
        self.cost -= former.verdict.cost;
        self.model_use = self.model_use.minus(former.verdict.model_use);
    }

    /// Trials by state. Each is in one.
    pub(super) fn states(&self) -> [(&'static str, u64); 6] {
        let tally = &self.tally;
        [
            ("queued", self.queued()),
            ("running", self.running.items().count() as u64),
            (ItemOutcome::Completed.as_str(), tally.completed),
            (ItemOutcome::Failed.as_str(), tally.failed),
            (ItemOutcome::Cancelled.as_str(), tally.cancelled),
            (ItemOutcome::Unverified.as_str(), tally.unverified),
        ]
    }

    fn queued(&self) -> u64 {
        let settled = self.tally.settled();
        self.total.saturating_sub(settled + self.running.items().count() as u64)
    }

    /// Number of running executions in a phase.
    pub(super) fn in_phase(&self, phase: Phase) -> u64 {
        self.running.values().filter(|running| running.phase == phase).count() as u64
    }

    /// Number of running executions that wait for a service.
    pub(super) fn parked(&self, service: Dependency) -> u64 {
        self.running.values().filter(|running| running.waiting_for == Some(service)).count() as u64
    }

    /// How long the trial has waited that waits longest, since the beginning of the session.
    pub(super) fn oldest_queued(&self, now: Instant) -> Duration {
        let running: std::collections::BTreeSet<ItemId> = self.running.items().collect();
        let waiting_again = self.requeued.iter().filter(|(item, _)| !running.contains(item));
        let (mut count, mut oldest) = (0, None::<Instant>);
        for (_, since) in waiting_again {
            count += 1;
            oldest = Some(oldest.map_or(*since, |oldest| oldest.min(*since)));
        }
        if self.queued() > count {
            oldest = self.opened_at;
        }
        oldest.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Age of the execution that has run longest.
    pub(super) fn oldest_running(&self, now: Instant) -> Duration {
        let oldest = self.running.values().map(|running| running.started_at).min();
        oldest.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::{event, passed, phase, settled, settlement, started, trial};

    #[test]
    fn oldest_queued_is_the_session_until_every_trial_began() {
        let (mut progress, start) = (RunProgress::default(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        let age = |progress: &RunProgress, at| progress.oldest_queued(later(at)).as_secs();
        let (one, two) = (trial("a", "one", 1), trial("a", "two", 1));
        progress.apply(&started(2), start);
        progress.apply(&event(0, EventKind::RunOpened), later(1));
        assert_eq!(age(&progress, 5), 4);
        progress.apply(&phase(one.clone(), Phase::AgentSetup), later(5));
        assert_eq!((age(&progress, 9), progress.oldest_running(later(9)).as_secs()), (8, 4));
        progress.apply(&phase(two.clone(), Phase::AgentSetup), later(9));
        assert_eq!(age(&progress, 20), 0);

        let settlement = settlement(one, 1, passed(1.0));
        let EventKind::TrialPhase { item, name, try_id, exec, .. } =
            phase(two, Phase::AgentSetup).kind
        else {
            unreachable!("a phase")
        };
        progress.apply(&settled(0, settlement), later(20));
        progress.apply(&event(21, EventKind::TrialLost { item, name, try_id, exec }), later(21));
        assert_eq!((age(&progress, 30), progress.oldest_running(later(30)).as_secs()), (9, 0));
    }
}
