//! The table `tries`: a row per execution of a settled trial, those that did not settle it first.

use rollout_protocol::error::TrialError;
use rollout_protocol::record::{Execution, ExecutionEnd, Verdict};
use rollout_protocol::spec::budget::ModelUse;
use serde_json::{Value, json};

use super::TableSink;
use super::settled_trial::{TableTrial, count, finite};
use crate::results::known_cost::known_cost;
use crate::results::rows::{Column, RowsError, Table, columns};

/// The table.
pub(super) struct Tries;

/// An execution of a trial.
pub(super) struct TryRow<'a> {
    trial: &'a TableTrial<'a>,
    /// Position among the executions of the trial, from 0.
    index: u32,
    execution: &'a Execution,
    /// Whether it settled the trial.
    settled: bool,
}

impl Table for Tries {
    const NAME: &'static str = "tries";
    type Row<'a> = TryRow<'a>;
    const COLUMNS: &'static [Column<Self>] = columns! {
        "run_id": Text = |row| Some(row.trial.run);
        "trial_id": Text = |row| Some(row.trial.id.as_str());
        "agent": Text = |row| Some(row.trial.name.agent.as_str());
        "dataset": Text = |row| Some(row.trial.name.dataset.as_str());
        "task": Text = |row| Some(row.trial.name.task.as_str());
        "attempt": Integer = |row| Some(row.trial.name.attempt);
        "try_index": Integer = |row| Some(row.index);
        "try_id": Text = |row| Some(row.execution.try_id.to_string());
        "exec_id": Text = |row| Some(row.execution.exec.to_string());
        "settled": Boolean = |row| Some(row.settled);
        "end": Text = |row| Some(row.end());
        "lost_reason": Text = |row| row.lost_reason();
        "lost_phase": Text = |row| row.lost_phase();
        "outcome": Text = |row| row.verdict().map(|verdict| verdict.outcome.as_str());
        "reward": Number = |row| row.verdict().and_then(|verdict| verdict.reward).and_then(finite);
        "rewards": Json = |row| row.rewards();
        "error_type": Text = |row| row.error().map(|error| error.kind.as_str());
        "error_code": Text = |row| row.error().map(|error| error.code.as_str());
        "error_class": Text = |row| row.error().map(|error| error.class.as_str());
        "error_phase": Text = |row| row.error().map(|error| error.phase.as_str());
        "error_message": Text = |row| row.error().map(|error| error.message.as_str());
        "cost": Number =
            |row| known_cost(row.cost(), row.model_use().unpriced_calls).and_then(finite);
        "total_sec": Number = |row| row.execution.durations.as_ref().map(|d| d.total_sec);
        "environment_setup_sec": Number =
            |row| row.execution.durations.as_ref().and_then(|d| d.environment_setup_sec);
        "agent_setup_sec": Number =
            |row| row.execution.durations.as_ref().and_then(|d| d.agent_setup_sec);
        "agent_execution_sec": Number =
            |row| row.execution.durations.as_ref().and_then(|d| d.agent_execution_sec);
        "verifier_sec": Number =
            |row| row.execution.durations.as_ref().and_then(|d| d.verifier_sec);
        "started_at": Time = |row| row.execution.timestamps.as_ref().map(|t| t.started_at);
        "ended_at": Time = |row| row.execution.timestamps.as_ref().map(|t| t.ended_at);
        "worker": Text = |row| Some(row.execution.worker.as_str());
        "record": Text =
            |row| row.execution.record.as_ref().map(|record| record.digest.to_string());
        "model_calls": Integer = |row| count(row.model_use().calls);
        "tokens": Integer = |row| count(row.model_use().tokens);
        "unpriced_calls": Integer = |row| count(row.model_use().unpriced_calls);
        "model_sec": Number = |row| finite(row.model_use().sec);
    };
}

/// Adds the executions of a trial.
pub(super) fn add_rows(trial: &TableTrial<'_>, sink: &mut impl TableSink) -> Result<(), RowsError> {
    let settlement = trial.settlement;
    let superseded = settlement.superseded.iter().map(|execution| (execution, false));
    let all = superseded.chain(settlement.by.iter().map(|execution| (execution, true)));
    for ((execution, settled), index) in all.zip(0..) {
        sink.add::<Tries>(&TryRow { trial, index, execution, settled })?;
    }
    Ok(())
}

impl<'a> TryRow<'a> {
    fn verdict(&self) -> Option<&'a Verdict> {
        match &self.execution.end {
            ExecutionEnd::Reported { verdict } => Some(verdict),
            ExecutionEnd::Lost { .. } | ExecutionEnd::Open => None,
        }
    }

    fn error(&self) -> Option<&'a TrialError> {
        self.verdict()?.error.as_ref()
    }

    /// The verifier's numbers, if it reported several.
    fn rewards(&self) -> Option<Value> {
        self.verdict().map(|verdict| &verdict.rewards).filter(|r| !r.is_empty()).map(|r| json!(r))
    }

    fn end(&self) -> &'static str {
        match self.execution.end {
            ExecutionEnd::Reported { .. } => "reported",
            ExecutionEnd::Lost { .. } => "lost",
            ExecutionEnd::Open => "open",
        }
    }

    fn lost_reason(&self) -> Option<&'static str> {
        match self.execution.end {
            ExecutionEnd::Lost { reason, .. } => Some(reason.as_str()),
            ExecutionEnd::Reported { .. } | ExecutionEnd::Open => None,
        }
    }

    fn lost_phase(&self) -> Option<&'static str> {
        match self.execution.end {
            ExecutionEnd::Lost { phase, .. } => phase.map(|phase| phase.as_str()),
            ExecutionEnd::Reported { .. } | ExecutionEnd::Open => None,
        }
    }

    fn model_use(&self) -> ModelUse {
        match &self.execution.end {
            ExecutionEnd::Reported { verdict } => verdict.model_use,
            ExecutionEnd::Lost { model_use, .. } => *model_use,
            ExecutionEnd::Open => ModelUse::NONE,
        }
    }

    fn cost(&self) -> f64 {
        match &self.execution.end {
            ExecutionEnd::Reported { verdict } => verdict.cost,
            ExecutionEnd::Lost { cost, .. } => *cost,
            ExecutionEnd::Open => 0.0,
        }
    }
}
