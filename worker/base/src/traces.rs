//! Traces: spans of work and the interface of their exporter.
//!
//! Spans hold names, ids, times and numbers only: no output, instruction, variable, command or
//! message of an error, because any of them may contain a secret.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::record::Verdict;
use rollout_protocol::trace_id::{SpanId, TraceId};

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSpan {
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub id: SpanId,
    /// The span that it is part of; `None` for the root of the trace.
    pub parent: Option<SpanId>,
    /// Kind of work that it covers.
    pub name: &'static str,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Facts about it.
    pub attributes: Vec<SpanAttribute>,
    /// Events during it.
    pub events: Vec<SpanEvent>,
    /// Code of the error that it ended with.
    pub error: Option<String>,
}

/// A moment in a span.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanEvent {
    /// Its name.
    pub name: &'static str,
    /// When it happened.
    pub at: Timestamp,
    /// Facts about it.
    pub attributes: Vec<SpanAttribute>,
}

/// A name with a value.
pub type SpanAttribute = (&'static str, AttributeValue);

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// A name or an id.
    Text(Cow<'static, str>),
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

/// Takes spans. Never blocks: a span that it has no room for is dropped and counted.
pub trait SpanExporter: Send + Sync + fmt::Debug {
    /// Whether spans of a trace are wanted. The same in every process with the same settings.
    fn is_sampled(&self, trace: TraceId) -> bool;

    /// Takes a span.
    fn export(&self, span: TraceSpan);
}

/// The exporter of a process, if traces are configured. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<dyn SpanExporter>>);

impl Tracer {
    /// A tracer that exports.
    pub fn new(exporter: Arc<dyn SpanExporter>) -> Self {
        Self(Some(exporter))
    }

    /// Whether traces are configured.
    pub const fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// The exporter for a trace, if its spans are wanted.
    pub fn exporter(
        &self,
        trace: impl FnOnce() -> TraceId,
    ) -> Option<(TraceId, &Arc<dyn SpanExporter>)> {
        let exporter = self.0.as_ref()?;
        let trace = trace();
        exporter.is_sampled(trace).then_some((trace, exporter))
    }
}

/// Attributes of a verdict.
pub fn verdict_attributes(verdict: &Verdict) -> Vec<SpanAttribute> {
    let mut attributes = vec![("rollout.outcome", verdict.outcome.as_str().into())];
    attributes.extend(verdict.reward.map(|reward| ("rollout.reward", reward.into())));
    attributes.extend(verdict.error.as_ref().into_iter().flat_map(error_attributes));
    attributes
}

/// Attributes of an error, without its message.
pub fn error_attributes(error: &TrialError) -> [SpanAttribute; 3] {
    [
        ("error.type", error.kind.as_str().into()),
        ("rollout.error.code", error.code.as_str().to_owned().into()),
        ("rollout.error.class", error.class.as_str().into()),
    ]
}

/// The status of a span that ended with a verdict: the code of the error that prevented a reward.
pub fn verdict_error(verdict: &Verdict) -> Option<String> {
    let error = verdict.error.as_ref().filter(|_| verdict.reward.is_none())?;
    Some(error.code.as_str().to_owned())
}
