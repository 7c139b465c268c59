//! Counts of calls, as guards.

use std::sync::Arc;
use std::time::Duration;

use super::RunCalls;

impl RunCalls {
    /// Total length of its pauses so far.
    pub fn paused_time(&self) -> Duration {
        let state = *self.state.borrow();
        let present = state.paused_since.map(|since| since.elapsed());
        state.past_pauses + present.unwrap_or_default()
    }

    /// Waits until calls may be sent.
    pub async fn wait_for_resume(&self) {
        let mut changes = self.state.subscribe();
        let reached = changes.wait_for(|state| !state.is_paused()).await.is_ok();
        debug_assert!(reached, "this holds the sender");
    }

    /// Counts a call that is sent now, until the guard is dropped; `None` during a pause.
    pub fn send_call(self: &Arc<Self>) -> Option<SentCall> {
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
    pub fn hold_call(&self) -> HeldCall<'_> {
        self.state.send_if_modified(|state| {
            state.held += 1;
            false
        });
        HeldCall(self)
    }
}

/// A call that was sent and has not ended.
#[derive(Debug)]
pub struct SentCall {
    run: Arc<RunCalls>,
    /// The policy version under which it was sent.
    pub version: Option<u64>,
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
pub struct HeldCall<'a>(&'a RunCalls);

impl Drop for HeldCall<'_> {
    fn drop(&mut self) {
        self.0.state.send_if_modified(|state| {
            state.held = state.held.saturating_sub(1);
            false
        });
    }
}
