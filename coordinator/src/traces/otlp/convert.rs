//! Spans in the types of the OpenTelemetry SDK.

use std::time::SystemTime;

use opentelemetry::trace::{
    Event, SpanContext, SpanId as OtelSpanId, SpanKind, Status, TraceFlags, TraceId as OtelTraceId,
    TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use rollout_base::traces::{AttributeValue, SpanAttribute, SpanEvent, TraceSpan};
use rollout_protocol::trace_id::SpanId;

/// Name of the library that made the spans.
const SCOPE: &str = "rollout";

/// A span for the exporter.
pub(super) fn span_data(span: TraceSpan) -> SpanData {
    let id = |id: SpanId| OtelSpanId::from_bytes(id.to_bytes());
    let trace = OtelTraceId::from_bytes(span.trace.to_bytes());
    let mut events = SpanEvents::default();
    events.events = span.events.into_iter().map(event).collect();
    SpanData {
        span_context: SpanContext::new(
            trace,
            id(span.id),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: span.parent.map_or(OtelSpanId::INVALID, id),
        // The item's span is the coordinator's.
        parent_span_is_remote: span.parent.is_some(),
        span_kind: SpanKind::Internal,
        name: span.name.into(),
        start_time: SystemTime::from(span.started_at),
        end_time: SystemTime::from(span.ended_at),
        attributes: attributes(span.attributes),
        dropped_attributes_count: 0,
        events,
        links: SpanLinks::default(),
        status: span.error.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder(SCOPE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn event(event: SpanEvent) -> Event {
    Event::new(event.name, SystemTime::from(event.at), attributes(event.attributes), 0)
}

fn attributes(attributes: Vec<SpanAttribute>) -> Vec<KeyValue> {
    let value = |value| match value {
        AttributeValue::Text(text) => Value::from(text),
        AttributeValue::Integer(number) => Value::from(number),
        AttributeValue::Number(number) => Value::from(number),
    };
    attributes.into_iter().map(|(name, of)| KeyValue::new(name, value(of))).collect()
}
