//! Whether the environments of a trial are preserved.

use rollout_protocol::error::{ErrorType, TrialError};
use rollout_protocol::record::Verdict;
use rollout_protocol::spec::environment::PreservePolicy;

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

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_protocol::error::ErrorCode;
    use rollout_protocol::record::ItemOutcome;

    fn verdict(outcome: ItemOutcome, reward: Option<f64>, error: Option<ErrorType>) -> Verdict {
        let error = error.map(|kind| TrialError::transient(kind, ErrorCode::BUG, "x"));
        Verdict { outcome, reward, error, ..Verdict::cancelled(0.0) }
    }

    #[test]
    fn preserve_on_failure_keeps_environment_of_failed_trial() {
        use ErrorType::{AgentExecutionFailed, EnvironmentTeardownFailed};
        use ItemOutcome::{Completed, Failed, Unverified};
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
