//! When phases began and ended: wall-clock times for people, durations on a monotonic clock.

use rollout_protocol::Timestamp;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, Timestamps};
use tokio::time::Instant;

/// Time spent in a phase, which may be entered several times.
#[derive(Debug, Clone, Copy)]
struct Span {
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
    seconds: f64,
}

/// The times of one execution.
#[derive(Debug)]
pub(super) struct Timing {
    began: (Timestamp, Instant),
    current: Phase,
    entered: Option<Instant>,
    spans: std::collections::BTreeMap<Phase, Span>,
}

impl Timing {
    pub(super) fn begin() -> Self {
        let began = (Timestamp::now(), Instant::now());
        Self { began, current: Phase::Queued, entered: None, spans: Default::default() }
    }

    /// The phase that was entered last.
    pub(super) fn phase(&self) -> Phase {
        self.current
    }

    /// Ends the present phase and begins another, or goes on with it.
    pub(super) fn enter(&mut self, phase: Phase) {
        self.leave();
        self.current = phase;
        self.entered = Some(Instant::now());
        let new = || Span { started_at: Timestamp::now(), ended_at: None, seconds: 0.0 };
        self.spans.entry(phase).or_insert_with(new);
    }

    /// Ends the present phase.
    pub(super) fn leave(&mut self) {
        if let Some(entered) = self.entered.take()
            && let Some(span) = self.spans.get_mut(&self.current)
        {
            span.seconds += entered.elapsed().as_secs_f64();
            span.ended_at = Some(Timestamp::now());
        }
    }

    /// The times up to now.
    pub(super) fn finish(&mut self) -> (Durations, Timestamps) {
        self.leave();
        let span = |phase: Phase| self.spans.get(&phase);
        let seconds = |phase| span(phase).map(|span| span.seconds);
        let started = |phase| span(phase).map(|span| span.started_at);
        let ended = |phase| span(phase).and_then(|span| span.ended_at);
        let durations = Durations {
            total_sec: self.began.1.elapsed().as_secs_f64(),
            environment_setup_sec: seconds(Phase::EnvironmentSetup),
            agent_setup_sec: None,
            agent_execution_sec: seconds(Phase::AgentExecution),
            verifier_sec: seconds(Phase::Verification),
        };
        let timestamps = Timestamps {
            started_at: self.began.0,
            environment_setup_started_at: started(Phase::EnvironmentSetup),
            environment_setup_ended_at: ended(Phase::EnvironmentSetup),
            agent_setup_started_at: None,
            agent_setup_ended_at: None,
            agent_execution_started_at: started(Phase::AgentExecution),
            agent_execution_ended_at: ended(Phase::AgentExecution),
            verifier_started_at: started(Phase::Verification),
            verifier_ended_at: ended(Phase::Verification),
            ended_at: Timestamp::now(),
        };
        (durations, timestamps)
    }
}
