//! Export of spans to a collector that speaks OTLP over HTTP.

mod convert;
mod http_client;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use opentelemetry::trace::SpanKind;
use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Config, SamplingDecision, SpanExporter as _};
use rollout_base::supervise;
use rollout_base::traces::{SpanExporter, TraceSpan, Tracer};
use rollout_protocol::trace_id::TraceId;

use self::http_client::{LastFailure, UreqClient};
use super::error::TraceExportError;
use super::queue::SpanQueue;
use super::settings::TraceSettings;
use super::{SpanCounters, TracedProcess};

/// How long the end of a process waits for the collector.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// Begin of the name that stands for a service without a name.
const UNKNOWN_SERVICE: &str = "unknown_service";

/// The thread that sends spans. Dropped, it sends those that wait, for a limited time.
#[derive(Debug)]
pub(super) struct SendingThread {
    queue: Arc<SpanQueue>,
    counters: SpanCounters,
}

impl Drop for SendingThread {
    fn drop(&mut self) {
        let unsent = self.queue.close(FLUSH_LIMIT);
        // A collector that does not answer holds the thread; it ends with the process.
        self.counters.dropped.inc_by(unsent as u64);
        let dropped = self.counters.dropped.get();
        if dropped > 0 {
            tracing::warn!("{dropped} spans were not exported: traces of this session have gaps");
        }
    }
}

/// Takes spans for the thread.
#[derive(Debug)]
struct QueueingExporter {
    config: Config,
    queue: Arc<SpanQueue>,
    counters: SpanCounters,
}

impl SpanExporter for QueueingExporter {
    fn is_sampled(&self, trace: TraceId) -> bool {
        // Every span of a trace gets the decision of its root, in every process.
        let trace = opentelemetry::TraceId::from_bytes(trace.to_bytes());
        let sampler = &self.config.sampler;
        let decided = sampler.should_sample(None, trace, "", &SpanKind::Internal, &[], &[]);
        decided.decision == SamplingDecision::RecordAndSample
    }

    fn export(&self, span: TraceSpan) {
        if !self.queue.push(span) {
            self.counters.dropped.inc();
        }
    }
}

/// Starts the export.
pub(super) fn start(
    process: TracedProcess,
    settings: TraceSettings,
    counters: SpanCounters,
) -> Result<(Tracer, SendingThread), TraceExportError> {
    let failure = LastFailure::default();
    let mut exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(UreqClient::new(settings.timeout, failure.clone()))
        .with_timeout(settings.timeout)
        .build()?;
    exporter.set_resource(&resource(process));
    let queue = Arc::new(SpanQueue::default());
    let sender = Sender { exporter, failure, counters: counters.clone(), is_failing: false };
    let sending = Arc::clone(&queue);
    let thread = supervise::thread("traces", move || sender.run(&sending));
    // It ends with the queue, or with the process.
    drop(thread.map_err(TraceExportError::Thread)?);
    let taking = QueueingExporter {
        config: Config::default(),
        queue: Arc::clone(&queue),
        counters: counters.clone(),
    };
    Ok((Tracer::new(Arc::new(taking)), SendingThread { queue, counters }))
}

/// The resource that the environment describes.
fn resource(process: TracedProcess) -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let name = Resource::builder().build().get(&Key::new("service.name"));
    let is_named = name.is_some_and(|name| !name.as_str().starts_with(UNKNOWN_SERVICE));
    let resource = Resource::builder().with_attribute(version);
    if is_named {
        resource.build()
    } else {
        resource.with_service_name(process.service_name()).build()
    }
}

/// Sends batches.
struct Sender {
    exporter: opentelemetry_otlp::SpanExporter,
    failure: LastFailure,
    counters: SpanCounters,
    /// Whether the last batch was dropped.
    is_failing: bool,
}

impl Sender {
    fn run(mut self, queue: &SpanQueue) {
        while let Some(batch) = queue.next_batch() {
            let spans = batch.len() as u64;
            match self.send(batch) {
                Ok(()) => {
                    self.counters.exported.inc_by(spans);
                    self.is_failing = false;
                }
                Err(error) => {
                    self.counters.dropped.inc_by(spans);
                    self.warn_once(&error);
                }
            }
        }
    }

    fn send(&self, batch: Vec<TraceSpan>) -> Result<(), String> {
        let batch = batch.into_iter().map(convert::span_data).collect();
        // The client blocks, and so do the pauses between attempts: the future is ready at once.
        match self.exporter.export(batch).now_or_never() {
            Some(sent) => sent.map_err(|error| error.to_string()),
            None => Err("the exporter waits for something else than the collector".to_owned()),
        }
    }

    /// Warns of the first batch of an outage only.
    fn warn_once(&mut self, error: &str) {
        if !self.is_failing {
            self.is_failing = true;
            let reason = self.failure.take().unwrap_or_else(|| error.to_owned());
            tracing::warn!(
                "cannot export traces: {reason}; the run continues, and its traces have gaps"
            );
        }
    }
}
