//! Counts of the calls of a run, as guards.

use std::sync::Arc;
use std::time::Duration;

use crate::run_calls::RunCalls;

impl RunCalls {
    /// Total length of its pauses so far.
    pub(crate) fn paused_time(&self) -> Duration {
        let state = *self.state.borrow();
        let present = state.paused_since.map(|since| since.elapsed());
        state.past_pauses + present.unwrap_or_default()
    }

    /// Waits until calls may be sent.
    pub(crate) async fn wait_for_resume(&self) {
        let mut changes = self.state.subscribe();
        let reached = changes.wait_for(|state| !state.is_paused()).await.is_ok();
        debug_assert!(reached, "this holds the sender");
    }

    /// Counts a call that is sent now, until the guard is dropped; `None` during a pause.
    pub(crate) fn send_call(self: &Arc<Self>) -> Option<SentCall> {
        let mut version = None;
        let mut paused = false;
        self.state.send_if_modified(|state| {
            paused = state.is_paused();
            if !paused {
                state.in_flight += 1;
                version = state.known.map(|known| known.policy_version);
            }
            false
        });
        (!paused).then(|| SentCall { run: Arc::clone(self), version })
    }

    /// Counts a call that a pause keeps back, until the guard is dropped.
    pub(crate) fn hold_call(&self) -> HeldCall<'_> {
        self.state.send_if_modified(|state| {
            state.held += 1;
            false
        });
        HeldCall(self)
    }
}

/// A call that was sent and has not ended.
#[derive(Debug)]
pub(crate) struct SentCall {
    run: Arc<RunCalls>,
    /// The policy version under which it was sent.
    pub(crate) version: Option<u64>,
}

impl Drop for SentCall {
    fn drop(&mut self) {
        self.run.state.send_if_modified(|state| {
            state.in_flight = state.in_flight.saturating_sub(1);
            false
        });
    }
}

/// A call that a pause keeps back.
#[derive(Debug)]
pub(crate) struct HeldCall<'a>(&'a RunCalls);

impl Drop for HeldCall<'_> {
    fn drop(&mut self) {
        self.0.state.send_if_modified(|state| {
            state.held = state.held.saturating_sub(1);
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::id::RunId;
    use rollout_protocol::wire::model_calls::{ModelCallState, RunModelCalls};

    use crate::run_calls::RunCallTable;

    const RUN: RunId = RunId::from_bytes([1; 16]);

    fn state(paused: bool, policy_version: u64) -> ModelCallState {
        ModelCallState { paused, policy_version }
    }

    #[test]
    fn paused_run_sends_no_call_and_counts_those_in_flight() {
        let table = RunCallTable::default();
        let run = table.of(RUN);
        assert_eq!(table.counts(RUN), None, "no state is known");
        let unversioned = run.send_call().expect("sent");
        assert_eq!(unversioned.version, None);
        run.set(state(false, 3));
        let sent = run.send_call().expect("sent");
        assert_eq!(sent.version, Some(3));
        run.set(state(true, 3));
        assert!(run.send_call().is_none());
        let counts =
            |in_flight| RunModelCalls { run: RUN, state: state(true, 3), in_flight, held: 0 };
        assert_eq!(table.counts(RUN), Some(counts(2)));
        drop((sent, unversioned));
        assert_eq!(table.counts(RUN), Some(counts(0)));
        run.set(state(false, 4));
        assert_eq!(run.send_call().expect("sent").version, Some(4));
    }
}
