//! The limits of model servers of which this worker has leases, and the calls within them.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::rate_limit::Pace;
use rollout_protocol::spec::gateway::UpstreamSpec;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::run_calls::RunCalls;
use crate::run_calls::leases::LeaseState;

/// A minute, of which limits speak.
const MINUTE: Duration = Duration::from_secs(60);

/// The limits of one server of a run, of which this worker has a lease.
#[derive(Debug)]
pub(crate) struct LeasedLimits {
    run: Arc<RunCalls>,
    /// Place of the server in the gateway of the run.
    server: usize,
    has_concurrency: bool,
    has_rate: bool,
    /// Calls wait in their order.
    turn: tokio::sync::Mutex<()>,
    pace: Pace,
}

impl LeasedLimits {
    /// The limits of a server; `None` if it has none.
    pub(crate) fn new(run: Arc<RunCalls>, server: usize, spec: &UpstreamSpec) -> Option<Self> {
        let has_concurrency = spec.max_concurrent.is_some();
        let has_rate = spec.requests_per_minute.is_some();
        if !has_concurrency && !has_rate {
            return None;
        }
        let (turn, pace) = (tokio::sync::Mutex::default(), Pace::default());
        let limits = Self { run, server, has_concurrency, has_rate, turn, pace };
        limits.count(|_| ());
        Some(limits)
    }

    /// Calls that may be sent at once by the present lease; `None` if there is no such limit.
    pub(crate) fn places(&self) -> Option<u32> {
        let parts = self.run.leases.0.borrow().parts.get(self.server).copied();
        self.has_concurrency.then(|| parts.map_or(0, |parts| parts.concurrent))
    }

    /// Waits until a call may be sent. It counts until the guard is dropped.
    pub(crate) async fn admit(&self) -> LeasedCall<'_> {
        let _waiting = WaitingCall::new(self);
        let _turn = self.turn.lock().await;
        let mut changes = self.run.leases.0.subscribe();
        let call = loop {
            changes.mark_unchanged();
            if let Some(call) = self.take_place() {
                break call;
            }
            self.wait_for_change(&mut changes).await;
        };
        if self.has_rate {
            self.wait_for_pace(&mut changes).await;
        }
        call
    }

    /// Takes a place among the calls at once, if there is one.
    fn take_place(&self) -> Option<LeasedCall<'_>> {
        let mut is_free = false;
        self.run.leases.0.send_if_modified(|state| {
            let most = state.parts.get(self.server).map_or(0, |parts| parts.concurrent);
            let (in_flight, _) = &mut state.calls[self.server];
            is_free = !self.has_concurrency || *in_flight < most;
            *in_flight += u32::from(is_free);
            false
        });
        is_free.then(|| LeasedCall(self))
    }

    /// Waits for the next start at the rate of the present lease, and takes it. A call that gives up
    /// takes none from those behind it.
    async fn wait_for_pace(&self, changes: &mut watch::Receiver<LeaseState>) {
        let interval = loop {
            let parts = changes.borrow_and_update().parts.get(self.server).copied();
            let rate = parts.map_or(0, |parts| parts.per_minute);
            if rate == 0 {
                self.wait_for_change(changes).await;
                continue;
            }
            let interval = MINUTE / rate;
            let next = self.pace.next_start(Instant::now(), interval);
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next) => break interval,
                () = self.wait_for_change(changes) => {}
            }
        };
        self.pace.take_start(Instant::now(), interval);
    }

    async fn wait_for_change(&self, changes: &mut watch::Receiver<LeaseState>) {
        let changed = changes.changed().await.is_ok();
        debug_assert!(changed, "this holds the sender");
    }

    /// Changes the counts of the server.
    fn count(&self, change: impl FnOnce(&mut (u32, u32))) {
        self.run.leases.0.send_modify(|state| {
            let places = state.calls.len().max(self.server + 1);
            state.calls.resize(places, (0, 0));
            change(&mut state.calls[self.server]);
        });
    }
}

/// A call within a lease.
#[derive(Debug)]
pub(crate) struct LeasedCall<'a>(&'a LeasedLimits);

impl Drop for LeasedCall<'_> {
    fn drop(&mut self) {
        self.0.count(|(in_flight, _)| *in_flight = in_flight.saturating_sub(1));
    }
}

/// A call that waits for the limits.
struct WaitingCall<'a>(&'a LeasedLimits);

impl<'a> WaitingCall<'a> {
    fn new(limits: &'a LeasedLimits) -> Self {
        limits.count(|(_, waiting)| *waiting += 1);
        Self(limits)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.count(|(_, waiting)| *waiting = waiting.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use rollout_protocol::id::RunId;
    use rollout_protocol::spec::gateway::ModelDialect;
    use rollout_protocol::wire::model_leases::LimitParts;

    use super::*;

    const RUN: RunId = RunId::from_bytes([1; 16]);

    fn limits(max_concurrent: Option<u32>, requests_per_minute: Option<u32>) -> LeasedLimits {
        let spec = UpstreamSpec {
            max_concurrent,
            requests_per_minute,
            ..UpstreamSpec::new("main", ModelDialect::Openai, "http://127.0.0.1:1")
        };
        LeasedLimits::new(Arc::new(RunCalls::default()), 0, &spec).expect("limits")
    }

    fn lease(limits: &LeasedLimits, serial: u64, concurrent: u32, per_minute: u32) -> bool {
        limits.run.leases.set(serial, vec![LimitParts { concurrent, per_minute }])
    }

    #[tokio::test]
    async fn calls_wait_for_a_lease_and_leave_their_place() {
        let limits = limits(Some(9), None);
        let mut first = Box::pin(limits.admit());
        assert!(first.as_mut().now_or_never().is_none(), "it has no lease");
        let used = limits.run.leases.used(RUN).expect("a server");
        assert_eq!((used.servers[0].in_flight, used.servers[0].waiting), (0, 1));
        assert!(lease(&limits, 2, 1, 0));
        let first = first.await;
        let mut second = Box::pin(limits.admit());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(!lease(&limits, 1, 9, 0), "an older table has no effect");
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        let second = second.await;
        // A smaller lease lets present calls end.
        assert!(lease(&limits, 3, 0, 0));
        let used = limits.run.leases.used(RUN).expect("a server");
        assert_eq!((used.serial, used.servers[0].in_flight), (3, 1));
        drop(second);
        assert!(limits.admit().now_or_never().is_none());
        assert_eq!(limits.run.leases.used(RUN).expect("a server").servers[0].waiting, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn rate_of_a_lease_spreads_calls() {
        let limits = limits(None, Some(600));
        lease(&limits, 1, 0, 12);
        let began = Instant::now();
        for _ in 0..3 {
            drop(limits.admit().await);
        }
        assert_eq!(began.elapsed().as_secs(), 10);
        lease(&limits, 2, 0, 60);
        for _ in 0..5 {
            drop(limits.admit().await);
        }
        assert!(began.elapsed().as_secs() <= 20, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_gives_up_takes_no_start_of_a_lease() {
        let limits = limits(None, Some(600));
        lease(&limits, 1, 0, 12);
        let began = Instant::now();
        drop(limits.admit().await);
        for _ in 0..100 {
            assert!(limits.admit().now_or_never().is_none(), "the next start is due in 5 s");
        }
        drop(limits.admit().await);
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_waits_for_its_start_uses_the_present_lease() {
        let limits = limits(None, Some(600));
        lease(&limits, 1, 0, 12);
        drop(limits.admit().await);
        let mut next = Box::pin(limits.admit());
        assert!(next.as_mut().now_or_never().is_none());
        lease(&limits, 2, 0, 0);
        assert!(tokio::time::timeout(MINUTE, next.as_mut()).await.is_err(), "it has no rate");
        lease(&limits, 3, 0, 12);
        drop(next.await);
    }
}
