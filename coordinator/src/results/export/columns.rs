//! The columns of the row formats. Add new columns only at the end.

use rollout_protocol::error::TrialError;
use rollout_protocol::harness::Objective;
use rollout_protocol::id::RunId;
use rollout_protocol::record::{Durations, HarnessSummary, Timestamps};
use rollout_protocol::spec::task::TaskFormat;
use serde_json::{Value, json};

use super::source::SettledTrial;
use crate::results::metrics::{TrialScore, total_cost};
use crate::results::rows::{Column, Table, columns};

/// A row: one settled trial.
pub(super) struct ExportRow<'a> {
    run: RunId,
    job: &'a str,
    pub(super) trial: &'a SettledTrial,
    score: TrialScore,
    durations: Option<&'a Durations>,
    timestamps: Option<&'a Timestamps>,
}

impl<'a> ExportRow<'a> {
    /// The row of a trial.
    pub(super) fn new(run: RunId, job: &'a str, trial: &'a SettledTrial) -> Self {
        let (settlement, record) = (&trial.settlement, trial.record.as_ref());
        let by = settlement.by.as_ref();
        let reported = by.and_then(|by| by.durations.as_ref());
        let seen = by.and_then(|by| by.timestamps.as_ref());
        Self {
            run,
            job,
            trial,
            score: TrialScore::from_settlement(settlement),
            durations: record.map(|record| &record.durations).or(reported),
            timestamps: record.map(|record| &record.timestamps).or(seen),
        }
    }

    fn error(&self) -> Option<&'a TrialError> {
        self.trial.settlement.verdict.error.as_ref()
    }

    fn harness(&self) -> Option<&'a HarnessSummary> {
        self.trial.settlement.verdict.harness.as_deref()
    }

    fn objective(&self) -> Option<&'a Objective> {
        self.harness()?.objective.as_ref()
    }
}

/// The rows of exports.
pub(super) struct ExportTable;

impl Table for ExportTable {
    const NAME: &'static str = "trial";
    type Row<'a> = ExportRow<'a>;
    const COLUMNS: &'static [Column<Self>] = COLUMNS;
}

/// Every column, in order.
pub(super) const COLUMNS: &[Column<ExportTable>] = columns! {
    "run": Text = |row| Some(row.run.to_string());
    "job_name": Text = |row| Some(row.job);
    "item": Text = |row| Some(row.trial.settlement.item.to_string());
    "agent_name": Text = |row| Some(row.trial.name.agent.as_str());
    "dataset_name": Text = |row| Some(row.trial.name.dataset.as_str());
    "task_name": Text = |row| Some(row.trial.name.task.as_str());
    "attempt": Integer = |row| Some(row.trial.name.attempt);
    "outcome": Text = |row| Some(row.trial.settlement.verdict.outcome.as_str());
    "reward": Number = |row| row.score.reward;
    "rewards": Json = |row| rewards(row);
    "error_type": Text = |row| row.error().map(|error| error.kind.as_str());
    "error_code": Text = |row| row.error().map(|error| error.code.as_str());
    "error_class": Text = |row| row.error().map(|error| error.class.as_str());
    "error_phase": Text = |row| row.error().map(|error| error.phase.as_str());
    "error_message": Text = |row| row.error().map(|error| error.message.as_str());
    "total_sec": Number = |row| row.durations.map(|d| d.total_sec);
    "environment_setup_sec": Number = |row| row.durations.and_then(|d| d.environment_setup_sec);
    "agent_setup_sec": Number = |row| row.durations.and_then(|d| d.agent_setup_sec);
    "agent_execution_sec": Number = |row| row.durations.and_then(|d| d.agent_execution_sec);
    "verifier_sec": Number = |row| row.durations.and_then(|d| d.verifier_sec);
    "started_at": Time = |row| row.timestamps.map(|t| t.started_at);
    "environment_setup_started_at": Time =
        |row| row.timestamps.and_then(|t| t.environment_setup_started_at);
    "environment_setup_ended_at": Time =
        |row| row.timestamps.and_then(|t| t.environment_setup_ended_at);
    "agent_setup_started_at": Time = |row| row.timestamps.and_then(|t| t.agent_setup_started_at);
    "agent_setup_ended_at": Time = |row| row.timestamps.and_then(|t| t.agent_setup_ended_at);
    "agent_execution_started_at": Time =
        |row| row.timestamps.and_then(|t| t.agent_execution_started_at);
    "agent_execution_ended_at": Time =
        |row| row.timestamps.and_then(|t| t.agent_execution_ended_at);
    "verifier_started_at": Time = |row| row.timestamps.and_then(|t| t.verifier_started_at);
    "verifier_ended_at": Time = |row| row.timestamps.and_then(|t| t.verifier_ended_at);
    "ended_at": Time = |row| row.timestamps.map(|t| t.ended_at);
    "settled_at": Time = |row| Some(row.trial.settlement.settled_at);
    "cost": Number = |row| total_cost(&row.trial.settlement);
    "exec": Text = |row| row.trial.settlement.by.as_ref().map(|by| by.exec.to_string());
    "worker": Text = |row| row.trial.settlement.by.as_ref().map(|by| by.worker.as_str());
    "host": Text = |row| row.trial.record.as_ref().map(|record| record.host.as_str());
    "superseded": Integer =
        |row| Some(u32::try_from(row.trial.settlement.superseded.len()).unwrap_or(u32::MAX));
    "retries": Integer = |row| Some(row.score.retries);
    "lost_executions": Integer = |row| Some(row.score.lost);
    "task_git_commit_id": Text =
        |row| row.trial.settlement.task_commit(row.trial.record.as_ref());
    "task_digest": Text = |row| Some(row.trial.task.files.to_string());
    "record": Text = |row| {
        let by = row.trial.settlement.by.as_ref();
        by.and_then(|by| by.record.as_ref()).map(|record| record.digest.to_string())
    };
    "unverified_steps": Text = |row| unverified_steps(row);
    "task_format": Text = |row| row.trial.task.format.map(TaskFormat::as_str);
    "task_full_name": Text = |row| row.trial.task.about.name.as_deref();
    "task_source": Text = |row| row.trial.task.about.source.as_deref();
    "task_metadata": Json = |row| metadata(row);
    "objective_name": Text = |row| row.objective().map(|objective| objective.name.as_str());
    "objective_value": Number = |row| row.objective().map(|objective| objective.value);
    "hook_events_total": Integer = |row| {
        let events = row.harness().and_then(|harness| harness.events.as_ref());
        events.and_then(|events| i64::try_from(events.total).ok())
    };
    "model_calls": Integer = |row| i64::try_from(row.score.model_use.calls).ok();
    "tokens": Integer = |row| i64::try_from(row.score.model_use.tokens).ok();
    "unpriced_calls": Integer = |row| i64::try_from(row.score.model_use.unpriced_calls).ok();
    "model_sec": Number = |row| Some(row.score.model_use.sec);
};

/// The task's `[metadata]`.
fn metadata(row: &ExportRow<'_>) -> Option<Value> {
    let metadata = &row.trial.task.about.metadata;
    (!metadata.is_empty()).then(|| Value::Object(metadata.clone()))
}

/// The verifier's numbers, if it reported several.
fn rewards(row: &ExportRow<'_>) -> Option<Value> {
    let rewards = &row.trial.settlement.verdict.rewards;
    (!rewards.is_empty()).then(|| json!(rewards))
}

/// Names of the steps that could not be verified.
fn unverified_steps(row: &ExportRow<'_>) -> Option<String> {
    let steps = &row.trial.settlement.verdict.unverified_steps;
    (!steps.is_empty()).then(|| steps.join(", "))
}
