//! Injected faults: which calls of the fake provider fail, hang or panic.

use std::time::Duration;

use super::FakeProvider;
use crate::{Failure, FailureKind};

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FakeCall {
    /// [`Provider::prepare`](crate::Provider::prepare).
    Prepare,
    /// [`Provider::prepare_services`](crate::Provider::prepare_services) of an environment
    /// that has services.
    PrepareServices,
    /// [`Provider::create`](crate::Provider::create).
    Create,
    /// [`Environment::copy_to`](crate::Environment::copy_to).
    CopyTo,
    /// [`Environment::copy_from`](crate::Environment::copy_from).
    CopyFrom,
    /// [`Environment::exec`](crate::Environment::exec).
    Exec,
    /// [`Environment::kill_processes`](crate::Environment::kill_processes).
    Kill,
    /// [`Environment::set_network`](crate::Environment::set_network).
    SetNetwork,
    /// [`Environment::oom_killed`](crate::Environment::oom_killed).
    OomKilled,
    /// [`Environment::stop`](crate::Environment::stop).
    Stop,
    /// [`Environment::destroy`](crate::Environment::destroy).
    Destroy,
    /// [`Environment::preserve`](crate::Environment::preserve).
    Preserve,
}

/// An injected fault.
#[derive(Debug, Clone, Copy)]
pub struct FakeFault {
    /// The calls that it hits, counted from 0.
    pub at: FaultTrigger,
    /// Its effect on them.
    pub effect: FaultEffect,
}

/// Which calls a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultTrigger {
    /// The n-th call of any kind.
    Any(usize),
    /// The n-th call of one kind.
    Nth(FakeCall, usize),
    /// Every call of one kind.
    Every(FakeCall),
}

/// Effect of a fault on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEffect {
    /// It fails and does nothing.
    Fail(FailureKind),
    /// It takes effect, but returns a failure.
    FailAfterwards(FailureKind),
    /// It never returns.
    Hang,
    /// It takes effect, but never returns.
    HangAfterwards,
    /// It panics.
    Panic,
    /// It takes effect, but not before this time.
    Delay(Duration),
}

impl FakeProvider {
    /// Adds a fault.
    pub fn fault(&self, at: FaultTrigger, effect: FaultEffect) {
        self.lock().faults.push(FakeFault { at, effect });
    }

    /// Every call so far, in order.
    pub fn calls(&self) -> Vec<FakeCall> {
        self.lock().calls.clone()
    }

    /// Records a call and runs it unless a fault hits it.
    pub(super) async fn call<T>(
        &self,
        call: FakeCall,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match self.begin(call) {
            None => work.await,
            Some(FaultEffect::Fail(kind)) => Err(failure(call, kind)),
            Some(FaultEffect::FailAfterwards(kind)) => {
                work.await?;
                Err(failure(call, kind))
            }
            Some(FaultEffect::Hang) => std::future::pending().await,
            Some(FaultEffect::HangAfterwards) => {
                work.await?;
                std::future::pending().await
            }
            Some(FaultEffect::Delay(time)) => {
                tokio::time::sleep(time).await;
                work.await
            }
            Some(FaultEffect::Panic) => panic!("{call:?} panicked as it was told to"),
        }
    }

    fn begin(&self, call: FakeCall) -> Option<FaultEffect> {
        let mut state = self.lock();
        let any = state.calls.len();
        let nth = state.calls.iter().filter(|c| **c == call).count();
        state.calls.push(call);
        let hits = |at: FaultTrigger| match at {
            FaultTrigger::Any(n) => n == any,
            FaultTrigger::Nth(kind, n) => kind == call && n == nth,
            FaultTrigger::Every(kind) => kind == call,
        };
        state.faults.iter().find(|fault| hits(fault.at)).map(|fault| fault.effect)
    }
}

fn failure(call: FakeCall, kind: FailureKind) -> Failure {
    Failure::new(kind, format!("{call:?} failed as it was told to"))
}
