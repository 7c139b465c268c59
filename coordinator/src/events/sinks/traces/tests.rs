use std::sync::Arc;

use rollout_base::traces::AttributeValue;
use rollout_protocol::error::{ErrorClass, ErrorType};
use rollout_protocol::phase::Phase;
use rollout_protocol::trace_id::{SpanId, TraceId};
use rollout_worker::testing::RecordingExporter;

use super::*;
use crate::results::testing::{
    at, error, event, failed, passed, phase, run, settled, settlement, started, trial,
};

/// The spans that a session with these events exports.
async fn spans(events: Vec<RunEvent>) -> Vec<TraceSpan> {
    let (tracer, spans) = RecordingExporter::tracer();
    let (run, opened_at, items) = (None, None, BTreeMap::new());
    let mut sink = TracesSink { tracer, has_plan: true, run, opened_at, items, dropped: 0 };
    sink.accept(&Arc::new(events)).await;
    Box::new(sink).finish(None).await.expect("finished");
    spans.taken()
}

fn opened() -> RunEvent {
    event(1, EventKind::RunOpened)
}

fn attribute<'a>(span: &'a TraceSpan, name: &str) -> Option<&'a AttributeValue> {
    span.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

#[tokio::test]
async fn settled_trial_has_a_root_and_the_wait_before_its_execution() {
    let one = settlement(trial("a", "one", 1), 1, passed(0.5));
    let spans = spans(vec![started(1), opened(), settled(0, one.clone())]).await;
    let [wait, root] = &spans[..] else { panic!("{spans:?}") };
    let (trace, id) = (TraceId::for_item(run(), one.item), SpanId::for_item(run(), one.item));
    assert_eq!((root.trace, root.id, root.parent, root.name), (trace, id, None, "trial"));
    assert_eq!((root.ended_at, &root.error), (one.settled_at, &None));
    assert_eq!(attribute(root, "rollout.task"), Some(&"one".to_owned().into()));
    assert_eq!(attribute(root, "rollout.tries"), Some(&1u32.into()));
    assert_eq!(attribute(root, "rollout.reward"), Some(&0.5.into()));
    assert_eq!((wait.trace, wait.parent, wait.name), (trace, Some(id), "wait"));
    assert!(root.started_at <= wait.started_at && wait.ended_at <= root.ended_at);
}

#[tokio::test]
async fn retry_is_an_event_of_the_item_and_ends_with_a_second_wait() {
    let name = trial("a", "one", 1);
    let running = phase(name.clone(), Phase::AgentSetup);
    let EventKind::TrialPhase { item, name: item_name, try_id, exec, .. } = running.kind.clone()
    else {
        unreachable!("a phase")
    };
    let why = error(ErrorType::InternalError, ErrorClass::Infrastructure, "secret text");
    let retry =
        EventKind::TrialRetry { item, name: item_name, try_id, exec, error: why, wait_ms: 10 };
    let failure = error(ErrorType::VerifierFailed, ErrorClass::Verifier, "secret text");
    let last = settlement(name, 8, failed(failure));
    let again = running.clone();
    let events =
        vec![started(1), opened(), running, again, event(3, retry), settled(0, last.clone())];
    let spans = spans(events).await;
    let names: Vec<_> = spans.iter().map(|span| span.name).collect();
    assert_eq!(names, ["wait", "wait", "trial"]);
    let by = last.by.as_ref().expect("an execution");
    assert_eq!((spans[0].id, spans[1].id), (SpanId::for_wait(exec), SpanId::for_wait(by.exec)));
    let root = &spans[2];
    let events: Vec<_> = root.events.iter().map(|event| (event.name, event.at)).collect();
    assert_eq!(events, [("retry", at(3))]);
    assert_eq!(root.error.as_deref(), Some("non_zero_exit"));
    assert_eq!(attribute(root, "error.type"), Some(&"verifier_failed".into()));
    assert_eq!(attribute(root, "rollout.error.class"), Some(&"verifier".into()));
    assert!(!format!("{spans:?}").contains("secret"), "messages of errors stay out");
}

#[tokio::test]
async fn replayed_settlement_has_no_span_and_a_retried_one_is_part_of_its_trace() {
    let former = settlement(trial("a", "one", 1), 1, passed(0.0));
    let mut replay = settled(0, former.clone());
    if let EventKind::TrialSettled { replayed, .. } = &mut replay.kind {
        *replayed = true;
    }
    let reopened = EventKind::TrialReopened {
        item: former.item,
        name: former.name.clone(),
        ordinal: 0,
        former: Some(Arc::new(former.clone())),
    };
    let again = settlement(trial("a", "one", 1), 2, passed(1.0));
    let events = vec![started(1), replay, opened(), event(2, reopened), settled(0, again.clone())];
    let spans = spans(events).await;
    let [_, retried] = &spans[..] else { panic!("{spans:?}") };
    let root = SpanId::for_item(run(), former.item);
    assert_eq!(
        (retried.parent, retried.trace),
        (Some(root), TraceId::for_item(run(), former.item))
    );
    assert_eq!(retried.id, SpanId::for_retried_item(again.by.expect("an execution").exec));
}
