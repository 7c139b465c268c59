//! Hook events that are stored while their harness runs.

use std::time::Duration;

use rollout_base::secrets::TrialVariables;
use rollout_protocol::digest::Digest;
use rollout_protocol::harness::{HookRule, IntegrationLevel};
use rollout_protocol::limits;
use rollout_protocol::record::{HarnessEvents, TrialRecord};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::harness::HarnessSpec;
use rollout_protocol::template::Template;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::testing::TrialFixture;
use super::run;
use crate::executor::{Finished, NewEventChunk};

const EVENTS: &str = "/logs/agent/events.jsonl";
const CONTROL: &str = "/state/lab_control.json";

/// Between two writes of a harness: longer than between two readings.
const PAUSE: Duration = Duration::from_millis(1_300);

fn ids() -> Value {
    json!({ "run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0 })
}

/// A trial of a harness whose command takes this long; it writes its output at the end.
async fn fixture(milliseconds: u64) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    let output = json!({ "schema_version": "trial_output_v1", "ids": ids(), "outcome": "success" });
    let seconds = milliseconds as f64 / 1000.0;
    let command = format!("sleep {seconds}\necho '{output}' > $ROLLOUT_TRIAL_OUTPUT");
    let events_path = Some(EVENTS.to_owned());
    let integration_level = IntegrationLevel::CliEvents;
    let spec = HarnessSpec { integration_level, events_path, ..HarnessSpec::new(command) };
    rig.agent.kind = AgentKind::Harness(Box::new(spec));
    rig.task.steps[0].agent.timeout_sec = None;
    rig
}

fn line(seq: u64, kind: &str, step: Option<u64>, more: &Value) -> String {
    let mut event =
        json!({ "event_type": kind, "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids() });
    let event_fields = event.as_object_mut().expect("an object");
    event_fields.extend(step.map(|step| ("step_index".to_owned(), json!(step))));
    event_fields.extend(more.as_object().expect("an object").clone());
    format!("{event}\n")
}

fn error_event(seq: u64, message: &str) -> String {
    line(seq, "error", None, &json!({ "message": message }))
}

/// Writes the parts of a log, one after another, while the trial runs. The first one is written
/// when the control is there.
async fn write_parts(rig: &TrialFixture, parts: impl FnOnce(Digest) -> Vec<String>) -> String {
    let control = loop {
        match rig.provider.file(CONTROL) {
            Some(control) => break control,
            None => sleep(Duration::from_millis(10)).await,
        }
    };
    let mut text = String::new();
    for part in parts(Digest::sha256(&control)) {
        text.push_str(&part);
        rig.provider.write_file(EVENTS, text.as_bytes());
        sleep(PAUSE).await;
    }
    text
}

fn events(finished: &Finished<TrialRecord>) -> &HarnessEvents {
    let harness = finished.record.harness.as_deref().expect("the result of a harness");
    harness.events.as_ref().expect("events")
}

/// The bytes of chunks that follow one another.
fn joined(chunks: &[NewEventChunk]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in chunks {
        assert_eq!((chunk.log, chunk.step, chunk.offset), (1, 0, bytes.len() as u64));
        bytes.extend_from_slice(&chunk.bytes);
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn events_are_stored_about_once_a_second_while_command_runs() {
    let rig = fixture(20_500).await;
    let lines: Vec<String> = (0..1000).map(|seq| error_event(seq, "m")).collect();
    let parts = lines.chunks(100).map(<[String]>::concat).collect();
    let (finished, text) = tokio::join!(run(&rig), write_parts(&rig, |_| parts));
    let chunks = rig.event_log.chunks();
    assert_eq!(joined(&chunks), text.as_bytes());
    assert!((8..=14).contains(&chunks.len()), "not one for every event: {}", chunks.len());
    let last = chunks.last().expect("a chunk");
    assert_eq!((last.last_seq, last.total, last.violations), (Some(999), 1000, 0));
    assert_eq!((events(&finished).total, events(&finished).violations.total), (1000, 0));
}

#[tokio::test(start_paused = true)]
async fn events_of_last_second_are_stored_after_command() {
    let rig = fixture(1_350).await;
    let parts = vec![error_event(0, "first"), error_event(1, "last")];
    let (finished, text) = tokio::join!(run(&rig), write_parts(&rig, |_| parts));
    let chunks = rig.event_log.chunks();
    assert_eq!(joined(&chunks), text.as_bytes());
    assert_eq!(chunks.len(), 2, "the second one after the command");
    assert_eq!(events(&finished).total, 2);
}

#[tokio::test(start_paused = true)]
async fn short_command_announces_no_events() {
    let rig = fixture(900).await;
    let parts = vec![error_event(0, "only")];
    let (finished, _) = tokio::join!(run(&rig), write_parts(&rig, |_| parts));
    assert_eq!(rig.event_log.chunks(), []);
    assert_eq!(events(&finished).total, 1, "they are in the record");
}

#[tokio::test(start_paused = true)]
async fn stored_events_contain_no_secrets() {
    let mut rig = fixture(8_000).await;
    rig.variables = TrialVariables::new([("TOKEN".to_owned(), "swordfish-1".to_owned())]);
    rig.agent.env.insert("TOKEN".to_owned(), Template::new("${TOKEN}".to_owned()));
    let parts = vec![error_event(0, "swordfish-1"), error_event(1, "x swordfish-1 x")];
    let (finished, text) = tokio::join!(run(&rig), write_parts(&rig, |_| parts));
    let stored = String::from_utf8(joined(&rig.event_log.chunks())).expect("text");
    assert_eq!(stored, text.replace("swordfish-1", "***********"));
    assert_eq!(events(&finished).total, 2);
}

#[tokio::test(start_paused = true)]
async fn file_that_shrinks_is_no_longer_followed() {
    let rig = fixture(9_000).await;
    let long = error_event(0, &"m".repeat(500));
    let writing = async {
        let text = write_parts(&rig, |_| vec![long.clone()]).await;
        for seq in 1..4 {
            rig.provider.write_file(EVENTS, error_event(seq, "new").as_bytes());
            sleep(PAUSE).await;
        }
        text
    };
    let (finished, text) = tokio::join!(run(&rig), writing);
    assert_eq!(joined(&rig.event_log.chunks()), text.as_bytes());
    assert_eq!(events(&finished).total, 1, "the record has the file as it was at the end");
}

/// A rule, and the parts of a log that breaks it.
type BrokenRule = (HookRule, fn(Digest) -> Vec<String>);

fn ack(seq: u64, step: u64, version: Digest) -> String {
    let more = json!({ "control_version": version, "action_observed": "continue" });
    line(seq, "control_ack", Some(step), &more)
}

fn start(seq: u64, step: u64) -> String {
    line(seq, "agent_step_start", Some(step), &json!({}))
}

fn end(seq: u64, step: u64) -> String {
    line(seq, "agent_step_end", Some(step), &json!({}))
}

/// An acknowledgement with one property changed, between two steps.
fn changed_ack(version: Digest, key: &str, value: Value) -> Vec<String> {
    let mut more = json!({ "control_version": version, "action_observed": "continue" });
    more[key] = value;
    let ack = line(2, "control_ack", Some(0), &more);
    vec![start(0, 0), end(1, 0), ack, start(3, 1), end(4, 1), self::ack(5, 1, version)]
}

const BROKEN: &[BrokenRule] = &[
    (HookRule::LineTooLong, |_| {
        vec![error_event(0, &"m".repeat(limits::HOOK_EVENT_BYTES)), error_event(1, "m")]
    }),
    (HookRule::InvalidJson, |_| vec!["text\n".to_owned(), error_event(1, "m")]),
    (HookRule::InvalidEvent, |_| vec!["{}\n".to_owned(), error_event(1, "m")]),
    (HookRule::SeqNotIncreasing, |_| vec![error_event(1, "m"), error_event(1, "m")]),
    (HookRule::NestedStep, |v| vec![start(0, 0), start(1, 1), end(2, 1), ack(3, 1, v)]),
    (HookRule::StepIndexNotSequential, |v| {
        vec![start(0, 0), end(1, 0), ack(2, 0, v), start(3, 2), end(4, 2), ack(5, 2, v)]
    }),
    (HookRule::StepEndWithoutStart, |v| vec![end(0, 0), ack(1, 0, v)]),
    (HookRule::StepEndMismatch, |v| vec![start(0, 0), end(1, 1), ack(2, 1, v)]),
    (HookRule::AckMissing, |v| vec![start(0, 0), end(1, 0), start(2, 1), end(3, 1), ack(4, 1, v)]),
    (HookRule::AckWithoutStepEnd, |v| vec![ack(0, 0, v), error_event(1, "m")]),
    (HookRule::AckStepMismatch, |v| vec![start(0, 0), end(1, 0), ack(2, 1, v)]),
    (HookRule::ControlVersionUnknown, |v| {
        changed_ack(v, "control_version", json!(Digest::sha256(b"another")))
    }),
    (HookRule::ControlActionMismatch, |v| changed_ack(v, "action_observed", json!("checkpoint"))),
    (HookRule::ControlSeqMismatch, |v| changed_ack(v, "control_seq", json!(7))),
    (HookRule::StepAfterStop, |v| changed_ack(v, "action_observed", json!("stop"))),
    (HookRule::StepIndexMissing, |v| {
        let more = json!({
            "call_id": "c", "tool": { "name": "t" }, "outcome": { "status": "ok" },
        });
        vec![start(0, 0), end(1, 0), ack(2, 0, v), line(3, "tool_call_end", None, &more)]
    }),
];

#[tokio::test(start_paused = true)]
async fn violations_are_found_while_command_runs_as_in_its_record() {
    for (rule, parts) in BROKEN {
        let rig = fixture(15_000).await;
        let (finished, text) = tokio::join!(run(&rig), write_parts(&rig, parts));
        let found = &events(&finished).violations;
        assert!(found.first.iter().any(|violation| violation.rule == *rule), "{rule}: {found:?}");
        let chunks = rig.event_log.chunks();
        assert_eq!(joined(&chunks), text.as_bytes(), "{rule}");
        let last = chunks.last().expect("a chunk");
        assert_eq!((last.violations, last.total), (found.total, events(&finished).total), "{rule}");
        assert_eq!(finished.record.verdict.error, None, "{rule}: violations lose no result");
    }
    // These are known only after the command.
    let outside = [HookRule::EventsMissing, HookRule::EventsUnreadable];
    let is_tested = |rule: &HookRule| BROKEN.iter().any(|(tested, _)| tested == rule);
    let untested: Vec<_> =
        HookRule::ALL.iter().filter(|rule| !is_tested(rule) && !outside.contains(rule)).collect();
    assert_eq!(untested, Vec::<&HookRule>::new());
}
