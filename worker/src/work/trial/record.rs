//! The record of a finished execution.

use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, Rewards, TrialRecord, Verdict};
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::version::RUN_FORMAT;

use super::run::{TrialRun, is_trial_error};
use super::score::VerifierScore;
use super::step::StepRun;
use crate::executor::{FileRole, Finished, RecordFile, errors};

impl TrialRun<'_> {
    /// The verdict so far.
    pub(super) fn verdict(&self, cost: f64) -> Verdict {
        let outcome = if self.score.is_some() {
            ItemOutcome::Completed
        } else if self.ctx.settings.verifier.disable
            && !self.attempt.first.as_ref().is_some_and(is_trial_error)
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
            error: self.attempt.first.clone(),
            unverified_steps,
        }
    }

    /// The record and its files; `stopped` names the phase that a stop ended.
    pub(super) fn into_finished(mut self, stopped: Option<Phase>) -> Finished<TrialRecord> {
        self.settle_survived();
        let kept = self.outputs.finish();
        for (why, shortage) in kept.failures {
            self.attempt.later.push(errors::output_lost(&why, shortage, &self.attempt.redactor));
        }
        let (durations, timestamps) = self.attempt.timing.finish();
        let sites = [Some(&self.attempt.environment), self.apart.as_deref()];
        let cost = self.spent + sites.map(|site| self.environment_cost(site)).iter().sum::<f64>();
        let mut verdict = self.verdict(cost);
        if stopped.is_some() {
            verdict = Verdict {
                outcome: ItemOutcome::Cancelled,
                reward: None,
                rewards: Rewards::new(),
                unverified_steps: Vec::new(),
                ..verdict
            };
        } else if verdict.outcome == ItemOutcome::Failed && verdict.error.is_none() {
            let phase = Phase::Verification;
            let why = "it ended without a reward and without an error";
            verdict.error = Some(errors::panicked(why, phase, &self.attempt.redactor));
        }
        let (ctx, labels) = (self.ctx, &self.ctx.execution.labels);
        let mut files = kept.files;
        files.extend(self.logs.map(|logs| RecordFile::archive(logs, FileRole::Logs)));
        files.extend(self.step_logs);
        files.extend(self.artifacts.files);
        if stopped.is_some() && !self.attempt.environment.was_created() {
            // The trial runs again, and without an environment there is nothing to keep.
            files.clear();
            self.attempt.later.clear();
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
            secondary_errors: self.attempt.later,
            durations,
            timestamps,
            environment: self.attempt.environment.record,
            outputs: Vec::new(),
            logs: None,
            verifier_stdout: kept.verifier_stdout,
            verifier_stderr: kept.verifier_stderr,
            artifacts: self.artifacts.records,
            steps: self.steps.into_iter().map(StepRun::into_record).collect(),
            verifier_environment: self.apart.map_or(self.apart_record, |site| site.record),
        };
        Finished { record, files, stopped }
    }
}
