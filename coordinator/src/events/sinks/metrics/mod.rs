//! Metrics sink: the progress of a run for Prometheus, in the data model of OpenMetrics.
//!
//! Gauges are computed from the folded events when they are asked for, so those of one answer agree
//! with each other. Counters and histograms cover what this process saw.

mod progress;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use rollout_base::metrics::encode::{gauge, gauges, info};
use rollout_base::metrics::{NO_ERROR, PhaseDurations, error_class, outcome_labels};
use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::EventKind;
use rollout_protocol::phase::Phase;

use self::progress::{RunProgress, RunStage};
use crate::events::ReportError;
use crate::events::sink::{EventBatch, EventSink, RunResult, SinkReport, Workload};

/// Executions by outcome and class of error.
type ExecutionCounter = Family<[(&'static str, &'static str); 2], Counter>;

/// The metrics of one run. Clones share them.
#[derive(Debug, Clone)]
pub struct RunMetrics {
    progress: Arc<Mutex<RunProgress>>,
    executions: ExecutionCounter,
    durations: PhaseDurations,
    warnings: Counter,
}

/// Why a coordinator is not at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RunNotReady {
    /// It waits for the lock, or reads the journal.
    #[error("the run is not open yet")]
    Opening,
    /// It was asked to stop.
    #[error("the run is stopping")]
    Stopping,
    /// The session has ended.
    #[error("the run has ended")]
    Ended,
}

impl RunMetrics {
    /// Metrics of a run that has not started, as part of those that a process shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            progress: Arc::default(),
            executions: Family::default(),
            durations: PhaseDurations::default(),
            warnings: Counter::default(),
        };
        registry.register_collector(Box::new(RunCollector(Arc::clone(&metrics.progress))));
        registry.register(
            "executions_ended",
            "Executions that ended in this session, by outcome and class of error",
            metrics.executions.clone(),
        );
        registry.register_with_unit(
            "trial_duration",
            "Durations of the executions that settled trials in this session, in total and by phase",
            Unit::Seconds,
            metrics.durations.family(),
        );
        registry.register("warnings", "Warnings of this session", metrics.warnings.clone());
        metrics
    }

    /// Starts the sink.
    pub(super) fn start(self, _: Workload<'_>) -> io::Result<Box<dyn EventSink>> {
        Ok(Box::new(MetricsSink(self)))
    }

    /// Whether the run is open and works.
    ///
    /// # Errors
    /// [`RunNotReady`].
    pub fn check_ready(&self) -> Result<(), RunNotReady> {
        match self.lock().stage {
            RunStage::Opening => Err(RunNotReady::Opening),
            RunStage::Open => Ok(()),
            RunStage::Stopping => Err(RunNotReady::Stopping),
            RunStage::Ended => Err(RunNotReady::Ended),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, event: &EventKind) {
        let executions = |outcome, class| {
            self.executions.get_or_create(&[("outcome", outcome), ("class", class)]).inc();
        };
        match event {
            EventKind::TrialRetry { error, .. } => executions("retried", error_class(Some(error))),
            EventKind::TrialLost { .. } => executions("lost", NO_ERROR),
            EventKind::ExecutionEnded { .. } => executions("superseded", NO_ERROR),
            EventKind::TrialSettled { replayed: false, settlement, .. } => {
                let Some(by) = &settlement.by else { return };
                let (outcome, class) = outcome_labels(&settlement.verdict);
                executions(outcome, class);
                if let Some(durations) = &by.durations {
                    self.durations.observe(durations);
                }
            }
            EventKind::Warning { .. } => {
                self.warnings.inc();
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
struct MetricsSink(RunMetrics);

#[async_trait]
impl EventSink for MetricsSink {
    async fn accept(&mut self, batch: &EventBatch) {
        let now = Instant::now();
        let mut progress = self.0.lock();
        for event in batch.iter() {
            progress.apply(event, now);
            self.0.count(&event.kind);
        }
    }

    async fn finish(
        self: Box<Self>,
        _result: Option<RunResult>,
    ) -> Result<SinkReport, ReportError> {
        self.0.lock().stage = RunStage::Ended;
        Ok(SinkReport::default())
    }
}

/// Shows the progress of a run.
#[derive(Debug)]
struct RunCollector(Arc<Mutex<RunProgress>>);

impl Collector for RunCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &progress.identity {
            Some(identity) => {
                let session = identity.session.to_string();
                let run = identity.run.to_string();
                let facts = [("run", &*run), ("name", &identity.name), ("session", &session)];
                info(&mut encoder, "run_info", "The run, its name and its session", &facts)?;
                encode(&progress, &mut encoder)
            }
            None => Ok(()),
        }
    }
}

fn encode(progress: &RunProgress, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let states = progress.states();
    gauges(encoder, "trials", "Trials by state; their sum is the plan", "state", states)?;
    let pending = progress.pending.iter().map(|(class, count)| (class.as_str(), *count));
    let help = "Trials without a result by size class, queued and running";
    gauges(encoder, "trials_pending", help, "size_class", pending)?;
    let waiting = progress.pending.keys().map(|class| {
        (class.as_str(), progress.waiting_for_worker.get(class).copied().unwrap_or_default())
    });
    let help = "Pending trials that no worker of the pool could run, by size class";
    gauges(encoder, "trials_waiting_for_worker", help, "size_class", waiting)?;
    let phases = Phase::ALL.map(|phase| (phase.as_str(), progress.in_phase(phase)));
    gauges(encoder, "trials_in_phase", "Running executions by phase", "phase", phases)?;
    let parked = Dependency::ALL.map(|service| (service.as_str(), progress.parked(service)));
    let help = "Running executions that wait for a service that does not answer";
    gauges(encoder, "trials_parked", help, "service", parked)?;
    let now = Instant::now();
    let help = "Age of the trial that has waited longest for its next execution, seconds";
    gauge(encoder, "oldest_queued_seconds", help, progress.oldest_queued(now).as_secs_f64())?;
    let help = "Age of the execution that has run longest, seconds";
    gauge(encoder, "oldest_running_seconds", help, progress.oldest_running(now).as_secs_f64())?;
    let score = progress.tally.score();
    let help = "Scored trials that passed: reward 1, every step verified";
    gauge(encoder, "trials_passed", help, score.passed)?;
    let help = "Completed trials and failures of agents, verifiers and tasks";
    gauge(encoder, "trials_scored", help, score.trials)?;
    let help =
        "Cost of the executions that settled trials, in the currency of the configured rates";
    gauge(encoder, "cost", help, progress.cost)?;
    let model_use = progress.model_use;
    let help = "Model calls of the executions that settled trials";
    gauge(encoder, "model_calls", help, model_use.calls)?;
    let help = "Model calls of these executions whose cost is not known";
    gauge(encoder, "model_unpriced_calls", help, model_use.unpriced_calls)?;
    let help = "Input and output tokens of their model calls";
    gauge(encoder, "model_tokens", help, model_use.tokens)?;
    let help =
        "Time in which their model calls were open, that of concurrent calls added up, seconds";
    gauge(encoder, "model_seconds", help, model_use.sec)?;
    let is_paused = u32::from(progress.is_paused);
    gauge(encoder, "run_paused", "Whether a user paused the run", is_paused)?;
    let is_stopping = u32::from(progress.stage == RunStage::Stopping);
    gauge(encoder, "run_stopping", "Whether the run was asked to stop", is_stopping)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use rollout_protocol::error::{ErrorClass, ErrorType};
    use rollout_protocol::id::ExecId;
    use rollout_protocol::record::Settlement;
    use std::collections::BTreeMap;

    use super::*;
    use crate::results::testing::{
        error, event, failed, passed, phase, settled, settlement, started, trial,
    };

    async fn accept(sink: &mut MetricsSink, events: Vec<rollout_protocol::event::RunEvent>) {
        sink.accept(&Arc::new(events)).await;
    }

    fn shown(registry: &Registry) -> BTreeMap<String, f64> {
        let mut text = String::new();
        text::encode(&mut text, registry).expect("text");
        let values = text.lines().filter(|line| !line.starts_with('#'));
        values
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                (name.to_owned(), value.parse().expect("a number"))
            })
            .collect()
    }

    fn retry(of: &Settlement) -> EventKind {
        let by = of.by.as_ref().expect("an execution");
        EventKind::TrialRetry {
            item: of.item,
            name: of.name.clone(),
            try_id: by.try_id,
            exec: ExecId::from_bytes([200; 16]),
            error: error(ErrorType::InternalError, ErrorClass::Infrastructure, "a cause"),
            wait_ms: 10,
        }
    }

    #[tokio::test]
    async fn states_add_up_to_the_plan_after_every_event() {
        let mut registry = Registry::with_prefix("rollout");
        let metrics = RunMetrics::register(&mut registry);
        assert_eq!(metrics.check_ready(), Err(RunNotReady::Opening));
        let mut sink = MetricsSink(metrics.clone());
        let first = settlement(trial("a", "one", 1), 1, passed(1.0));
        let error = error(ErrorType::InternalError, ErrorClass::Task, "a cause");
        let second = settlement(trial("a", "two", 1), 2, failed(error));
        let reopened = EventKind::TrialReopened {
            item: second.item,
            name: second.name.clone(),
            ordinal: 1,
            former: Some(Arc::new(second.clone())),
        };
        let steps = [
            (started(3), [3.0, 0.0, 0.0, 0.0]),
            (event(1, EventKind::RunOpened), [3.0, 0.0, 0.0, 0.0]),
            (phase(trial("a", "one", 1), Phase::AgentExecution), [2.0, 1.0, 0.0, 0.0]),
            (event(2, retry(&first)), [2.0, 1.0, 0.0, 0.0]),
            (settled(0, first), [2.0, 0.0, 1.0, 0.0]),
            (settled(1, second), [1.0, 0.0, 1.0, 1.0]),
            (event(3, reopened), [2.0, 0.0, 1.0, 0.0]),
        ];
        for (event, expected) in steps {
            accept(&mut sink, vec![event.clone()]).await;
            let shown = shown(&registry);
            let state = |state: &str| shown[&format!("rollout_trials{{state=\"{state}\"}}")];
            let states = ["queued", "running", "completed", "failed"].map(state);
            assert_eq!(states, expected, "after {event:?}");
        }
        assert_eq!(metrics.check_ready(), Ok(()));
        let shown = shown(&registry);
        let ended = |outcome: &str, class: &str| {
            let labels = format!("outcome=\"{outcome}\",class=\"{class}\"");
            shown[&format!("rollout_executions_ended_total{{{labels}}}")]
        };
        assert_eq!(ended("retried", "infrastructure"), 1.0);
        assert_eq!((ended("completed", "none"), ended("failed", "task")), (1.0, 1.0));
        assert_eq!((shown["rollout_trials_passed"], shown["rollout_trials_scored"]), (1.0, 1.0));
        assert_eq!(shown["rollout_trial_duration_seconds_count{phase=\"total\"}"], 2.0);
        Box::new(sink).finish(None).await.expect("finished");
        assert_eq!(metrics.check_ready(), Err(RunNotReady::Ended));
    }

    #[tokio::test]
    async fn replayed_settlements_are_counted_as_trials_and_not_as_executions() {
        let mut registry = Registry::with_prefix("rollout");
        let mut sink = MetricsSink(RunMetrics::register(&mut registry));
        let mut replay = settled(0, settlement(trial("a", "one", 1), 1, passed(1.0)));
        if let EventKind::TrialSettled { replayed, .. } = &mut replay.kind {
            *replayed = true;
        }
        accept(&mut sink, vec![started(2), replay]).await;
        let shown = shown(&registry);
        assert_eq!(shown["rollout_trials{state=\"completed\"}"], 1.0);
        assert!(!shown.keys().any(|name| name.starts_with("rollout_executions_ended")));
        assert!(!shown.keys().any(|name| name.starts_with("rollout_trial_duration")));
    }
}
