//! The table `trials`: a row per settled trial.

use serde_json::{Value, json};

use super::settled_trial::{TableTrial, count, finite};
use crate::results::rows::{Column, Table, columns};

/// The table.
pub(super) struct Trials;

impl Table for Trials {
    const NAME: &'static str = "trials";
    type Row<'a> = TableTrial<'a>;
    const COLUMNS: &'static [Column<Self>] = columns! {
        "run_id": Text = |row| Some(row.run);
        "trial_id": Text = |row| Some(row.id.as_str());
        "agent": Text = |row| Some(row.name.agent.as_str());
        "dataset": Text = |row| Some(row.name.dataset.as_str());
        "task": Text = |row| Some(row.name.task.as_str());
        "attempt": Integer = |row| Some(row.name.attempt);
        "ordinal": Integer = |row| i64::try_from(row.ordinal).ok();
        "outcome": Text = |row| Some(row.settlement.verdict.outcome.as_str());
        "success": Boolean = |row| row.success();
        "failure": Text = |row| row.score.failure.map(|party| party.as_str());
        "reward": Number = |row| row.score.reward.and_then(finite);
        "rewards": Json = |row| rewards(row);
        "primary_metric_name": Text = |row| row.primary.map(|metric| metric.name);
        "primary_metric_value": Number = |row| row.primary.and_then(|metric| finite(metric.value));
        "error_type": Text = |row| error(row).map(|error| error.kind.as_str());
        "error_code": Text = |row| error(row).map(|error| error.code.as_str());
        "error_class": Text = |row| error(row).map(|error| error.class.as_str());
        "error_phase": Text = |row| error(row).map(|error| error.phase.as_str());
        "error_message": Text = |row| error(row).map(|error| error.message.as_str());
        "unverified_steps": Text = |row| unverified_steps(row);
        "format_doubt": Text = |row| row.settlement.verdict.format_doubt.map(|doubt| doubt.as_str());
        "cost": Number = |row| row.score.known_cost().and_then(finite);
        "tries": Integer = |row| Some(row.tries());
        "retries": Integer = |row| Some(row.score.retries);
        "lost_executions": Integer = |row| Some(row.score.lost);
        "total_sec": Number = |row| row.durations().map(|d| d.total_sec);
        "environment_setup_sec": Number =
            |row| row.durations().and_then(|d| d.environment_setup_sec);
        "agent_setup_sec": Number = |row| row.durations().and_then(|d| d.agent_setup_sec);
        "agent_execution_sec": Number = |row| row.durations().and_then(|d| d.agent_execution_sec);
        "verifier_sec": Number = |row| row.durations().and_then(|d| d.verifier_sec);
        "started_at": Time = |row| row.timestamps().map(|t| t.started_at);
        "ended_at": Time = |row| row.timestamps().map(|t| t.ended_at);
        "settled_at": Time = |row| Some(row.settlement.settled_at);
        "provider": Text = |row| Some(row.provider);
        "worker": Text = |row| row.settlement.by.as_ref().map(|by| by.worker.as_str());
        "task_format": Text = |row| row.task.format.map(|format| format.as_str());
        "task_digest": Text = |row| Some(row.task.files.to_string());
        "task_git_commit_id": Text = |row| row.settlement.task_commit(None);
        "task_metadata": Json = |row| metadata(row);
        "integration_level": Text = |row| row.harness().map(|h| h.integration_level.as_str());
        "harness_outcome": Text = |row| row.harness().map(|harness| harness.outcome.as_str());
        "objective_name": Text = |row| row.objective().map(|objective| objective.name.as_str());
        "objective_value": Number =
            |row| row.objective().and_then(|objective| finite(objective.value));
        "objective_direction": Text =
            |row| row.objective().and_then(|o| o.direction).map(|direction| direction.as_str());
        "hook_events_total": Integer = |row| row.events().and_then(|events| count(events.total));
        "has_hook_events": Boolean =
            |row| row.harness().map(|_| row.events().is_some_and(|events| events.total > 0));
        "hook_violations": Integer =
            |row| row.events().and_then(|events| count(events.violations));
        "metrics_left_out": Integer =
            |row| row.harness().and_then(|harness| count(harness.metrics_left_out));
        "model_calls": Integer = |row| count(row.score.model_use.calls);
        "tokens": Integer = |row| count(row.score.model_use.tokens);
        "unpriced_calls": Integer = |row| count(row.score.model_use.unpriced_calls);
        "model_sec": Number = |row| finite(row.score.model_use.sec);
    };
}

fn error<'a>(row: &TableTrial<'a>) -> Option<&'a rollout_protocol::error::TrialError> {
    row.settlement.verdict.error.as_ref()
}

/// The verifier's numbers, if it reported several.
fn rewards(row: &TableTrial<'_>) -> Option<Value> {
    let rewards = &row.settlement.verdict.rewards;
    (!rewards.is_empty()).then(|| json!(rewards))
}

/// Names of the steps that could not be verified.
fn unverified_steps(row: &TableTrial<'_>) -> Option<String> {
    let steps = &row.settlement.verdict.unverified_steps;
    (!steps.is_empty()).then(|| steps.join(", "))
}

/// The task's `[metadata]`.
fn metadata(row: &TableTrial<'_>) -> Option<Value> {
    let metadata = &row.task.about.metadata;
    (!metadata.is_empty()).then(|| Value::Object(metadata.clone()))
}
