//! Tests of the rules of a stream of hook events, and of the parser of its lines.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::testing::{StreamWriter, check, event, first_control, stop_control};
use super::{HookEventType, HookRule, SplitLine, parse_event};
use crate::limits;

/// A rule, and a stream that breaks it alone.
type StreamCase = (HookRule, fn(&mut StreamWriter) -> &mut StreamWriter);

const LINES: &[StreamCase] = &[
    (HookRule::LineTooLong, |s| {
        s.add("error", &json!({ "message": "m".repeat(limits::HOOK_EVENT_BYTES) })).step(0)
    }),
    (HookRule::InvalidJson, |s| s.step(0).push(json!("text")).step(1)),
    (HookRule::InvalidEvent, |s| s.step(0).add("error", &json!({})).step(1)),
    (HookRule::SeqNotIncreasing, |s| s.step(0).step(1).set(4, "seq", json!(3))),
];

const STEPS: &[StreamCase] = &[
    (HookRule::NestedStep, |s| s.start(0).step(1).step(2)),
    (HookRule::StepIndexNotSequential, |s| s.step(0).step(2).step(3)),
    (HookRule::StepIndexNotSequential, |s| s.step(3).step(2).step(3)),
    (HookRule::StepEndWithoutStart, |s| s.step(0).end(1).ack(1, first_control()).step(1)),
    (HookRule::StepEndMismatch, |s| s.start(0).end(1).ack(1, first_control()).step(1)),
    (HookRule::StepAfterStop, |s| s.start(0).end(0).ack(0, stop_control()).step(1)),
    (HookRule::StepIndexMissing, |s| {
        let outcome = json!({ "status": "ok" });
        s.step(0).add(
            "tool_call_end",
            &json!({ "call_id": "c", "tool": { "name": "t" }, "outcome": outcome }),
        )
    }),
];

const ACKS: &[StreamCase] = &[
    (HookRule::AckMissing, |s| s.start(0).end(0).step(1)),
    (HookRule::AckMissing, |s| s.step(0).start(1).end(1)),
    (HookRule::AckWithoutStepEnd, |s| s.step(0).ack(0, first_control()).step(1)),
    (HookRule::AckWithoutStepEnd, |s| s.ack(0, first_control()).step(0)),
    (HookRule::AckStepMismatch, |s| s.start(0).end(0).ack(1, first_control()).step(1)),
    (HookRule::ControlVersionUnknown, |s| {
        s.step(0).set(2, "control_version", json!(format!("sha256:{:064}", 7))).step(1)
    }),
    (HookRule::ControlActionMismatch, |s| {
        s.step(0).set(2, "action_observed", json!("checkpoint")).step(1)
    }),
    (HookRule::ControlSeqMismatch, |s| s.step(0).set(2, "control_seq", json!(1)).step(1)),
];

#[test]
fn hook_stream_that_breaks_one_rule_is_reported_with_it_alone() {
    let cases = || LINES.iter().chain(STEPS).chain(ACKS);
    for (rule, write) in cases() {
        let mut stream = StreamWriter::default();
        let violations = write(&mut stream).check().violations;
        let broken: Vec<HookRule> = violations.first.iter().map(|broken| broken.rule).collect();
        assert_eq!(broken, [*rule], "{:?}", violations.first);
    }
    // These are found outside of the lines.
    let outside = [HookRule::EventsMissing, HookRule::EventsUnreadable];
    let tested =
        |rule: &HookRule| outside.contains(rule) || cases().any(|(of_case, _)| of_case == rule);
    let untested: Vec<_> = HookRule::ALL.iter().filter(|rule| !tested(rule)).collect();
    assert_eq!(untested, Vec::<&HookRule>::new());
}

#[test]
fn hook_stream_violation_names_event_line_and_reason() {
    let mut stream = StreamWriter::default();
    stream.start(4).add("error", &json!({ "message": "m" })).end(5).ack(5, first_control());
    let summary = stream.check();
    let [violation] = &summary.violations.first[..] else { panic!("{summary:?}") };
    assert_eq!((violation.seq, violation.line), (Some(2), 3));
    assert_eq!(violation.message, "step 5 ended, and step 4 had begun");
    assert_eq!((summary.total, summary.last_seq), (4, Some(3)));
    assert_eq!(summary.counts[&HookEventType::Error], 1);
}

#[test]
fn hook_stream_without_required_acks_needs_none() {
    let mut stream = StreamWriter::default();
    stream.start(0).end(0).start(1).end(1);
    let lines: Vec<String> = stream.lines.iter().map(Value::to_string).collect();
    assert_eq!(check(&lines, false).violations.total, 0);
    assert_eq!(check(&lines, true).violations.total, 2);
}

#[test]
fn hook_stream_keeps_few_violations_and_counts_all() {
    let line = format!("{{\"event_type\": \"{}\u{1b}[2J\"}}", "x".repeat(1000));
    let summary = check(vec![line; 100], true);
    assert_eq!(summary.violations.total, 100);
    assert_eq!(summary.violations.first.len(), limits::HOOK_VIOLATIONS);
    let long = |message: &String| {
        message.len() > limits::HOOK_VIOLATION_BYTES || message.contains(char::is_control)
    };
    assert!(!summary.violations.first.iter().any(|violation| long(&violation.message)));
}

#[test]
fn hook_stream_before_first_control_accepts_any_version() {
    let mut validator = super::HookStreamValidator::new(true);
    let mut stream = StreamWriter::default();
    for line in &stream.step(0).lines {
        validator.push(SplitLine::Complete(line.to_string().as_bytes()));
    }
    assert_eq!(validator.finish().violations.total, 0);
}

#[test]
fn hook_event_that_breaks_schema_names_property() {
    let outcome = json!({ "status": "ok" });
    for (event_type, more, message) in [
        ("other", json!({}), "`event_type` is not one of agent_step_start, "),
        ("error", json!({ "message": "m", "seq": -1 }), "`seq` is not a whole number"),
        ("error", json!({ "message": "m", "seq": 1.5 }), "`seq` is not a whole number"),
        ("error", json!({ "message": "m", "ts": "today" }), "`ts` is not a time"),
        ("error", json!({ "message": "m", "ids": { "run_id": "r" } }), "`ids.trial_id` is missing"),
        ("error", json!({ "message": "m", "more": 1 }), "`more` is not a property"),
        ("error", json!({ "message": "m", "tool": {} }), "`tool` is not a property"),
        ("error", json!({ "message": "m", "ext": 1 }), "`ext` is not an object"),
        ("error", json!({ "message": "m", "payload_ref": "sha256:0" }), "`payload_ref` is not"),
        ("error", json!({ "message": "m", "redaction": { "mode": "x" } }), "`redaction.mode` is"),
        ("error", json!({ "message": "m", "hooks_schema_version": "v" }), "`hooks_schema_version`"),
        ("agent_step_start", json!({}), "`step_index` is missing"),
        ("agent_step_start", json!({ "step_index": null }), "`step_index` is not a whole"),
        ("agent_step_end", json!({ "step_index": 0, "budgets": { "steps": "1" } }), "`budgets.s"),
        ("control_ack", json!({ "step_index": 0 }), "`control_version` is missing"),
        ("control_ack", json!({ "step_index": 0, "control_version": 3 }), "`control_version` is n"),
        ("model_call_end", json!({ "outcome": outcome }), "`call_id` is missing"),
        ("model_call_end", json!({ "call_id": "c", "outcome": {} }), "`outcome.status` is missing"),
        ("tool_call_end", json!({ "call_id": "c", "outcome": outcome }), "`tool` is missing"),
        ("tool_call_end", json!({ "call_id": "c", "tool": {} }), "`tool.name` is missing"),
    ] {
        let line = event(event_type, 0, &more).to_string();
        let error = parse_event(line.as_bytes()).expect_err("invalid").to_string();
        assert!(error.starts_with(message), "{line}: {error}");
    }
}

#[test]
fn hook_event_with_all_properties_is_read() {
    let timing = json!({ "queue_wait_ms": 0.5, "duration_ms": 3 });
    for (event_type, more) in [
        (
            "agent_step_end",
            json!({
                "step_index": 1.0,
                "budgets": { "steps": 1, "tokens_in": 2, "tokens_out": 3, "tool_calls": 4, "more": 5 },
            }),
        ),
        (
            "model_call_end",
            json!({
                "call_id": "c", "outcome": { "status": "error", "error_type": "t", "message": "m" },
                "turn_index": 0, "model": { "identity": "i", "params_digest": "d" },
                "usage": { "tokens_in": 1, "tokens_out": 2 }, "timing": timing, "attempt_index": 0,
                "step_index": null, "hooks_schema_version": "hook_events_v1", "ext": { "any": [] },
                "payload_ref": format!("artifact://sha256/{:064}", 1),
                "redaction": { "applied": true, "mode": "hash" },
            }),
        ),
        (
            "tool_call_end",
            json!({
                "call_id": "c", "tool": { "name": "n", "version": "1" }, "timing": timing,
                "outcome": { "status": "ok" }, "attempt_index": 1,
            }),
        ),
        ("error", json!({ "message": "m", "error_type": "t", "stack": "s" })),
    ] {
        let line = event(event_type, 0, &more).to_string();
        let read = parse_event(line.as_bytes()).expect(&line);
        assert_eq!(read.body.event_type().as_str(), event_type);
    }
}

/// Events inside a step.
fn inner_event() -> impl Strategy<Value = (&'static str, Value)> {
    let outcome = prop_oneof![Just("ok"), Just("error")].prop_map(|s| json!({ "status": s }));
    (0u32..3, "[a-z\"\\\\\\PC]{0,8}", outcome, any::<u32>()).prop_map(|(kind, text, outcome, n)| {
        match kind {
            0 => ("error", json!({ "message": text })),
            1 => (
                "model_call_end",
                json!({
                    "call_id": text, "outcome": outcome, "usage": { "tokens_in": n },
                }),
            ),
            _ => (
                "tool_call_end",
                json!({
                    "call_id": text, "outcome": outcome, "tool": { "name": text },
                }),
            ),
        }
    })
}

/// Streams that keep every rule.
fn valid_stream() -> impl Strategy<Value = Vec<Value>> {
    let steps = proptest::collection::vec(proptest::collection::vec(inner_event(), 0..4), 0..6);
    (steps, 0u64..3, any::<bool>(), 1u64..5).prop_map(|(steps, first, stops, gap)| {
        let mut stream = StreamWriter::default();
        let last = steps.len().saturating_sub(1);
        for (index, inner) in steps.into_iter().enumerate() {
            let step = first + index as u64;
            stream.start(step);
            for (event_type, mut more) in inner {
                more["step_index"] = json!(step);
                stream.add(event_type, &more);
            }
            let control = if stops && index == last { stop_control() } else { first_control() };
            stream.end(step).ack(step, control);
        }
        for line in &mut stream.lines {
            line["seq"] = json!(line["seq"].as_u64().expect("a number") * gap);
        }
        stream.lines
    })
}

proptest! {
    #[test]
    fn hook_stream_that_keeps_rules_is_never_reported(stream in valid_stream()) {
        let summary = check(stream.iter().map(Value::to_string), true);
        prop_assert_eq!(&summary.violations.first, &[]);
        prop_assert_eq!(summary.total, stream.len() as u64);
        prop_assert_eq!(summary.counts.values().sum::<u64>(), summary.total);
    }

    #[test]
    fn hook_stream_with_mutations_is_counted_without_panic(
        stream in valid_stream(),
        edits in proptest::collection::vec((0u32..4, any::<usize>(), any::<usize>(), any::<u8>()), 1..8),
    ) {
        let mut lines: Vec<Vec<u8>> =
            stream.iter().map(|line| line.to_string().into_bytes()).collect();
        for (kind, at, other, byte) in edits {
            if lines.is_empty() {
                break;
            }
            let (at, other) = (at % lines.len(), other % lines.len());
            match kind {
                0 => drop(lines.remove(at)),
                1 => lines.swap(at, other),
                2 => lines.insert(at, lines[other].clone()),
                _ => {
                    let place = other % lines[at].len().max(1);
                    if let Some(found) = lines[at].get_mut(place) {
                        *found = byte;
                    }
                }
            }
        }
        let count = lines.len() as u64;
        let summary = check(&lines, true);
        prop_assert!(summary.total <= count);
        prop_assert_eq!(summary.counts.values().sum::<u64>(), summary.total);
        prop_assert!(summary.violations.first.len() as u64 <= summary.violations.total);
    }

    #[test]
    fn hook_event_parser_accepts_any_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _parsed = parse_event(&bytes);
    }
}
