//! Metrics of a worker, in the data model of OpenMetrics.
//!
//! [`WorkerMetrics`] counts; `WorkerMonitor` reads the present
//! state when it is asked. `docs/operations.md` documents every metric.

pub mod encode;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
use rollout_protocol::error::TrialError;
use rollout_protocol::record::{Durations, Verdict};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::wire::offer::OfferedWork;
use rollout_protocol::wire::report::ReportBody;

/// Upper bounds of the buckets of durations, seconds: from the start of a sandbox to a day.
const DURATION_BUCKETS: [f64; 17] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0,
    21600.0, 86400.0,
];

/// Class of an execution that ended without an error.
pub const NO_ERROR: &str = "none";

/// A label with its value.
type Label = (&'static str, &'static str);

/// Durations of executions in total and by phase, seconds. Clones share them.
#[derive(Debug, Clone)]
pub struct PhaseDurations {
    family: Family<[Label; 1], Histogram, fn() -> Histogram>,
    /// The histogram of each value of the label, once an execution has reached the phase.
    of_phase: Arc<[OnceLock<Histogram>; 5]>,
}

impl Default for PhaseDurations {
    fn default() -> Self {
        Self {
            family: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            of_phase: Arc::default(),
        }
    }
}

impl PhaseDurations {
    /// The metric, to be registered.
    pub fn family(&self) -> impl Metric + Clone + use<> {
        self.family.clone()
    }

    /// Adds the durations of an execution. Phases that it did not reach have none.
    pub fn observe(&self, durations: &Durations) {
        let phases = [
            ("total", Some(durations.total_sec)),
            ("environment_setup", durations.environment_setup_sec),
            ("agent_setup", durations.agent_setup_sec),
            ("agent_execution", durations.agent_execution_sec),
            ("verification", durations.verifier_sec),
        ];
        for (histogram, (phase, seconds)) in self.of_phase.iter().zip(phases) {
            if let Some(seconds) = seconds {
                let create = || self.family.get_or_create_owned(&[("phase", phase)]);
                histogram.get_or_init(create).observe(seconds);
            }
        }
    }
}

/// Counters of a worker. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct WorkerMetrics(Arc<WorkerCounters>);

#[derive(Debug, Default)]
struct WorkerCounters {
    deliveries: Family<[Label; 1], Counter>,
    executions: Family<[Label; 3], Counter>,
    durations: PhaseDurations,
    stored_bytes: Counter,
    model_use: ModelCounters,
}

/// Counters of the model calls of executions.
#[derive(Debug, Default)]
struct ModelCounters {
    calls: Counter,
    tokens: Counter,
    seconds: Counter<f64, AtomicU64>,
    cost: Counter<f64, AtomicU64>,
}

impl ModelCounters {
    fn register(&self, registry: &mut Registry) {
        let calls = "Model calls of executions that ended";
        registry.register("worker_model_calls", calls, self.calls.clone());
        let tokens = "Input and output tokens of these model calls";
        registry.register("worker_model_tokens", tokens, self.tokens.clone());
        let seconds = "Time in which these model calls were open";
        let unit = Unit::Seconds;
        registry.register_with_unit("worker_model", seconds, unit, self.seconds.clone());
        let cost =
            "Cost of these model calls, as far as it is known, in the currency of the prices";
        registry.register("worker_model_cost", cost, self.cost.clone());
    }

    fn add(&self, used: &ModelUse) {
        self.calls.inc_by(used.calls);
        self.tokens.inc_by(used.tokens);
        self.seconds.inc_by(used.sec);
        self.cost.inc_by(used.cost);
    }
}

impl WorkerMetrics {
    /// Adds the counters to the metrics that a process shows.
    pub fn register(&self, registry: &mut Registry) {
        let counters = &self.0;
        registry.register(
            "worker_deliveries",
            "Offers that the queue delivered, by whether they were delivered before",
            counters.deliveries.clone(),
        );
        registry.register(
            "worker_executions_ended",
            "Executions that ended, by kind of work, outcome and class of error",
            counters.executions.clone(),
        );
        registry.register_with_unit(
            "worker_phase_duration",
            "Durations of executions that ended, in total and by phase",
            Unit::Seconds,
            counters.durations.family(),
        );
        registry.register_with_unit(
            "worker_stored",
            "Size of the logs, artifacts and outputs that were written to the blob store",
            Unit::Bytes,
            counters.stored_bytes.clone(),
        );
        counters.model_use.register(registry);
    }

    /// Counts an offer by its number of deliveries.
    pub fn delivered(&self, deliveries: u32) {
        let is_redelivery = if deliveries > 1 { "true" } else { "false" };
        self.0.deliveries.get_or_create(&[("redelivered", is_redelivery)]).inc();
    }

    /// Counts an execution by its last report.
    pub fn ended(&self, work: OfferedWork, report: &ReportBody) {
        let (outcome, class) = match report {
            ReportBody::Result(result) => {
                self.0.durations.observe(&result.durations);
                self.0.model_use.add(&result.verdict.model_use);
                outcome_labels(&result.verdict)
            }
            ReportBody::Lost { model_use, .. } => {
                self.0.model_use.add(model_use);
                ("lost", NO_ERROR)
            }
            ReportBody::Started | ReportBody::Events(_) => return,
        };
        let labels = [("work", work_label(work)), ("outcome", outcome), ("class", class)];
        self.0.executions.get_or_create(&labels).inc();
    }

    /// Counts bytes that were written to the store.
    pub fn stored(&self, bytes: u64) {
        self.0.stored_bytes.inc_by(bytes);
    }
}

/// The kind of work as a label.
pub const fn work_label(work: OfferedWork) -> &'static str {
    match work {
        OfferedWork::Trial(_) => "trial",
        OfferedWork::Eval => "eval",
        OfferedWork::Ideas => "ideas",
    }
}

/// Outcome and class of error of a verdict, as labels.
pub fn outcome_labels(verdict: &Verdict) -> (&'static str, &'static str) {
    (verdict.outcome.as_str(), error_class(verdict.error.as_ref()))
}

/// The class of an error as a label.
pub fn error_class(error: Option<&TrialError>) -> &'static str {
    error.map_or(NO_ERROR, |error| error.class.as_str())
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use rollout_protocol::Timestamp;
    use rollout_protocol::error::{ErrorCode, ErrorType};
    use rollout_protocol::record::{LostReason, Timestamps};
    use rollout_protocol::wire::report::ResultBody;

    use super::*;

    fn result(verdict: Verdict, total_sec: f64) -> ReportBody {
        ReportBody::Result(Box::new(ResultBody {
            verdict,
            durations: Durations { total_sec, verifier_sec: Some(0.2), ..Durations::default() },
            timestamps: Timestamps::instant(Timestamp::UNIX_EPOCH),
            record: None,
        }))
    }

    #[test]
    fn counters_have_outcomes_classes_and_durations() {
        let metrics = WorkerMetrics::default();
        let mut registry = Registry::with_prefix("rollout");
        metrics.register(&mut registry);
        metrics.delivered(1);
        metrics.delivered(3);
        let model_use = ModelUse { calls: 3, tokens: 70, cost: 0.25, sec: 1.5, ..ModelUse::NONE };
        let verdict = Verdict { model_use, ..Verdict::completed(1.0) };
        metrics.ended(OfferedWork::Eval, &result(verdict, 40.0));
        let error = TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, "a cause");
        metrics.ended(OfferedWork::Eval, &result(Verdict::failed(error), 400.0));
        let (reason, phase, record) = (LostReason::Stopped, None, None);
        metrics.ended(
            OfferedWork::Ideas,
            &ReportBody::Lost { reason, phase, record, cost: 0.0, model_use },
        );
        metrics.stored(17);

        let mut shown = String::new();
        text::encode(&mut shown, &registry).expect("text");
        for line in [
            "rollout_worker_deliveries_total{redelivered=\"false\"} 1",
            "rollout_worker_deliveries_total{redelivered=\"true\"} 1",
            "rollout_worker_executions_ended_total{work=\"eval\",outcome=\"completed\",class=\"none\"} 1",
            "rollout_worker_executions_ended_total{work=\"eval\",outcome=\"failed\",class=\"infrastructure\"} 1",
            "rollout_worker_executions_ended_total{work=\"ideas\",outcome=\"lost\",class=\"none\"} 1",
            "rollout_worker_phase_duration_seconds_count{phase=\"total\"} 2",
            "rollout_worker_phase_duration_seconds_bucket{le=\"60.0\",phase=\"total\"} 1",
            "rollout_worker_phase_duration_seconds_sum{phase=\"total\"} 440.0",
            "rollout_worker_phase_duration_seconds_count{phase=\"verification\"} 2",
            "rollout_worker_stored_bytes_total 17",
            "rollout_worker_model_calls_total 6",
            "rollout_worker_model_tokens_total 140",
            "rollout_worker_model_seconds_total 3.0",
            "rollout_worker_model_cost_total 0.5",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
        }
        assert!(!shown.contains("agent_setup"), "a phase that was not reached: {shown}");
    }
}
