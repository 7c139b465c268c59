//! Export of traces over OTLP, configured by the standard variables of OpenTelemetry.
//!
//! Coordinator and workers make the spans. They hand them to a [`Tracer`], which never waits: a
//! thread sends them, and drops those that the collector does not take in time. Without an endpoint
//! there is no thread, and no span is made.

mod error;
#[cfg(feature = "otel")]
mod otlp;
#[cfg(feature = "otel")]
mod queue;
mod settings;

use std::fmt;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use rollout_base::traces::Tracer;

pub use self::error::TraceExportError;
pub use self::settings::TraceSettings;

/// The process that exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedProcess {
    /// It owns a run.
    Coordinator,
    /// It runs executions.
    Worker,
}

impl TracedProcess {
    /// The name of its service, unless the environment has one.
    pub const fn service_name(self) -> &'static str {
        match self {
            Self::Coordinator => "rollout-coordinator",
            Self::Worker => "rollout-worker",
        }
    }
}

/// Numbers of spans. Clones share them.
#[derive(Debug, Clone, Default)]
struct SpanCounters {
    exported: Counter,
    dropped: Counter,
}

/// The export of a process's spans. Dropped, it sends those that wait, for at most three seconds.
#[derive(Default)]
pub struct TraceExport {
    tracer: Tracer,
    counters: SpanCounters,
    #[cfg(feature = "otel")]
    _sending: Option<otlp::SendingThread>,
}

impl fmt::Debug for TraceExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceExport").field("tracer", &self.tracer).finish_non_exhaustive()
    }
}

impl TraceExport {
    /// Starts the export that the environment asks for. A mistake in it is logged and disables
    /// traces: it is no reason to hold results back.
    pub fn start(process: TracedProcess) -> Self {
        let settings = TraceSettings::read(|name| std::env::var(name).ok());
        let started = settings.and_then(|settings| match settings {
            Some(settings) => Self::start_with(process, settings),
            None => Ok(Self::default()),
        });
        started.unwrap_or_else(|error| {
            tracing::warn!("{}", rollout_base::backoff::error_chain(&error));
            Self::default()
        })
    }

    #[cfg(feature = "otel")]
    fn start_with(
        process: TracedProcess,
        settings: TraceSettings,
    ) -> Result<Self, TraceExportError> {
        let counters = SpanCounters::default();
        let (tracer, sending) = otlp::start(process, settings, counters.clone())?;
        Ok(Self { tracer, counters, _sending: Some(sending) })
    }

    #[cfg(not(feature = "otel"))]
    fn start_with(_: TracedProcess, _: TraceSettings) -> Result<Self, TraceExportError> {
        Err(TraceExportError::NotBuilt)
    }

    /// The tracer of the process.
    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Adds the numbers of spans to the metrics that a process shows, if it exports any.
    pub fn register(&self, registry: &mut Registry) {
        if self.tracer.is_enabled() {
            let SpanCounters { exported, dropped } = self.counters.clone();
            registry.register(
                "traces_exported",
                "Spans that the collector of traces took",
                exported,
            );
            let help = "Spans that were dropped because the collector did not take them in time";
            registry.register("traces_dropped", help, dropped);
        }
    }
}
