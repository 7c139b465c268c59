//! The result of a job, as in `result.json` and the last line of `--json`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::error::ErrorType;
use rollout_protocol::id::RunId;
use rollout_protocol::record::{ItemOutcome, REWARD_KEY};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::spec::guardrail::Guardrail;
use rollout_protocol::spec::metric::MetricKind;
use serde::{Deserialize, Serialize, Serializer};

use super::facts::DatasetFacts;
use super::ledger::Ledger;
use crate::results::known_cost;
use crate::results::metrics::{
    AgentTally, AgentTotal, FailureCounts, FailureParty, KeyRewards, Rewards, RunStats, Score,
    Tally,
};

/// The result of a job. The counts add up: total = completed + failed + cancelled + unverified +
/// skipped.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobResult {
    /// Name of the job.
    pub job_name: String,
    /// The run.
    pub run: RunId,
    /// Whether the run was stopped before all trials were settled.
    pub cancelled: bool,
    /// Trials of the plan.
    pub total_trials: u64,
    /// The verifier ran and produced a reward.
    pub completed_trials: u64,
    /// An error prevented a reward.
    pub failed_trials: u64,
    /// Still pending when the run was stopped.
    pub skipped_trials: u64,
    /// Cancelled by the user.
    pub cancelled_trials: u64,
    /// Ran to the end; the verifier is disabled.
    pub unverified_trials: u64,
    /// Completed trials with an error beside the reward: of the agent, when its work was verified
    /// anyway, of a collect hook, or of the teardown.
    pub completed_with_error_trials: u64,
    /// Share of completed trials that passed; `None` when none completed.
    pub pass_rate: Option<f64>,
    /// Mean reward of completed trials; `None` when none completed.
    pub mean_reward: Option<f64>,
    /// The headline score and failures by party.
    #[serde(flatten)]
    pub headline: Headline,
    /// Sum of the costs that executions reported; `None` if nothing of it is known.
    pub total_cost: Option<f64>,
    /// Whether the cost of some model calls is not known: `total_cost` is a lower bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub total_cost_is_lower_bound: bool,
    /// Use of model calls, if there were any.
    #[serde(skip_serializing_if = "ModelUse::is_none", serialize_with = "known_cost::model_use")]
    pub model_use: ModelUse,
    /// Seconds from the start of the first session to the end of the last.
    pub total_duration_sec: f64,
    /// Start of the first session.
    pub started_at: Timestamp,
    /// End of the last session.
    pub ended_at: Timestamp,
    /// Executions that failed because of the infrastructure and were retried.
    pub retries: u64,
    /// Executions that ended without a verdict.
    pub lost_executions: u64,
    /// Trials by the type of their error, completed ones included.
    pub errors: BTreeMap<ErrorType, u64>,
    /// The metrics that the job requests.
    pub metrics: MetricValues,
    /// Per agent, in the plan's order.
    pub agents: OrderedMap<AgentSummary>,
    /// The datasets and the formats of their tasks.
    pub datasets: Vec<DatasetFacts>,
    /// Bounds on metrics that the job states; nothing enforces them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guardrails: Vec<Guardrail>,
    /// Settled trials, in the plan's order.
    pub results: Vec<TrialSummary>,
}

/// Values of the metrics that the job requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MetricValues {
    /// Over all trials.
    pub overall: OrderedMap<Option<f64>>,
    /// Per agent.
    pub agents: OrderedMap<OrderedMap<Option<f64>>>,
    /// Per key of verifiers that report several numbers; empty when none does.
    #[serde(skip_serializing_if = "OrderedMap::is_empty")]
    pub rewards: OrderedMap<KeyMetrics>,
    /// Numbers left out of `rewards` because of too many keys.
    #[serde(skip_serializing_if = "is_zero")]
    pub rewards_left_out: u64,
}

/// Values of the metrics for one key.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KeyMetrics {
    /// Over all trials.
    pub overall: KeyFigures,
    /// Per agent.
    pub agents: OrderedMap<KeyFigures>,
}

/// Figures over the completed trials that have a key. Trials without it do not count as 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KeyFigures {
    /// Number of these trials.
    pub trials: u64,
    /// The metrics that the job requests; the mean when it requests none.
    #[serde(flatten)]
    pub values: OrderedMap<Option<f64>>,
}

/// The totals of one agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgentSummary {
    /// Trials of the plan.
    pub total_trials: u64,
    /// The verifier ran and produced a reward.
    pub completed_trials: u64,
    /// An error prevented a reward.
    pub failed_trials: u64,
    /// Still pending when the run was stopped.
    pub skipped_trials: u64,
    /// Cancelled by the user.
    pub cancelled_trials: u64,
    /// Ran to the end; the verifier is disabled.
    pub unverified_trials: u64,
    /// Completed trials with an error beside the reward.
    pub completed_with_error_trials: u64,
    /// Share of completed trials that passed; `None` when none completed.
    pub pass_rate: Option<f64>,
    /// Mean reward of completed trials; `None` when none completed.
    pub mean_reward: Option<f64>,
    /// The headline score and failures by party.
    #[serde(flatten)]
    pub headline: Headline,
    /// Sum of the costs that executions reported; `None` if nothing of it is known.
    pub total_cost: Option<f64>,
    /// Whether the cost of some model calls is not known: `total_cost` is a lower bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub total_cost_is_lower_bound: bool,
    /// Use of model calls, if there were any.
    #[serde(skip_serializing_if = "ModelUse::is_none", serialize_with = "known_cost::model_use")]
    pub model_use: ModelUse,
    /// Trials with an execution that has no verdict because a model server did not answer.
    #[serde(skip_serializing_if = "is_zero")]
    pub model_unreachable_trials: u64,
    /// Trials with an execution that has no verdict because the agent could not be installed.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_installed_trials: u64,
}

/// The headline of a run or an agent, and the counts behind it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Headline {
    /// Completed with reward 1 and every step verified.
    pub passed_trials: u64,
    /// Completed trials with a step that could not be verified: they did not pass.
    pub completed_with_unverified_step_trials: u64,
    /// Failed trials by responsible party.
    pub failures: FailureCounts,
    /// Failures of tasks before the agent began, part of the failures of tasks: not counted.
    pub task_failures_before_agent: u64,
    /// Trials that could have another verdict in the other format of their task, which is a guess.
    #[serde(skip_serializing_if = "is_zero")]
    pub format_doubt_trials: u64,
    /// Passed trials and mean reward over all trials that count for the agent.
    pub scored: ScoreFigures,
}

/// Figures over completed trials and the failures of agents, verifiers and tasks. A failure counts
/// as not passed, with reward 0. Infrastructure failures, failures of tasks before the agent began,
/// unsupported, unverified, cancelled and skipped trials do not count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScoreFigures {
    /// Trials that count.
    pub trials: u64,
    /// Passed ones of these.
    pub passed: u64,
    /// Share of these that passed; `None` when no trial counts.
    pub pass_rate: Option<f64>,
    /// The share if all infrastructure failures, and all failures of tasks before the agent began,
    /// counted as not passed.
    #[serde(default)]
    pub pass_rate_low: Option<f64>,
    /// The share if all of them had passed.
    #[serde(default)]
    pub pass_rate_high: Option<f64>,
    /// Mean reward of these; `None` when no trial counts or verifiers report no single reward.
    pub mean_reward: Option<f64>,
}

/// One settled trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrialSummary {
    /// Task.
    pub task_name: Arc<str>,
    /// Dataset.
    pub dataset_name: Arc<str>,
    /// Agent.
    pub agent_name: Arc<str>,
    /// Attempt, from 1.
    pub attempt: u32,
    /// Whether the reward is 1 and every step was verified.
    pub passed: bool,
    /// Reward; `None` without one.
    pub reward: Option<f64>,
    /// The verifier's numbers by key, if it reported several.
    #[serde(skip_serializing_if = "OrderedMap::is_empty")]
    pub rewards: OrderedMap<f64>,
    /// Outcome.
    pub outcome: ItemOutcome,
    /// Type of its error.
    pub error_type: Option<ErrorType>,
    /// The responsible party, if it failed.
    pub failure: Option<FailureParty>,
    /// Whether the guessed format of the task decides the verdict.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub format_doubt: bool,
}

/// A mapping that serializes in insertion order.
#[derive(Debug, Clone, PartialEq)]
pub struct OrderedMap<T>(pub Vec<(String, T)>);

impl<T> Default for OrderedMap<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> OrderedMap<T> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> FromIterator<(String, T)> for OrderedMap<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl<T: Serialize> Serialize for OrderedMap<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Facts about the run as a whole, from its events.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunOverview {
    pub(crate) run: RunId,
    pub(crate) job: String,
    pub(crate) started_at: Timestamp,
    pub(crate) ended_at: Timestamp,
    pub(crate) cancelled: bool,
}

impl JobResult {
    /// The result of the trials in `ledger`, which must be sorted.
    pub(crate) fn new(
        overview: RunOverview,
        agents: &[AgentTotal],
        kinds: &[MetricKind],
        ledger: &Ledger,
    ) -> Self {
        let stats = ledger.stats(agents);
        let overall = stats.overall();
        let mut errors = BTreeMap::new();
        for kind in ledger.entries().filter_map(|entry| entry.error) {
            *errors.entry(kind).or_insert(0) += 1;
        }
        Self {
            job_name: overview.job,
            run: overview.run,
            cancelled: overview.cancelled,
            total_trials: stats.total(),
            completed_trials: overall.completed,
            failed_trials: overall.failed,
            skipped_trials: stats.pending(),
            cancelled_trials: overall.cancelled,
            unverified_trials: overall.unverified,
            completed_with_error_trials: overall.with_error,
            pass_rate: overall.pass_rate(),
            mean_reward: overall.rewards.mean(),
            headline: Headline::new(overall),
            total_cost: overall.known_cost(),
            total_cost_is_lower_bound: overall.model_use.unpriced_calls > 0,
            model_use: overall.model_use,
            total_duration_sec: seconds_between(overview.started_at, overview.ended_at),
            started_at: overview.started_at,
            ended_at: overview.ended_at,
            retries: overall.retries,
            lost_executions: overall.lost,
            errors,
            metrics: MetricValues::new(kinds, &stats),
            agents: stats.agents().iter().map(|a| (a.name.clone(), AgentSummary::new(a))).collect(),
            datasets: Vec::new(),
            guardrails: Vec::new(),
            results: ledger.entries().map(TrialSummary::from).collect(),
        }
    }
}

impl MetricValues {
    fn new(kinds: &[MetricKind], stats: &RunStats) -> Self {
        // The other figures already cover a single number without a key.
        let several = stats.keys().iter().any(|(key, _)| key != REWARD_KEY);
        let keys = stats.keys().iter().filter(|_| several);
        Self {
            overall: metrics(kinds, &stats.overall().rewards),
            agents: (stats.agents().iter())
                .map(|agent| (agent.name.clone(), metrics(kinds, &agent.tally.rewards)))
                .collect(),
            rewards: keys
                .map(|(key, overall)| (key.to_owned(), KeyMetrics::new(kinds, key, overall, stats)))
                .collect(),
            rewards_left_out: stats.keys().left_out(),
        }
    }
}

impl KeyMetrics {
    fn new(kinds: &[MetricKind], key: &str, overall: &Rewards, stats: &RunStats) -> Self {
        let kinds = if kinds.is_empty() { &[MetricKind::Mean] } else { kinds };
        let figures = |rewards: &Rewards| KeyFigures {
            trials: rewards.count(),
            values: metrics(kinds, rewards),
        };
        let of_agent = |keys: &KeyRewards| keys.get(key).copied().unwrap_or_default();
        Self {
            overall: figures(overall),
            agents: (stats.agents().iter())
                .map(|agent| (agent.name.clone(), figures(&of_agent(&agent.keys))))
                .collect(),
        }
    }
}

impl AgentSummary {
    fn new(agent: &AgentTally) -> Self {
        let tally = &agent.tally;
        Self {
            total_trials: agent.total,
            completed_trials: tally.completed,
            failed_trials: tally.failed,
            skipped_trials: agent.pending(),
            cancelled_trials: tally.cancelled,
            unverified_trials: tally.unverified,
            completed_with_error_trials: tally.with_error,
            pass_rate: tally.pass_rate(),
            mean_reward: tally.rewards.mean(),
            headline: Headline::new(tally),
            total_cost: tally.known_cost(),
            total_cost_is_lower_bound: tally.model_use.unpriced_calls > 0,
            model_use: tally.model_use,
            model_unreachable_trials: tally.unreachable,
            not_installed_trials: tally.not_installed,
        }
    }
}

impl Headline {
    pub(crate) fn new(tally: &Tally) -> Self {
        Self {
            passed_trials: tally.passed,
            completed_with_unverified_step_trials: tally.steps_unverified,
            failures: tally.failures,
            task_failures_before_agent: tally.before_agent,
            format_doubt_trials: tally.format_doubts,
            scored: tally.score().into(),
        }
    }
}

impl From<Score> for ScoreFigures {
    fn from(score: Score) -> Self {
        Self {
            trials: score.trials,
            passed: score.passed,
            pass_rate: score.pass_rate(),
            pass_rate_low: score.pass_rate_low(),
            pass_rate_high: score.pass_rate_high(),
            mean_reward: score.mean_reward,
        }
    }
}

impl From<super::ledger::LedgerEntry<'_>> for TrialSummary {
    fn from(entry: super::ledger::LedgerEntry<'_>) -> Self {
        Self {
            task_name: Arc::clone(entry.task),
            dataset_name: Arc::clone(entry.dataset),
            agent_name: Arc::clone(entry.agent),
            attempt: entry.attempt,
            passed: entry.score.passed,
            reward: entry.score.reward,
            rewards: entry.rewards().map(|(key, number)| (key.to_string(), number)).collect(),
            outcome: entry.score.outcome,
            error_type: entry.error,
            failure: entry.score.failure,
            format_doubt: entry.score.format_doubt,
        }
    }
}

fn metrics(kinds: &[MetricKind], rewards: &Rewards) -> OrderedMap<Option<f64>> {
    kinds.iter().map(|kind| (kind.as_str().to_owned(), rewards.metric(*kind))).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Seconds from `start` to `end`; 0 when the clock was set back between them.
pub(super) fn seconds_between(start: Timestamp, end: Timestamp) -> f64 {
    end.duration_since(start).as_secs_f64().max(0.0)
}
