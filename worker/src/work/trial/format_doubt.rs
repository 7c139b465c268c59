//! Verdicts that depend on the format of a task, where the format is a guess.

use rollout_protocol::error::ErrorClass;
use rollout_protocol::record::FormatDoubt;
use rollout_protocol::spec::task::{AfterAgentError, ScriptRules, TestExit};

use super::run::TrialRun;
use super::score::VerifierScore;

impl TrialRun<'_> {
    /// Whether the test script failed, but its reward counts in the other format.
    pub(super) fn is_exit_in_doubt(&self) -> bool {
        let other = self.ctx.task.other_rules;
        self.fails(self.ctx.task.rules) && other.is_some_and(|rules| !self.fails(rules))
    }

    /// Whether the exit code of the test script is a failure.
    fn fails(&self, rules: ScriptRules) -> bool {
        rules.test_exit == TestExit::MustBeZero && self.test_exit != 0
    }

    /// Compares the score of a verification with that under the other format. A failure is worth as
    /// much as a reward of 0.
    pub(super) fn compare_formats(
        &mut self,
        score: Option<&VerifierScore>,
        other: Option<VerifierScore>,
    ) {
        let Some(other_rules) = self.ctx.task.other_rules else { return };
        let other = other.filter(|_| !self.fails(other_rules));
        let differs = match (score, &other) {
            (None, None) => false,
            (Some(score), Some(other)) => score.reward != other.reward,
            (Some(lone), None) | (None, Some(lone)) => lone.reward != Some(0.0),
        };
        if differs {
            let by_exit = self.fails(self.ctx.task.rules) != self.fails(other_rules);
            let doubt = if by_exit { FormatDoubt::TestExit } else { FormatDoubt::RewardFiles };
            self.score_doubt.get_or_insert(doubt);
        }
    }

    /// Why the verdict depends on the format of the task, if it is a guess.
    pub(super) fn format_doubt(&self) -> Option<FormatDoubt> {
        let (rules, other) = (self.ctx.task.rules, self.ctx.task.other_rules?);
        let error = self.attempt.first_error.as_ref();
        let is_lost = error.is_some_and(|error| error.class == ErrorClass::Infrastructure);
        if self.score.is_none() && is_lost || self.ctx.settings.verifier.disable {
            return None;
        }
        let decides = match rules.after_agent_error {
            AfterAgentError::EndTrial => true,
            AfterAgentError::Verify => {
                self.score.as_ref().is_some_and(|score| score.reward != Some(0.0))
            }
        };
        if self.agent_failed && decides && rules.after_agent_error != other.after_agent_error {
            return Some(FormatDoubt::AgentError);
        }
        self.score_doubt
    }
}
