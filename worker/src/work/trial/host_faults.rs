//! Trials that did not pass while this host failed: something removed their environment, the proxy of its
//! allowed hosts failed, or a disk was full.

use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::spec::budget::ModelUse;

use super::run::{TrialRun, is_trial_error};
use crate::executor::FaultedExecution;

impl TrialRun<'_> {
    /// Makes a fault of this host the error of a trial that did not pass meanwhile. Must be called before
    /// the environments are removed, so that they are found and their storage can be measured.
    pub(super) async fn blame_host(&mut self) {
        let verdict = self.verdict(0.0, ModelUse::default());
        let error = verdict.error.as_ref().filter(|error| is_trial_error(error));
        let doubtful = match verdict.outcome {
            ItemOutcome::Completed => !verdict.passed(),
            ItemOutcome::Failed => !error.is_some_and(TrialError::is_retryable),
            _ => false,
        };
        if error.is_some_and(|error| error.code == ErrorCode::STORAGE_EXCEEDED) {
            return;
        }
        let second = self.verifier_environment.as_deref();
        let fault = match verdict.outcome {
            _ if doubtful => self.attempt.environment_fault(second).await,
            // A verifier that passed may have judged less than a failed hook was to leave.
            ItemOutcome::Completed => self.hook_fault.take(),
            _ => None,
        };
        if let Some(fault) = fault {
            let reward = self.withdrawn_reward();
            let error = fault.error(self.faulted(ErrorType::VerifierFailed, &reward));
            return self.attempt.record_first_error(error);
        }
        if !doubtful {
            return;
        }
        let (captures, second) = (self.outputs.captures(), self.verifier_environment.as_deref());
        let detected = self.attempt.full_disk(self.services, captures, second).await;
        let Some(disk) = detected else { return };
        let otherwise = if !disk.is_own_excess() {
            ErrorType::VerifierFailed
        } else if verdict.outcome == ItemOutcome::Completed {
            // The reward stands: the agent itself filled the disk.
            return;
        } else {
            ErrorType::AgentExecutionFailed
        };
        let reward = self.withdrawn_reward();
        let error = disk.error(self.faulted(otherwise, &reward));
        self.attempt.record_first_error(error);
    }

    /// The trial, whose error has the type `otherwise` and ends with `without_cause` if it is the first.
    fn faulted<'a>(&'a self, otherwise: ErrorType, without_cause: &'a str) -> FaultedExecution<'a> {
        FaultedExecution {
            work: "trial",
            cause: self.attempt.first_error.as_ref(),
            otherwise,
            without_cause,
            redactor: &self.attempt.redactor,
        }
    }

    /// Takes the reward away. Returns the end of a message that says so, if there was one.
    fn withdrawn_reward(&mut self) -> String {
        let Some(score) = self.score.take() else { return String::new() };
        let reward = score.reward.map_or_else(|| "no reward".into(), |r| r.to_string());
        format!(", so its reward of {reward} does not count")
    }
}
