//! Sinks for a run's events.

pub(super) mod files;
mod json;
pub mod metrics;
pub mod terminal;
mod traces;

use std::io::Write;

use rollout_base::traces::Tracer;

use self::json::JsonLines;
use self::metrics::RunMetrics;
use self::terminal::{Screen, Style, TerminalSink};
use self::traces::TracesSink;
use super::sink::{SinkStarter, Workload};
use crate::results::report::DatasetFacts;

/// JSON lines, for programs.
pub fn json(out: Box<dyn Write + Send>) -> SinkStarter {
    Box::new(|_| Ok(Box::new(JsonLines::start(out)?)))
}

/// Metrics, for Prometheus.
pub fn metrics(metrics: RunMetrics) -> SinkStarter {
    Box::new(|workload| metrics.start(workload))
}

/// Traces, for a collector.
pub fn traces(tracer: Tracer) -> SinkStarter {
    Box::new(|workload| TracesSink::start(tracer, workload))
}

/// Progress for people.
pub fn terminal(screen: Screen, style: Style) -> SinkStarter {
    Box::new(move |workload| {
        let terminal = match workload {
            Workload::Job(facts) => {
                let header = facts.datasets.iter().map(DatasetFacts::line).collect();
                TerminalSink::for_job(screen, style, facts, header)?
            }
            Workload::Search => TerminalSink::for_search(screen, style)?,
        };
        Ok(Box::new(terminal))
    })
}
