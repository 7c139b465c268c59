//! `result.json` of a trial.

use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::TrialError;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::record::{
    ArtifactRecord, Durations, EnvironmentRecord, Execution, FormatDoubt, GatewaySummary,
    HarnessRecord, ItemOutcome, LogsRecord, OutputFile, Rewards, Settlement, StepRecord,
    Timestamps, TrialRecord,
};
use rollout_protocol::spec::trial::TrialName;
use serde::{Deserialize, Serialize};

use super::materialize::MaterializeMode;
use crate::results::known_cost;
use crate::results::metrics::TrialScore;
use crate::results::report::TaskFacts;

/// Content of the file.
#[derive(Debug, Serialize)]
pub(super) struct TrialResult<'a> {
    task_name: &'a str,
    dataset_name: &'a str,
    agent_name: &'a str,
    attempt: u32,
    task_git_commit_id: Option<&'a str>,
    /// The task's format and descriptive metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a TaskFacts>,
    reward: Option<f64>,
    /// The verifier's numbers by key, if it reported several.
    #[serde(skip_serializing_if = "Rewards::is_empty")]
    rewards: &'a Rewards,
    /// Whether the reward is 1 and every step was verified.
    passed: bool,
    /// Steps that ran and could not be verified.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    unverified_steps: &'a [String],
    /// Why the guessed format of the task decides the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    format_doubt: Option<FormatDoubt>,
    /// Cost of all executions of the trial; `None` if nothing of it is known.
    cost: Option<f64>,
    /// Whether the cost of some model calls is not known: `cost` is a lower bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cost_is_lower_bound: bool,
    /// With outcome `completed`, an error beside the reward.
    error: Option<&'a TrialError>,
    durations: Durations,
    timestamps: Timestamps,
    #[serde(skip_serializing_if = "Option::is_none")]
    verifier_stdout: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verifier_stderr: Option<&'a str>,
    outcome: ItemOutcome,
    run: RunId,
    item: ItemId,
    #[serde(rename = "try")]
    try_id: Option<TryId>,
    exec: Option<ExecId>,
    /// Digest of everything it ran under: agent, task files and settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<Digest>,
    worker: Option<&'a WorkerId>,
    host: Option<&'a str>,
    environment: Option<&'a EnvironmentRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verifier_environment: Option<&'a EnvironmentRecord>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    steps: &'a [StepRecord],
    secondary_errors: &'a [TrialError],
    outputs: &'a [OutputFile],
    logs: Option<&'a LogsRecord>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    artifacts: &'a [ArtifactRecord],
    /// The result of the harness, if the agent is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    harness: Option<&'a HarnessRecord>,
    /// The calls to model servers, if the job has a gateway.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "known_cost::gateway")]
    gateway: Option<&'a GatewaySummary>,
    superseded: &'a [Execution],
    record: Option<&'a BlobRef>,
    /// The files beside this one; everything when absent.
    #[serde(skip_serializing_if = "MaterializeMode::is_full")]
    materialize: MaterializeMode,
}

impl<'a> TrialResult<'a> {
    /// The result of a settled trial; `record` is its record, if there is one.
    pub(super) fn new(
        run: RunId,
        trial: &'a TrialName,
        settlement: &'a Settlement,
        record: Option<&'a TrialRecord>,
        task: Option<&'a TaskFacts>,
        materialize: MaterializeMode,
    ) -> Self {
        let by = settlement.by.as_ref();
        let score = TrialScore::from_settlement(settlement);
        let durations = record.map(|r| &r.durations).or(by.and_then(|by| by.durations.as_ref()));
        let timestamps = record.map(|r| &r.timestamps).or(by.and_then(|by| by.timestamps.as_ref()));
        Self {
            task_name: &trial.task,
            dataset_name: &trial.dataset,
            agent_name: &trial.agent,
            attempt: trial.attempt,
            task_git_commit_id: settlement.task_commit(record),
            task,
            reward: settlement.verdict.reward,
            rewards: &settlement.verdict.rewards,
            passed: settlement.verdict.passed(),
            unverified_steps: &settlement.verdict.unverified_steps,
            format_doubt: settlement.verdict.format_doubt,
            cost: score.known_cost(),
            cost_is_lower_bound: score.model_use.unpriced_calls > 0,
            error: settlement.verdict.error.as_ref(),
            durations: durations.cloned().unwrap_or_default(),
            timestamps: timestamps
                .cloned()
                .unwrap_or_else(|| Timestamps::instant(settlement.settled_at)),
            verifier_stdout: record.and_then(|r| r.verifier_stdout.as_deref()),
            verifier_stderr: record.and_then(|r| r.verifier_stderr.as_deref()),
            outcome: settlement.verdict.outcome,
            run,
            item: settlement.item,
            try_id: by.map(|by| by.try_id),
            exec: by.map(|by| by.exec),
            spec: record.map(|r| r.spec),
            worker: by.map(|by| &by.worker),
            host: record.map(|r| r.host.as_str()),
            environment: record.and_then(|r| r.environment.as_ref()),
            verifier_environment: record.and_then(|r| r.verifier_environment.as_ref()),
            steps: record.map_or(&[], |r| &r.steps),
            secondary_errors: record.map_or(&[], |r| &r.secondary_errors),
            outputs: record.map_or(&[], |r| &r.outputs),
            logs: record.and_then(|r| r.logs.as_ref()),
            artifacts: record.map_or(&[], |r| &r.artifacts),
            harness: record.and_then(|r| r.harness.as_deref()),
            gateway: record.and_then(|r| r.gateway.as_deref()),
            superseded: &settlement.superseded,
            record: by.and_then(|by| by.record.as_ref()),
            materialize,
        }
    }
}

/// The part of the file that identifies the settlement.
#[derive(Debug, Deserialize)]
pub(super) struct ResultOwner {
    run: RunId,
    item: ItemId,
    exec: Option<ExecId>,
    outcome: ItemOutcome,
    reward: Option<f64>,
    #[serde(default)]
    materialize: MaterializeMode,
}

impl ResultOwner {
    /// Whether the file holds a result of an item, whichever execution settled it.
    pub(super) fn is_of_item(&self, run: RunId, item: ItemId) -> bool {
        (self.run, self.item) == (run, item)
    }

    /// Whether the file holds the result of a settlement, beside at least the files of a mode.
    pub(super) fn is_of(&self, run: RunId, settlement: &Settlement, mode: MaterializeMode) -> bool {
        let Self { item, exec, outcome, reward, .. } = *self;
        let verdict = &settlement.verdict;
        let equal = |a: f64, b: f64| (a - b).abs() <= f64::EPSILON * a.abs().max(b.abs());
        let same_reward = match (reward, verdict.reward) {
            (Some(a), Some(b)) => equal(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let by = settlement.by.as_ref().map(|by| by.exec);
        self.materialize >= mode
            && same_reward
            && (self.run, item, exec, outcome) == (run, settlement.item, by, verdict.outcome)
    }
}
