//! Teardown: the environment is kept for a person, or nothing of it is left.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;

use super::context::within;
use crate::environment::{Environment, Failure, FailureKind};
use crate::supervise::panic_message;

/// Longest a stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Longest one removal may take: 200,000 files take Docker 20 seconds.
const DESTROY_LIMIT: Duration = Duration::from_secs(300);

/// Waits before removals that follow one that failed.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// What became of an environment.
#[derive(Debug, Default)]
pub(crate) struct Torn {
    /// How to get into it, when it was kept.
    pub(crate) preserved: Option<String>,
    /// What went wrong.
    pub(crate) failure: Option<Failure>,
}

/// Keeps or removes an environment. What cannot be kept is removed.
pub(crate) async fn teardown(environment: &dyn Environment, keep: bool) -> Torn {
    if !keep {
        return Torn { preserved: None, failure: destroy(environment).await.err() };
    }
    let stopping = guarded(within(STOP_LIMIT, "stopping the environment", environment.stop()));
    let mut failure = stopping.await.err();
    let preserving = within(STOP_LIMIT, "preserving the environment", environment.preserve());
    match guarded(preserving).await {
        Ok(way_in) => return Torn { preserved: Some(way_in), failure },
        Err(error) => failure = failure.or(Some(error)),
    }
    let destroyed = destroy(environment).await.err();
    Torn { preserved: None, failure: failure.or(destroyed) }
}

async fn destroy(environment: &dyn Environment) -> Result<(), Failure> {
    let mut waits = AGAIN.iter();
    loop {
        let removing = within(DESTROY_LIMIT, "removing the environment", environment.destroy());
        let Err(failure) = guarded(removing).await else { return Ok(()) };
        let hopeless = matches!(
            failure.kind,
            FailureKind::Refused | FailureKind::Unsupported | FailureKind::NotPermitted
        );
        match waits.next() {
            Some(wait) if !hopeless => tokio::time::sleep(*wait).await,
            _ => return Err(failure),
        }
    }
}

/// A panic in a provider must not keep its environment alive.
async fn guarded<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => Err(Failure::new(FailureKind::Bug, panic_message(panic.as_ref()))),
    }
}
