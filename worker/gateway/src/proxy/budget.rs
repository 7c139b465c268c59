//! The budget of an execution: what its model calls used, and what those in flight may still use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_protocol::spec::budget::{ModelUse, TryBudget};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Measures the model calls of an execution, and refuses those that its budget does not cover.
#[derive(Debug)]
pub(crate) struct BudgetMeter {
    budget: Option<TryBudget>,
    state: Mutex<MeterState>,
    /// Notified when a call has ended.
    ended: Notify,
}

#[derive(Debug)]
struct MeterState {
    /// Use of ended calls, with the time of all calls until `measured_at`.
    used: ModelUse,
    /// Amounts that open calls reserved.
    reserved: ModelUse,
    open: u32,
    measured_at: Instant,
    /// The limit that was exceeded first, in words.
    exceeded: Option<String>,
}

impl BudgetMeter {
    /// A meter at zero.
    pub(crate) fn new(budget: Option<TryBudget>) -> Self {
        let state = MeterState {
            used: ModelUse::default(),
            reserved: ModelUse::default(),
            open: 0,
            measured_at: Instant::now(),
            exceeded: None,
        };
        Self { budget, state: Mutex::new(state), ended: Notify::new() }
    }

    /// The budget, if there is one.
    pub(crate) const fn budget(&self) -> Option<&TryBudget> {
        self.budget.as_ref()
    }

    /// The present state, with the time that has passed.
    fn state(&self) -> MutexGuard<'_, MeterState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.used.sec += f64::from(state.open) * (now - state.measured_at).as_secs_f64();
        state.measured_at = now;
        state
    }

    /// Reserves what a call may use. Waits for open calls if what they do not use could cover it.
    ///
    /// # Errors
    /// The exceeded limit, in words.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        estimate: ModelUse,
    ) -> Result<Reservation, String> {
        loop {
            let ended = self.ended.notified();
            if let Some(decided) = self.try_reserve(estimate) {
                return decided;
            }
            ended.await;
        }
    }

    /// `None` while open calls must end first.
    fn try_reserve(self: &Arc<Self>, estimate: ModelUse) -> Option<Result<Reservation, String>> {
        let mut state = self.state();
        if let Some(budget) = &self.budget {
            if let Some(exceeded) = &state.exceeded {
                return Some(Err(exceeded.clone()));
            }
            let needed = state.used.plus(estimate);
            if let Some(exceeded) = budget.limits.exceeded_by(needed) {
                let exceeded = format!("the next call may lead to {exceeded}");
                state.exceeded = Some(exceeded.clone());
                return Some(Err(exceeded));
            }
            budget.limits.exceeded_by(needed.plus(state.reserved)).is_none().then_some(())?;
        }
        state.reserved = state.reserved.plus(estimate);
        state.open += 1;
        drop(state);
        Some(Ok(Reservation { meter: Arc::clone(self), estimate, used: Some(ModelUse::default()) }))
    }

    /// Counts what an open call reserved as used, and leaves it reserved; whether the limits cover that.
    fn renew(&self, estimate: ModelUse) -> bool {
        // It is one call, however often it is sent.
        let again = ModelUse { calls: 0, sec: 0.0, ..estimate };
        let mut state = self.state();
        let needed = state.used.plus(state.reserved).plus(again);
        let limits = self.budget.as_ref().map(|budget| &budget.limits);
        if limits.is_some_and(|limits| limits.exceeded_by(needed).is_some()) {
            return false;
        }
        state.used = state.used.plus(again);
        true
    }

    fn end(&self, estimate: ModelUse, used: ModelUse) {
        let mut state = self.state();
        state.reserved = state.reserved.minus(estimate);
        state.used = state.used.plus(used);
        state.open = state.open.saturating_sub(1);
        drop(state);
        self.ended.notify_waiters();
    }

    /// The limit that was exceeded, in words.
    pub(crate) fn exceeded(&self) -> Option<String> {
        let budget = self.budget.as_ref()?;
        let mut state = self.state();
        if state.exceeded.is_none() {
            state.exceeded = budget.limits.exceeded_by(state.used);
        }
        state.exceeded.clone()
    }

    /// Use of all calls so far.
    pub(crate) fn used(&self) -> ModelUse {
        self.state().used
    }
}

/// Amounts that an open call reserved. The call counts when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    meter: Arc<BudgetMeter>,
    estimate: ModelUse,
    /// Its use; the estimate if that is not known.
    used: Option<ModelUse>,
}

impl Reservation {
    /// Sets what the call used; `None` if it was sent and that is not known.
    pub(crate) fn set_used(&mut self, used: Option<ModelUse>) {
        self.used = used;
    }

    /// Counts what it reserved as used, and reserves the same for another sending; whether the budget covers
    /// that. Does not wait for open calls, as one of them may wait for this one.
    pub(crate) fn renew(&mut self) -> bool {
        self.meter.renew(self.estimate)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let used = ModelUse { sec: 0.0, ..self.used.unwrap_or(self.estimate) };
        self.meter.end(self.estimate, used);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use rollout_protocol::spec::budget::BudgetLimits;

    use super::*;

    fn meter(limits: BudgetLimits) -> Arc<BudgetMeter> {
        Arc::new(BudgetMeter::new(Some(TryBudget { limits, output_reserve: 10 })))
    }

    fn call(tokens: u64) -> ModelUse {
        ModelUse { calls: 1, tokens, ..ModelUse::default() }
    }

    #[tokio::test]
    async fn call_that_the_rest_does_not_cover_is_refused_and_so_are_all_later_ones() {
        let meter = meter(BudgetLimits { tokens: Some(100), ..BudgetLimits::default() });
        let mut first = meter.reserve(call(60)).await.expect("covered");
        first.set_used(Some(call(50)));
        drop(first);
        assert_eq!(meter.used().tokens, 50);
        let refused = meter.reserve(call(51)).await.expect_err("not covered");
        assert_eq!(refused, "the next call may lead to 101 of 100 tokens");
        assert!(meter.reserve(call(1)).await.is_err(), "the execution ends");
        assert_eq!(meter.exceeded(), Some(refused));
    }

    #[tokio::test]
    async fn concurrent_calls_share_the_rest_and_wait_for_what_others_do_not_use() {
        let meter = meter(BudgetLimits { tokens: Some(100), ..BudgetLimits::default() });
        let mut first = meter.reserve(call(80)).await.expect("covered");
        let mut second = Box::pin(meter.reserve(call(40)));
        assert!(second.as_mut().now_or_never().is_none(), "it waits");
        first.set_used(Some(call(10)));
        drop(first);
        drop(second.await.expect("covered"));
        assert_eq!(meter.used().tokens, 10, "a call that was not sent used nothing");
        assert_eq!(meter.exceeded(), None);
    }

    #[tokio::test]
    async fn call_of_unknown_use_counts_as_its_estimate_and_longer_reply_ends_the_budget() {
        let meter = meter(BudgetLimits { tokens: Some(100), ..BudgetLimits::default() });
        let mut cut = meter.reserve(call(30)).await.expect("covered");
        cut.set_used(None);
        drop(cut);
        assert_eq!((meter.used().calls, meter.used().tokens), (1, 30));
        let mut long = meter.reserve(call(20)).await.expect("covered");
        long.set_used(Some(call(90)));
        drop(long);
        assert_eq!(meter.exceeded().as_deref(), Some("120 of 100 tokens"));
    }

    #[tokio::test]
    async fn call_that_is_sent_again_reserves_again_only_what_the_rest_covers() {
        let meter = meter(BudgetLimits { tokens: Some(100), ..BudgetLimits::default() });
        let mut cut = meter.reserve(call(40)).await.expect("covered");
        assert!(cut.renew());
        assert_eq!((meter.used().calls, meter.used().tokens), (0, 40));
        let beside = meter.reserve(call(10)).await.expect("covered");
        assert!(!cut.renew(), "130 of 100 tokens");
        drop(beside);
        cut.set_used(Some(call(5)));
        drop(cut);
        assert_eq!((meter.used().calls, meter.used().tokens), (1, 45));
        assert_eq!(meter.exceeded(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn time_of_open_calls_is_added_up_while_they_run() {
        let meter = meter(BudgetLimits { sec: Some(30.0), ..BudgetLimits::default() });
        let first = meter.reserve(call(1)).await.expect("covered");
        let second = meter.reserve(call(1)).await.expect("covered");
        tokio::time::advance(Duration::from_secs(10)).await;
        drop(first);
        assert_eq!(meter.exceeded(), None);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(meter.exceeded().as_deref(), Some("31.0 of 30 s of model calls"));
        drop(second);
        let unlimited = Arc::new(BudgetMeter::new(None));
        drop(unlimited.reserve(call(u64::MAX)).await.expect("covered"));
        assert_eq!(unlimited.exceeded(), None);
    }
}
