//! Metrics of the daemon, and its health checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use rollout_base::metrics::encode::{gauge, gauges};

use crate::daemon::Daemon;
use crate::serve::Monitoring;

/// Metrics of requests.
#[derive(Debug, Clone)]
pub(super) struct ApiMetrics {
    answers: Family<[(&'static str, String); 1], Counter>,
    durations: Histogram,
}

impl ApiMetrics {
    pub(super) fn new() -> Self {
        // From 1 ms to 8 s; long requests wait for news.
        let durations = Histogram::new(exponential_buckets(0.001, 2.0, 14));
        Self { answers: Family::default(), durations }
    }

    /// Counts an answer.
    pub(super) fn answered(&self, status: StatusCode, took: Duration) {
        self.answers.get_or_create(&[("status", status.as_str().to_owned())]).inc();
        self.durations.observe(took.as_secs_f64());
    }

    fn register(&self, registry: &mut Registry) {
        let help = "Answers of the API, by status";
        registry.register("http_answers", help, self.answers.clone());
        registry.register_with_unit(
            "http_answer_duration",
            "Time from a request's head to the head of its answer",
            Unit::Seconds,
            self.durations.clone(),
        );
    }
}

/// The health checks and metrics of a daemon.
pub(super) fn monitoring(daemon: Arc<Daemon>, metrics: &ApiMetrics) -> Monitoring {
    Monitoring::new(|registry| {
        metrics.register(registry);
        registry.register_collector(Box::new(RunsCollector(Arc::clone(&daemon))));
        Box::new(move || daemon.check_ready())
    })
}

/// Numbers of runs, when they are asked for.
#[derive(Debug)]
struct RunsCollector(Arc<Daemon>);

impl Collector for RunsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let totals = self.0.totals();
        let by_state = totals.by_state.iter().map(|(state, count)| (*state, *count));
        let help = "Runs of the daemon, by state";
        gauges(&mut encoder, "daemon_runs", help, "state", by_state)?;
        let farms = self.0.farm_totals();
        let farms = farms.iter().map(|(state, count)| (state.as_str(), *count));
        gauges(&mut encoder, "daemon_farms", "Farms of the daemon, by state", "state", farms)?;
        let help = "Runs whose record cannot be read";
        gauge(&mut encoder, "daemon_unreadable_runs", help, totals.unreadable)?;
        let help = "Trials of all runs that run now";
        gauge(&mut encoder, "daemon_running_trials", help, totals.running_trials)?;
        let help = "Slots of executions that are free";
        gauge(&mut encoder, "daemon_free_slots", help, totals.free_slots)?;
        let help = "Executions that wait for a slot";
        gauge(&mut encoder, "daemon_waiting_executions", help, totals.waiting_executions)
    }
}
