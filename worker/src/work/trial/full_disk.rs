//! Trials that did not pass while a disk of this host was full.

use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::spec::budget::ModelUse;

use super::run::{TrialRun, is_trial_error};

impl TrialRun<'_> {
    /// Makes a full disk of this host the error of a trial that did not pass meanwhile. Must be
    /// called while the environments still exist, so that their storage can be measured.
    pub(super) async fn blame_disk(&mut self) {
        let verdict = self.verdict(0.0, ModelUse::default());
        let error = verdict.error.as_ref().filter(|error| is_trial_error(error));
        let doubtful = match verdict.outcome {
            ItemOutcome::Completed => !verdict.passed(),
            ItemOutcome::Failed => !error.is_some_and(TrialError::is_retryable),
            _ => false,
        };
        if !doubtful || error.is_some_and(|error| error.code == ErrorCode::STORAGE_EXCEEDED) {
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
        let reward = self.score.take().map(|score| {
            let reward = score.reward.map_or_else(|| "no reward".into(), |r| r.to_string());
            format!(", so its reward of {reward} does not count")
        });
        let (cause, reward) = (self.attempt.first_error.as_ref(), reward.unwrap_or_default());
        let error = disk.into_error("trial", cause, otherwise, &reward, &self.attempt.redactor);
        self.attempt.record_first_error(error);
    }
}
