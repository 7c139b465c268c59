//! The table `agent_summary`: a row per agent, with the figures of `result.json`.

use super::settled_trial::{count, finite};
use crate::results::metrics::{AgentTally, HarnessTally, PrimaryMetric, Score};
use crate::results::rows::{Column, Table, columns};

/// The table.
pub(super) struct AgentSummaries;

/// The totals of an agent.
pub(super) struct AgentRow<'a> {
    pub(super) run: &'a str,
    pub(super) agent: &'a AgentTally,
    pub(super) harness: &'a HarnessTally,
    pub(super) score: Score,
    primary: Option<PrimaryMetric<'a>>,
}

/// The totals of an agent, beside the name of the baseline.
pub(super) struct SummaryRow<'a> {
    of: &'a AgentRow<'a>,
    baseline: &'a str,
}

impl<'a> AgentRow<'a> {
    pub(super) fn new(run: &'a str, agent: &'a AgentTally, harness: &'a HarnessTally) -> Self {
        let score = agent.tally.score();
        Self { run, agent, harness, score, primary: score.primary(harness) }
    }

    /// Its row beside the baseline.
    pub(super) fn against<'r>(&'r self, baseline: &'r AgentRow<'_>) -> SummaryRow<'r> {
        SummaryRow { of: self, baseline: &baseline.agent.name }
    }
}

impl Table for AgentSummaries {
    const NAME: &'static str = "agent_summary";
    type Row<'a> = SummaryRow<'a>;
    const COLUMNS: &'static [Column<Self>] = columns! {
        "run_id": Text = |row| Some(row.of.run);
        "agent": Text = |row| Some(row.of.agent.name.as_str());
        "baseline_agent": Text = |row| Some(row.baseline);
        "total": Integer = |row| count(row.of.agent.total);
        "completed": Integer = |row| count(row.of.agent.tally.completed);
        "failed": Integer = |row| count(row.of.agent.tally.failed);
        "cancelled": Integer = |row| count(row.of.agent.tally.cancelled);
        "unverified": Integer = |row| count(row.of.agent.tally.unverified);
        "skipped": Integer = |row| count(row.of.agent.pending());
        "completed_with_error": Integer = |row| count(row.of.agent.tally.with_error);
        "infrastructure_failures": Integer =
            |row| count(row.of.agent.tally.failures.infrastructure);
        "agent_failures": Integer = |row| count(row.of.agent.tally.failures.agent);
        "verifier_failures": Integer = |row| count(row.of.agent.tally.failures.verifier);
        "task_failures": Integer = |row| count(row.of.agent.tally.failures.task);
        "unsupported_failures": Integer = |row| count(row.of.agent.tally.failures.unsupported);
        "task_failures_before_agent": Integer = |row| count(row.of.agent.tally.before_agent);
        "format_doubts": Integer = |row| count(row.of.agent.tally.format_doubts);
        "scored": Integer = |row| count(row.of.score.trials);
        "passed": Integer = |row| count(row.of.score.passed);
        "success_rate": Number = |row| row.of.score.pass_rate();
        "success_rate_low": Number = |row| row.of.score.pass_rate_low();
        "success_rate_high": Number = |row| row.of.score.pass_rate_high();
        "scored_mean_reward": Number = |row| row.of.score.mean_reward.and_then(finite);
        "mean_reward": Number = |row| row.of.agent.tally.rewards.mean().and_then(finite);
        "primary_metric_name": Text = |row| row.of.primary.map(|metric| metric.name);
        "primary_metric_mean": Number =
            |row| row.of.primary.and_then(|metric| finite(metric.value));
        "cost": Number = |row| row.of.agent.tally.known_cost().and_then(finite);
        "retries": Integer = |row| count(row.of.agent.tally.retries);
        "lost_executions": Integer = |row| count(row.of.agent.tally.lost);
        "objective_name": Text = |row| row.of.harness.objective().map(|(name, _)| name);
        "objective_mean": Number =
            |row| row.of.harness.objective().and_then(|(_, mean)| finite(mean));
        "objective_trials": Integer = |row| count(row.of.harness.objective_trials());
        "hook_events_total": Integer = |row| row.of.harness.events().and_then(count);
        "hook_violations": Integer = |row| row.of.harness.violations().and_then(count);
        "model_calls": Integer = |row| count(row.of.agent.tally.model_use.calls);
        "tokens": Integer = |row| count(row.of.agent.tally.model_use.tokens);
        "unpriced_calls": Integer = |row| count(row.of.agent.tally.model_use.unpriced_calls);
        "model_sec": Number = |row| finite(row.of.agent.tally.model_use.sec);
    };
}
