//! An exporter that keeps the spans of a test.

use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::traces::{SpanExporter, TraceSpan, Tracer};
use rollout_protocol::trace_id::TraceId;

/// Keeps the spans that it takes.
#[derive(Debug)]
pub struct RecordingExporter {
    is_sampled: bool,
    spans: Mutex<Vec<TraceSpan>>,
}

impl RecordingExporter {
    /// A tracer whose spans are kept.
    pub fn tracer() -> (Tracer, Arc<Self>) {
        Self::with_sampling(true)
    }

    /// A tracer that wants no spans.
    pub fn unsampled_tracer() -> (Tracer, Arc<Self>) {
        Self::with_sampling(false)
    }

    fn with_sampling(is_sampled: bool) -> (Tracer, Arc<Self>) {
        let exporter = Arc::new(Self { is_sampled, spans: Mutex::default() });
        (Tracer::new(exporter.clone()), exporter)
    }

    /// The spans since the last call.
    pub fn taken(&self) -> Vec<TraceSpan> {
        std::mem::take(&mut self.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SpanExporter for RecordingExporter {
    fn is_sampled(&self, _trace: TraceId) -> bool {
        self.is_sampled
    }

    fn export(&self, span: TraceSpan) {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
    }
}
