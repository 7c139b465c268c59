//! Start and end times of phases: wall-clock times for people, durations on a monotonic clock.

use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, Timestamps};
use tokio::time::Instant;

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct ClockReading {
    at: Timestamp,
    instant: Instant,
}

impl ClockReading {
    fn now() -> Self {
        Self { at: Timestamp::now(), instant: Instant::now() }
    }
}

/// The times of one execution.
#[derive(Debug)]
pub(crate) struct Timing {
    began: ClockReading,
    current: Phase,
    phases: [Option<PhaseSpan>; 4],
}

/// A phase, which is entered once per step.
#[derive(Debug, Clone, Copy)]
struct PhaseSpan {
    first: ClockReading,
    /// Start of the current or last time it was entered.
    began: ClockReading,
    ended: Option<ClockReading>,
    /// Total duration of the earlier times.
    earlier: Duration,
    /// Whether it was entered in the current step.
    in_current_step: bool,
}

impl PhaseSpan {
    fn duration(&self, now: &ClockReading) -> Duration {
        self.earlier + (self.ended.unwrap_or(*now).instant - self.began.instant)
    }
}

/// Phases with times in records, in order.
const TIMED: [Phase; 4] =
    [Phase::EnvironmentSetup, Phase::AgentSetup, Phase::AgentExecution, Phase::Verification];

fn timed_index(phase: Phase) -> Option<usize> {
    TIMED.iter().position(|timed| *timed == phase)
}

impl Timing {
    pub(crate) fn begin() -> Self {
        Self { began: ClockReading::now(), current: Phase::Queued, phases: [None; 4] }
    }

    /// The phase that was entered last.
    pub(crate) fn phase(&self) -> Phase {
        self.current
    }

    /// Ends the current phase and begins another.
    pub(crate) fn enter(&mut self, phase: Phase) {
        let now = ClockReading::now();
        self.leave_at(now);
        self.current = phase;
        if let Some(index) = timed_index(phase) {
            let former = self.phases[index];
            self.phases[index] = Some(PhaseSpan {
                first: former.map_or(now, |span| span.first),
                began: now,
                ended: None,
                earlier: former.map_or(Duration::ZERO, |span| span.duration(&now)),
                in_current_step: true,
            });
        }
    }

    /// Ends the current phase.
    pub(crate) fn leave(&mut self) {
        self.leave_at(ClockReading::now());
    }

    fn leave_at(&mut self, now: ClockReading) {
        if let Some(index) = timed_index(self.current)
            && let Some(PhaseSpan { ended: ended @ None, .. }) = &mut self.phases[index]
        {
            *ended = Some(now);
        }
    }

    /// Begins a step: [`Timing::latest`] refers to the new one.
    pub(crate) fn begin_step(&mut self) {
        self.phases.iter_mut().flatten().for_each(|span| span.in_current_step = false);
    }

    /// When a phase began and ended in the current step.
    pub(crate) fn latest(&self, phase: Phase) -> Option<(Timestamp, Option<Timestamp>)> {
        let span = self.phases[timed_index(phase)?].filter(|span| span.in_current_step)?;
        Some((span.began.at, span.ended.map(|ended| ended.at)))
    }

    /// Ends the current phase and returns all times.
    pub(crate) fn finish(&mut self) -> (Durations, Timestamps) {
        let now = ClockReading::now();
        self.leave_at(now);
        let duration = |index: usize| {
            self.phases[index].as_ref().map(|span| span.duration(&now).as_secs_f64())
        };
        let started = |index: usize| self.phases[index].as_ref().map(|span| span.first.at);
        let ended =
            |index: usize| self.phases[index].as_ref().and_then(|span| Some(span.ended?.at));
        let durations = Durations {
            total_sec: (now.instant - self.began.instant).as_secs_f64(),
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
