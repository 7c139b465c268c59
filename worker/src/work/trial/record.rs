//! The record of a finished execution.

use rollout_protocol::error::{ErrorClass, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, Rewards, TrialRecord, Verdict};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::version::RUN_FORMAT;

use super::failure;
use super::run::{TrialRun, is_trial_error};
use super::score::VerifierScore;
use super::step::StepRun;
use crate::executor::{FileRole, Finished, RecordFile, errors};

impl TrialRun<'_> {
    /// The verdict so far.
    pub(super) fn verdict(&self, cost: f64, model_use: ModelUse) -> Verdict {
        let outcome = if self.score.is_some() {
            ItemOutcome::Completed
        } else if self.ctx.settings.verifier.disable
            && !self.attempt.first_error.as_ref().is_some_and(is_trial_error)
        {
            ItemOutcome::Unverified
        } else {
            ItemOutcome::Failed
        };
        let VerifierScore { reward, rewards } = self.score.clone().unwrap_or_default();
        let unverified_steps = match outcome {
            ItemOutcome::Completed => self.unverified_steps(),
            ItemOutcome::Failed | ItemOutcome::Cancelled | ItemOutcome::Unverified => Vec::new(),
        };
        Verdict {
            outcome,
            reward,
            rewards,
            cost,
            error: self.cause(),
            unverified_steps,
            harness: self.harness.as_ref().map(|harness| Box::new(harness.summary())),
            model_use,
            format_doubt: self.format_doubt(),
        }
    }

    /// The first cause of failure.
    fn cause(&self) -> Option<TrialError> {
        let error = self.attempt.first_error.clone()?;
        let is_of_task = error.class == ErrorClass::Task && !error.is_unsupported();
        Some(TrialError { before_agent: is_of_task && !self.agent_began, ..error })
    }

    /// Cost of all its environments.
    fn cost(&self) -> f64 {
        let environments = [Some(&self.attempt.environment), self.verifier_environment.as_deref()];
        let costs = environments.map(|environment| self.environment_cost(environment));
        self.removed_cost + costs.iter().sum::<f64>()
    }

    /// The verdict at the end; `models` is what its model calls used.
    fn final_verdict(&mut self, stopped: bool, models: ModelUse) -> Verdict {
        let mut verdict = self.verdict(self.cost() + models.cost, models);
        if stopped {
            verdict.outcome = ItemOutcome::Cancelled;
            verdict.reward = None;
            verdict.rewards = Rewards::new();
            verdict.unverified_steps = Vec::new();
            verdict.format_doubt = None;
        } else if verdict.outcome == ItemOutcome::Failed && verdict.error.is_none() {
            let phase = Phase::Verification;
            let why = "it ended without a reward and without an error";
            verdict.error = Some(errors::panicked(why, phase, &self.attempt.redactor));
        } else if verdict.outcome == ItemOutcome::Completed && verdict.error.is_none() {
            verdict.error = self.take_hook_failure();
        }
        verdict
    }

    /// The first failure of a collect hook, which is named beside a reward: the agent may be its cause,
    /// and the verifier may have judged less than the task wants to keep.
    fn take_hook_failure(&mut self) -> Option<TrialError> {
        let errors = &mut self.attempt.secondary_errors;
        let at = errors.iter().position(failure::is_of_hook)?;
        Some(errors.remove(at))
    }

    /// The record and its files; `stopped` names the phase that a stop ended.
    pub(super) async fn into_finished(mut self, stopped: Option<Phase>) -> Finished<TrialRecord> {
        self.settle_survived();
        let refused_hosts = self.refused_hosts_file().await;
        let outputs = self.outputs.finish(&self.attempt.redactor).await;
        for (why, shortage) in outputs.failures {
            self.attempt.secondary_errors.push(errors::output_lost(
                &why,
                shortage,
                &self.attempt.redactor,
            ));
        }
        let (durations, timestamps) = self.attempt.timing.finish();
        let models = self.models.finish("").await;
        let verdict = self.final_verdict(stopped.is_some(), models.used);
        let (ctx, labels) = (self.ctx, &self.ctx.execution.labels);
        let mut files = outputs.files;
        files.extend(self.logs.map(|logs| RecordFile::archive(logs, FileRole::Logs)));
        files.extend(self.step_logs);
        files.extend(self.artifacts.files);
        files.extend(self.harness_files);
        files.extend(models.files);
        files.extend(refused_hosts);
        if stopped.is_some() && !self.attempt.environment.was_created() {
            // The trial runs again, and without an environment there is nothing to keep.
            files.clear();
            self.attempt.secondary_errors.clear();
        }
        let record = TrialRecord {
            format: RUN_FORMAT,
            run: labels.run,
            item: labels.item,
            try_id: labels.try_id,
            exec: labels.exec,
            worker: labels.worker.clone(),
            host: self.services.host.clone(),
            trial: TrialName {
                agent: ctx.agent.name.clone(),
                dataset: ctx.task.dataset.clone(),
                task: ctx.task.name.clone(),
                attempt: ctx.attempt,
            },
            spec: ctx.execution.spec,
            task_git_commit_id: ctx.task.git_commit_id.clone(),
            verdict,
            secondary_errors: self.attempt.secondary_errors,
            durations,
            timestamps,
            environment: self.attempt.environment.record,
            outputs: Vec::new(),
            logs: None,
            verifier_stdout: outputs.verifier_stdout,
            verifier_stderr: outputs.verifier_stderr,
            artifacts: self.artifacts.records,
            steps: self.steps.into_iter().map(StepRun::into_record).collect(),
            verifier_environment: self
                .verifier_environment
                .map_or(self.verifier_record, |environment| environment.record),
            harness: self.harness,
            gateway: models.summary,
        };
        Finished { record, files, stopped }
    }
}
