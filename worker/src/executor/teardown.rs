//! Teardown: an environment is preserved for inspection, or removed completely.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_base::supervise::panic_message;
use rollout_environment::{Environment, Failure, FailureKind};

use super::context::with_timeout;

/// Longest time for a stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Longest time for one removal: Docker takes 20 seconds for 200,000 files.
const DESTROY_LIMIT: Duration = Duration::from_secs(300);

/// Pauses before retries of a failed removal.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The result of a teardown.
#[derive(Debug, Default)]
pub(crate) struct TeardownOutcome {
    /// How to enter the environment, when it was preserved.
    pub(crate) preserved: Option<String>,
    /// The first failure.
    pub(crate) failure: Option<Failure>,
}

/// Preserves or removes an environment. One that cannot be preserved is removed.
pub(crate) async fn teardown(environment: &dyn Environment, keep: bool) -> TeardownOutcome {
    if !keep {
        return TeardownOutcome {
            preserved: None,
            failure: destroy_with_retries(environment).await.err(),
        };
    }
    let stopping =
        catch_panic(with_timeout(STOP_LIMIT, "stopping the environment", environment.stop()));
    let mut failure = stopping.await.err();
    let preserving = with_timeout(STOP_LIMIT, "preserving the environment", environment.preserve());
    match catch_panic(preserving).await {
        Ok(way_in) => return TeardownOutcome { preserved: Some(way_in), failure },
        Err(error) => failure = failure.or(Some(error)),
    }
    let destroyed = destroy_with_retries(environment).await.err();
    TeardownOutcome { preserved: None, failure: failure.or(destroyed) }
}

async fn destroy_with_retries(environment: &dyn Environment) -> Result<(), Failure> {
    let mut waits = RETRY_PAUSES.iter();
    loop {
        let removing =
            with_timeout(DESTROY_LIMIT, "removing the environment", environment.destroy());
        let Err(failure) = catch_panic(removing).await else { return Ok(()) };
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
async fn catch_panic<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => Err(Failure::new(FailureKind::Bug, panic_message(panic.as_ref()))),
    }
}
