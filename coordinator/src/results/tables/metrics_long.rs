//! The table `metrics_long`: a row per number or text of a settled trial.

use std::borrow::Cow;

use rollout_protocol::harness::MetricValue as HarnessMetric;

use super::TableSink;
use super::settled_trial::{TableTrial, finite};
use crate::results::rows::{Column, RowsError, Table, columns};

/// The table.
pub(super) struct MetricsLong;

/// A metric of a trial.
pub(super) struct MetricRow<'a> {
    trial: &'a TableTrial<'a>,
    name: Cow<'a, str>,
    value: MetricValue<'a>,
    source: MetricSource,
}

#[derive(Debug, Clone, Copy)]
enum MetricValue<'a> {
    Number(f64),
    Text(&'a str),
}

impl<'a> MetricValue<'a> {
    /// The value of a metric of a harness; `None` if it has none.
    fn from_harness(value: &'a HarnessMetric) -> Option<Self> {
        match value {
            HarnessMetric::Null => None,
            HarnessMetric::Bool(true) => Some(Self::Text("true")),
            HarnessMetric::Bool(false) => Some(Self::Text("false")),
            HarnessMetric::Number(number) => Some(Self::Number(*number)),
            HarnessMetric::Text(text) => Some(Self::Text(text)),
        }
    }
}

/// Origin of a metric.
#[derive(Debug, Clone, Copy)]
enum MetricSource {
    /// The verifier reported it.
    Verifier,
    /// The worker measured it on the execution that settled the trial.
    Duration,
    /// The cost of all executions.
    Cost,
    /// The model calls of all executions.
    Model,
    /// The type of the error.
    Error,
    /// The harness gave it as its objective.
    Objective,
    /// The harness gave it as a metric.
    Harness,
    /// The primary metric, which repeats one of the others.
    Primary,
}

impl MetricSource {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Verifier => "verifier",
            Self::Duration => "duration",
            Self::Cost => "cost",
            Self::Model => "model",
            Self::Error => "error",
            Self::Objective => "objective",
            Self::Harness => "harness",
            Self::Primary => "primary",
        }
    }
}

impl Table for MetricsLong {
    const NAME: &'static str = "metrics_long";
    type Row<'a> = MetricRow<'a>;
    const COLUMNS: &'static [Column<Self>] = columns! {
        "run_id": Text = |row| Some(row.trial.run);
        "trial_id": Text = |row| Some(row.trial.id.as_str());
        "agent": Text = |row| Some(row.trial.name.agent.as_str());
        "dataset": Text = |row| Some(row.trial.name.dataset.as_str());
        "task": Text = |row| Some(row.trial.name.task.as_str());
        "attempt": Integer = |row| Some(row.trial.name.attempt);
        "outcome": Text = |row| Some(row.trial.settlement.verdict.outcome.as_str());
        "metric_name": Text = |row| Some(&*row.name);
        "metric_value": Number = |row| row.number();
        "metric_text": Text = |row| row.text();
        "metric_source": Text = |row| Some(row.source.as_str());
    };
}

impl<'a> MetricRow<'a> {
    fn number(&self) -> Option<f64> {
        match self.value {
            MetricValue::Number(number) => finite(number),
            MetricValue::Text(_) => None,
        }
    }

    /// The text of a value that is no finite number.
    fn text(&self) -> Option<Cow<'a, str>> {
        match self.value {
            MetricValue::Number(number) if number.is_finite() => None,
            MetricValue::Number(number) => Some(number.to_string().into()),
            MetricValue::Text(text) => Some(text.into()),
        }
    }
}

/// Adds the metrics of a trial. A metric without a value has no row.
pub(super) fn add_rows(trial: &TableTrial<'_>, sink: &mut impl TableSink) -> Result<(), RowsError> {
    let verdict = &trial.settlement.verdict;
    let mut add = |name: Cow<'_, str>, value, source| {
        sink.add::<MetricsLong>(&MetricRow { trial, name, value, source })
    };
    let verifier = MetricSource::Verifier;
    if let Some(reward) = verdict.reward {
        add("reward".into(), MetricValue::Number(reward), verifier)?;
    }
    for (key, number) in &verdict.rewards {
        add(format!("reward.{key}").into(), MetricValue::Number(*number), verifier)?;
    }
    for (name, seconds) in durations(trial) {
        if let Some(seconds) = seconds {
            add(name.into(), MetricValue::Number(seconds), MetricSource::Duration)?;
        }
    }
    if let Some(cost) = trial.score.known_cost() {
        add("cost".into(), MetricValue::Number(cost), MetricSource::Cost)?;
    }
    for (name, number) in model_use(trial) {
        add(name.into(), MetricValue::Number(number), MetricSource::Model)?;
    }
    if let Some(error) = &verdict.error {
        add("error_type".into(), MetricValue::Text(error.kind.as_str()), MetricSource::Error)?;
    }
    if let Some(objective) = trial.objective() {
        let value = MetricValue::Number(objective.value);
        add(objective.name.as_str().into(), value, MetricSource::Objective)?;
    }
    for (name, metric) in trial.harness().iter().flat_map(|harness| &harness.metrics) {
        if let Some(value) = MetricValue::from_harness(metric) {
            add(name.into(), value, MetricSource::Harness)?;
        }
    }
    if let Some(primary) = trial.primary {
        add(primary.name.into(), MetricValue::Number(primary.value), MetricSource::Primary)?;
    }
    Ok(())
}

/// Figures of the model calls of a trial; none without calls.
fn model_use(trial: &TableTrial<'_>) -> impl Iterator<Item = (&'static str, f64)> {
    let used = trial.score.model_use;
    let metrics = [
        ("model_calls", used.calls as f64),
        ("tokens", used.tokens as f64),
        ("unpriced_calls", used.unpriced_calls as f64),
        ("model_sec", used.sec),
    ];
    metrics.into_iter().filter(move |_| used.calls > 0)
}

/// Durations of the execution that settled the trial.
fn durations(trial: &TableTrial<'_>) -> [(&'static str, Option<f64>); 5] {
    let durations = trial.durations();
    [
        ("total_sec", durations.map(|d| d.total_sec)),
        ("environment_setup_sec", durations.and_then(|d| d.environment_setup_sec)),
        ("agent_setup_sec", durations.and_then(|d| d.agent_setup_sec)),
        ("agent_execution_sec", durations.and_then(|d| d.agent_execution_sec)),
        ("verifier_sec", durations.and_then(|d| d.verifier_sec)),
    ]
}
