//! When phases began and ended: wall-clock times for people, durations on a monotonic clock.

use rollout_protocol::Timestamp;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, Timestamps};
use tokio::time::Instant;

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Timestamp,
    instant: Instant,
}

impl Moment {
    fn now() -> Self {
        Self { at: Timestamp::now(), instant: Instant::now() }
    }
}

/// The times of one execution.
#[derive(Debug)]
pub(super) struct Timing {
    began: Moment,
    current: Phase,
    phases: [Option<(Moment, Option<Moment>)>; 4],
}

/// Phases that stand in records, in their order.
const TIMED: [Phase; 4] =
    [Phase::EnvironmentSetup, Phase::AgentSetup, Phase::AgentExecution, Phase::Verification];

fn index(phase: Phase) -> Option<usize> {
    TIMED.iter().position(|timed| *timed == phase)
}

impl Timing {
    pub(super) fn begin() -> Self {
        Self { began: Moment::now(), current: Phase::Queued, phases: [None; 4] }
    }

    /// The phase that was entered last.
    pub(super) fn phase(&self) -> Phase {
        self.current
    }

    /// Ends the present phase and begins another.
    pub(super) fn enter(&mut self, phase: Phase) {
        let now = Moment::now();
        self.leave_at(now);
        self.current = phase;
        if let Some(index) = index(phase) {
            self.phases[index] = Some((now, None));
        }
    }

    /// Ends the present phase.
    pub(super) fn leave(&mut self) {
        self.leave_at(Moment::now());
    }

    fn leave_at(&mut self, now: Moment) {
        if let Some(index) = index(self.current)
            && let Some((_, ended @ None)) = &mut self.phases[index]
        {
            *ended = Some(now);
        }
    }

    /// The times up to now.
    pub(super) fn finish(&mut self) -> (Durations, Timestamps) {
        let now = Moment::now();
        self.leave_at(now);
        let seconds = |from: &Moment, to: &Moment| (to.instant - from.instant).as_secs_f64();
        let duration = |index: usize| {
            self.phases[index].as_ref().map(|(from, to)| seconds(from, to.as_ref().unwrap_or(&now)))
        };
        let started = |index: usize| self.phases[index].as_ref().map(|(from, _)| from.at);
        let ended = |index: usize| self.phases[index].as_ref().and_then(|(_, to)| Some((*to)?.at));
        let durations = Durations {
            total_sec: seconds(&self.began, &now),
            environment_setup_sec: duration(0),
            agent_setup_sec: duration(1),
            agent_execution_sec: duration(2),
            verifier_sec: duration(3),
        };
        let timestamps = Timestamps {
            started_at: self.began.at,
            environment_setup_started_at: started(0),
            environment_setup_ended_at: ended(0),
            agent_setup_started_at: started(1),
            agent_setup_ended_at: ended(1),
            agent_execution_started_at: started(2),
            agent_execution_ended_at: ended(2),
            verifier_started_at: started(3),
            verifier_ended_at: ended(3),
            ended_at: now.at,
        };
        (durations, timestamps)
    }
}
