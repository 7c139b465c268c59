//! Teardown: the environment is kept for a person, or nothing of it is left.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_protocol::error::{ErrorType, TrialError};
use rollout_protocol::record::Verdict;
use rollout_protocol::spec::environment::PreservePolicy;

use super::within;
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

/// Whether an environment is kept: by policy, and `on_failure` unless the trial passed or ran
/// unverified to its end. An error of the teardown itself is no failure of the trial.
pub(super) fn should_preserve(
    policy: PreservePolicy,
    verdict: &Verdict,
    verifier_disabled: bool,
) -> bool {
    match policy {
        PreservePolicy::Never => false,
        PreservePolicy::Always => true,
        PreservePolicy::OnFailure => {
            let failed = |error: &TrialError| error.kind != ErrorType::EnvironmentTeardownFailed;
            verdict.error.as_ref().is_some_and(failed) || !(verifier_disabled || verdict.passed())
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_protocol::error::ErrorCode;
    use rollout_protocol::record::Outcome;

    fn verdict(outcome: Outcome, reward: Option<f64>, error: Option<ErrorType>) -> Verdict {
        let error = error.map(|kind| TrialError::transient(kind, ErrorCode::BUG, "x"));
        Verdict { outcome, reward, error, ..Verdict::cancelled(0.0) }
    }

    #[test]
    fn on_failure_keeps_what_did_not_pass() {
        use ErrorType::{AgentExecutionFailed, EnvironmentTeardownFailed};
        use Outcome::{Completed, Failed, Unverified};
        for (outcome, reward, error, disabled, kept) in [
            (Completed, Some(1.0), None, false, false),
            (Completed, Some(0.0), None, false, true),
            (Completed, Some(0.5), None, false, true),
            (Completed, Some(2.0), None, false, true),
            (Completed, Some(1.0), Some(EnvironmentTeardownFailed), false, false),
            (Completed, Some(0.0), Some(EnvironmentTeardownFailed), false, true),
            (Failed, None, Some(AgentExecutionFailed), false, true),
            (Failed, None, Some(AgentExecutionFailed), true, true),
            (Failed, None, None, false, true),
            (Unverified, None, None, true, false),
            (Unverified, None, Some(EnvironmentTeardownFailed), true, false),
        ] {
            let verdict = verdict(outcome, reward, error);
            let decide = |policy| should_preserve(policy, &verdict, disabled);
            assert_eq!(decide(PreservePolicy::OnFailure), kept, "{verdict:?}");
            assert!(decide(PreservePolicy::Always) && !decide(PreservePolicy::Never));
        }
    }
}
