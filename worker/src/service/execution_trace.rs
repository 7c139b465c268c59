//! The trace of one execution: a span for the execution and one for each of its parts.
//!
//! The parts follow one another: the phases in the order in which they are entered, then the upload
//! of the results and the report. Waits for a service that does not answer are events of the
//! execution.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_base::metrics::work_label;
use rollout_base::traces::{
    SpanAttribute, SpanEvent, SpanExporter, TraceSpan, Tracer, verdict_attributes, verdict_error,
};
use rollout_protocol::Timestamp;
use rollout_protocol::dependency::Dependency;
use rollout_protocol::id::{ExecId, WorkerId};
use rollout_protocol::phase::Phase;
use rollout_protocol::trace_id::{SpanId, TraceId};
use rollout_protocol::wire::delivery::Delivery;
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::report::ReportBody;

/// Parts of one execution with a span. A task with many steps repeats phases.
const MAX_PARTS: u32 = 256;

/// Waits of one execution that are recorded.
const MAX_WAITS: usize = 64;

/// Name of the part in which results are made durable and written to the blob store.
pub(super) const UPLOAD: &str = "upload";

/// Name of the part that ends with the acknowledgement of the last report.
pub(super) const REPORT: &str = "report";

/// The trace of an execution, if its spans are wanted.
#[derive(Debug)]
pub(super) struct ExecutionTrace(Option<Box<RecordedTrace>>);

#[derive(Debug)]
struct RecordedTrace {
    exporter: Arc<dyn SpanExporter>,
    trace: TraceId,
    exec: ExecId,
    began: Timestamp,
    state: Mutex<TraceState>,
}

#[derive(Debug)]
struct TraceState {
    /// The part that has not ended: its name and start.
    part: Option<(&'static str, Timestamp)>,
    /// Parts that have begun.
    parts: u32,
    /// The service that the execution waits for, and since when.
    waiting: Option<(Dependency, Timestamp)>,
    waits: Vec<SpanEvent>,
    /// How the execution ended, once that is known.
    outcome: Vec<SpanAttribute>,
    error: Option<String>,
}

impl ExecutionTrace {
    /// Begins with the delivery of an execution.
    pub(super) fn begin(tracer: &Tracer, delivery: &Delivery, exec: ExecId) -> Self {
        let Offer { run, item, .. } = delivery.offer;
        let Some((trace, exporter)) = tracer.exporter(|| TraceId::for_item(run, item)) else {
            return Self(None);
        };
        let began = Timestamp::now();
        let state = TraceState {
            part: Some((Phase::Queued.as_str(), began)),
            parts: 1,
            waiting: None,
            waits: Vec::new(),
            outcome: vec![("rollout.deliveries", delivery.delivered.into())],
            error: None,
        };
        let (exporter, state) = (Arc::clone(exporter), Mutex::new(state));
        Self(Some(Box::new(RecordedTrace { exporter, trace, exec, began, state })))
    }

    /// Ends the current part and begins another.
    pub(super) fn enter(&self, part: &'static str) {
        if let Some(recorded) = &self.0 {
            let now = Timestamp::now();
            let mut state = recorded.state();
            recorded.end_part(&mut state, now);
            (state.part, state.parts) = (Some((part, now)), state.parts + 1);
        }
    }

    /// Ends the current part.
    pub(super) fn leave(&self) {
        if let Some(recorded) = &self.0 {
            recorded.end_part(&mut recorded.state(), Timestamp::now());
        }
    }

    /// Begins or ends a wait for a service.
    pub(super) fn park(&self, on: Option<Dependency>) {
        let Some(recorded) = &self.0 else { return };
        let mut state = recorded.state();
        if state.waiting.map(|(service, _)| service) != on {
            let now = Timestamp::now();
            state.end_wait(now);
            state.waiting = on.map(|service| (service, now));
        }
    }

    /// Notes how the execution ended.
    pub(super) fn note_end(&self, report: &ReportBody) {
        let Some(recorded) = &self.0 else { return };
        let mut state = recorded.state();
        match report {
            ReportBody::Result(result) => {
                state.outcome.extend(verdict_attributes(&result.verdict));
                state.error = verdict_error(&result.verdict);
            }
            ReportBody::Lost { reason, .. } => {
                state.outcome.push(("rollout.outcome", "lost".into()));
                state.outcome.push(("rollout.lost.reason", reason.as_str().into()));
            }
            ReportBody::Started | ReportBody::Events(_) => {}
        }
    }

    /// Ends the span of the execution. It is exported after its parts.
    pub(super) fn end(&self, offer: &Offer, worker: &WorkerId) {
        let Some(recorded) = &self.0 else { return };
        let (now, exec) = (Timestamp::now(), recorded.exec);
        let mut state = recorded.state();
        recorded.end_part(&mut state, now);
        state.end_wait(now);
        let mut attributes = vec![
            ("rollout.run", offer.run.to_string().into()),
            ("rollout.item", offer.item.to_string().into()),
            ("rollout.try", offer.try_id.to_string().into()),
            ("rollout.execution", exec.to_string().into()),
            ("rollout.worker", worker.to_string().into()),
            ("rollout.work", work_label(offer.work).into()),
        ];
        attributes.append(&mut state.outcome);
        if state.parts > MAX_PARTS {
            attributes.push(("rollout.parts_left_out", (state.parts - MAX_PARTS).into()));
        }
        recorded.exporter.export(TraceSpan {
            trace: recorded.trace,
            id: SpanId::for_execution(exec),
            parent: Some(SpanId::for_item(offer.run, offer.item)),
            name: "execution",
            started_at: recorded.began,
            ended_at: now,
            attributes,
            events: std::mem::take(&mut state.waits),
            error: state.error.take(),
        });
    }
}

impl RecordedTrace {
    fn state(&self) -> MutexGuard<'_, TraceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_part(&self, state: &mut TraceState, now: Timestamp) {
        let Some((name, started_at)) = state.part.take() else { return };
        let number = state.parts - 1;
        if number >= MAX_PARTS {
            return;
        }
        self.exporter.export(TraceSpan {
            trace: self.trace,
            id: SpanId::for_part(self.exec, name, number),
            parent: Some(SpanId::for_execution(self.exec)),
            name,
            started_at,
            ended_at: now,
            attributes: vec![("rollout.execution", self.exec.to_string().into())],
            events: Vec::new(),
            error: None,
        });
    }
}

impl TraceState {
    fn end_wait(&mut self, now: Timestamp) {
        let Some((service, at)) = self.waiting.take() else { return };
        if self.waits.len() < MAX_WAITS {
            let seconds = now.duration_since(at).as_secs_f64();
            let attributes = vec![
                ("rollout.service", service.as_str().into()),
                ("rollout.wait_seconds", seconds.into()),
            ];
            self.waits.push(SpanEvent { name: "parked", at, attributes });
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_base::traces::AttributeValue;
    use rollout_protocol::record::{Durations, Timestamps, Verdict};
    use rollout_protocol::wire::delivery::MessageToken;
    use rollout_protocol::wire::position::Incarnation;
    use rollout_protocol::wire::report::ResultBody;
    use rollout_queue::contract::samples;

    use super::*;
    use crate::testing::RecordingExporter;

    const EXEC: ExecId = ExecId::from_bytes([9; 16]);

    fn delivery() -> Delivery {
        let token = MessageToken { incarnation: Incarnation(1), sequence: 1 };
        Delivery { offer: samples::offer(1, 1), token, delivered: 1 }
    }

    fn worker() -> WorkerId {
        "worker-1".parse().expect("a token")
    }

    fn result(verdict: Verdict) -> ReportBody {
        ReportBody::Result(Box::new(ResultBody {
            verdict,
            durations: Durations::default(),
            timestamps: Timestamps::instant(Timestamp::UNIX_EPOCH),
            record: None,
        }))
    }

    #[test]
    fn execution_has_a_span_for_each_part_in_order() {
        let (tracer, spans) = RecordingExporter::tracer();
        let delivery = delivery();
        let trace = ExecutionTrace::begin(&tracer, &delivery, EXEC);
        for part in [Phase::EnvironmentSetup, Phase::AgentExecution, Phase::AgentExecution] {
            trace.enter(part.as_str());
        }
        trace.park(Some(Dependency::ContainerEngine));
        trace.park(Some(Dependency::ContainerEngine));
        trace.park(None);
        trace.park(None);
        trace.leave();
        trace.note_end(&result(Verdict::completed(0.5)));
        trace.enter(REPORT);
        trace.end(&delivery.offer, &worker());

        let spans = spans.taken();
        let names: Vec<_> = spans.iter().map(|span| span.name).collect();
        let expected = ["queued", "environment_setup", "agent_execution", "agent_execution"];
        assert_eq!(names, [&expected[..], &["report", "execution"]].concat());
        let root = spans.last().expect("a span");
        let of_item = SpanId::for_item(delivery.offer.run, delivery.offer.item);
        assert_eq!((root.parent, root.error.clone()), (Some(of_item), None));
        assert!(root.attributes.contains(&("rollout.reward", AttributeValue::Number(0.5))));
        let events: Vec<_> = root.events.iter().map(|event| event.name).collect();
        assert_eq!(events, ["parked"]);
        for part in &spans[..5] {
            assert_eq!((part.trace, part.parent), (root.trace, Some(root.id)));
            assert!(part.started_at >= root.started_at && part.ended_at <= root.ended_at);
        }
        assert_ne!(spans[2].id, spans[3].id);
        assert!(spans.windows(2).all(|pair| pair[0].ended_at <= pair[1].ended_at));
    }

    #[test]
    fn parts_beyond_the_limit_are_counted_and_left_out() {
        let (tracer, spans) = RecordingExporter::tracer();
        let delivery = delivery();
        let trace = ExecutionTrace::begin(&tracer, &delivery, EXEC);
        for _ in 0..MAX_PARTS + 9 {
            trace.enter(Phase::Verification.as_str());
        }
        trace.end(&delivery.offer, &worker());
        let spans = spans.taken();
        assert_eq!(spans.len(), MAX_PARTS as usize + 1);
        let left_out = ("rollout.parts_left_out", AttributeValue::Integer(10));
        assert!(spans.last().expect("a span").attributes.contains(&left_out));
    }

    #[test]
    fn execution_that_is_not_sampled_has_no_spans() {
        let (tracer, spans) = RecordingExporter::unsampled_tracer();
        let delivery = delivery();
        let trace = ExecutionTrace::begin(&tracer, &delivery, EXEC);
        trace.enter(REPORT);
        trace.end(&delivery.offer, &worker());
        assert_eq!(spans.taken(), []);
        assert!(ExecutionTrace::begin(&Tracer::default(), &delivery, EXEC).0.is_none());
    }
}
