//! The open calls of a try, and the time for which pauses of its run make it wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::run_guards::SentCall;
use crate::run_calls::RunCalls;

/// The open calls of a try: held back, or in flight.
#[derive(Debug)]
pub(crate) struct OpenCalls {
    run: Arc<RunCalls>,
    state: Mutex<OpenState>,
}

#[derive(Debug, Default)]
struct OpenState {
    open: usize,
    /// Whether a call was refused in this pause: the agent waits until it may try again.
    refused: bool,
    /// The time for which the run had been paused when the try began to wait for a call.
    since: Option<Duration>,
    /// Total of the former waits.
    past: Duration,
}

impl OpenState {
    /// Ends the wait, unless the try waits for another reason; `paused` is the time for which the
    /// run has been paused so far.
    fn end(&mut self, paused: Duration) {
        if self.open == 0
            && !self.refused
            && let Some(since) = self.since.take()
        {
            self.past += paused.saturating_sub(since);
        }
    }
}

/// The pause lasts longer than a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StillPaused;

impl OpenCalls {
    /// None, of a run.
    pub(crate) fn new(run: Arc<RunCalls>) -> Self {
        Self { run, state: Mutex::default() }
    }

    /// The present state. A refused agent waits until the pause ends, and no longer.
    fn state(&self) -> MutexGuard<'_, OpenState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.refused && !self.run.is_paused() {
            state.refused = false;
            state.end(self.run.paused_time());
        }
        state
    }

    /// Opens a call, until the guard is dropped.
    pub(crate) fn open(&self) -> OpenCall<'_> {
        let mut state = self.state();
        state.open += 1;
        state.since.get_or_insert_with(|| self.run.paused_time());
        drop(state);
        OpenCall { calls: self }
    }

    /// The newest policy version, if the run has any.
    pub(crate) fn policy_version(&self) -> Option<u64> {
        self.run.policy_version()
    }

    /// Whether the try waits for the end of a pause.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state().since.is_some() && self.run.is_paused()
    }

    /// Total time for which pauses made it wait.
    pub(crate) fn waited(&self) -> Duration {
        let state = self.state();
        let present = state.since.map(|since| self.run.paused_time().saturating_sub(since));
        state.past + present.unwrap_or_default()
    }
}

/// An open call.
#[derive(Debug)]
pub(crate) struct OpenCall<'a> {
    calls: &'a OpenCalls,
}

impl OpenCall<'_> {
    /// Waits until the run is not paused.
    ///
    /// # Errors
    /// [`StillPaused`] at the deadline.
    pub(crate) async fn wait_for_resume(&self, deadline: Instant) -> Result<(), StillPaused> {
        let run = &self.calls.run;
        if !run.is_paused() {
            return Ok(());
        }
        let held = run.hold_call();
        let resumed = tokio::time::timeout_at(deadline, run.wait_for_resume()).await;
        drop(held);
        resumed.map_err(|_| {
            self.calls.state().refused = true;
            StillPaused
        })
    }

    /// Counts the call as sent now; `None` during a pause.
    pub(crate) fn send(&self) -> Option<SentCall> {
        self.calls.run.send_call()
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        state.open -= 1;
        state.end(self.calls.run.paused_time());
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::wire::model_calls::ModelCallState;

    use super::*;

    fn paused() -> (Arc<RunCalls>, OpenCalls) {
        let run = Arc::new(RunCalls::default());
        set(&run, true);
        (Arc::clone(&run), OpenCalls::new(run))
    }

    fn set(run: &RunCalls, paused: bool) {
        run.set(ModelCallState { paused, policy_version: 1 });
    }

    fn in_secs(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    async fn advance(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_held_calls_count_their_common_time_once() {
        let (run, calls) = paused();
        let held = async |after| {
            advance(after).await;
            calls.open().wait_for_resume(in_secs(60)).await
        };
        let resume = async {
            advance(10).await;
            assert!(calls.is_waiting());
            set(&run, false);
        };
        let (first, second, ()) = tokio::join!(held(0), held(4), resume);
        assert_eq!((first, second), (Ok(()), Ok(())));
        assert!(!calls.is_waiting());
        advance(5).await;
        assert_eq!(calls.waited(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn call_in_flight_waits_as_long_as_the_pause_and_idle_try_does_not() {
        let (run, idle) = paused();
        let calls = OpenCalls::new(Arc::clone(&run));
        set(&run, false);
        let open = calls.open();
        let sent = open.send().expect("sent");
        advance(3).await;
        set(&run, true);
        advance(5).await;
        assert!(calls.is_waiting() && !idle.is_waiting());
        drop((sent, open));
        advance(5).await;
        assert!(!calls.is_waiting());
        assert_eq!((calls.waited(), idle.waited()), (Duration::from_secs(5), Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_try_waits_until_pause_ends() {
        let (run, calls) = paused();
        assert_eq!(calls.open().wait_for_resume(in_secs(3)).await, Err(StillPaused));
        advance(4).await;
        assert!(calls.is_waiting(), "its agent waits to try again");
        assert_eq!(calls.waited(), Duration::from_secs(7));
        set(&run, false);
        advance(20).await;
        assert!(!calls.is_waiting());
        set(&run, true);
        advance(1).await;
        assert!(!calls.is_waiting(), "the next pause refused nothing");
        assert_eq!(calls.waited(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn call_of_agent_that_has_gone_is_not_held() {
        let (run, calls) = paused();
        let gone = async {
            let open = calls.open();
            open.wait_for_resume(in_secs(60)).await
        };
        let gone = tokio::time::timeout(Duration::from_secs(2), gone);
        gone.await.expect_err("dropped");
        advance(5).await;
        assert_eq!(calls.waited(), Duration::from_secs(2));
        assert!(run.send_call().is_none());
    }
}
