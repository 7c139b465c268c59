//! Controls of harnesses that run.

use std::time::Duration;

use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType};
use rollout_protocol::harness::{
    ControlAction, ControlDocument, ControlRequest, HarnessControl, IntegrationLevel,
};
use rollout_protocol::record::TrialRecord;
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::harness::HarnessSpec;
use rollout_protocol::wire::trial_control::TrialControlResult;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::super::testing::TrialFixture;
use super::{error, run};
use crate::executor::{Finished, MailboxRefusal};

const EVENTS: &str = "/logs/agent/events.jsonl";
const CONTROL: &str = "/state/lab_control.json";
const PAUSE: Duration = Duration::from_millis(10);

/// A trial of a harness with a command of the scripted shell that takes this long.
async fn fixture(level: IntegrationLevel, seconds: u32) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    let output = json!({ "schema_version": "trial_output_v1", "ids": ids(), "outcome": "success" });
    let command = format!("sleep {seconds}\necho '{output}' > $ROLLOUT_TRIAL_OUTPUT");
    let events_path = Some(EVENTS.to_owned());
    let spec = HarnessSpec { integration_level: level, events_path, ..HarnessSpec::new(command) };
    rig.agent.kind = AgentKind::Harness(Box::new(spec));
    rig.task.steps[0].agent.timeout_sec = None;
    rig
}

fn ids() -> Value {
    json!({ "run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0 })
}

fn request(action: ControlAction) -> ControlRequest {
    ControlRequest {
        action,
        label: Some("by hand".to_owned()),
        requested_by: "someone".to_owned(),
        timeout: Duration::from_secs(60),
        grace: Duration::from_secs(30),
    }
}

/// Sends a control as soon as the command runs.
async fn send(rig: &TrialFixture, action: ControlAction) -> oneshot::Receiver<TrialControlResult> {
    loop {
        match rig.controls.send(request(action)) {
            Ok(result) => return result,
            Err(MailboxRefusal::Closed) => sleep(PAUSE).await,
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}

/// Waits until the harness can read the control with this number.
async fn read_control(rig: &TrialFixture, seq: u64) -> (Digest, ControlDocument) {
    loop {
        if let Some(bytes) = rig.provider.file(CONTROL) {
            let read: ControlDocument = serde_json::from_slice(&bytes).expect("a whole control");
            if read.seq == seq {
                return (Digest::sha256(&bytes), read);
            }
        }
        sleep(PAUSE).await;
    }
}

/// Writes a step that ends with an acknowledgement, as a harness does.
fn write_acknowledgement(rig: &TrialFixture, (version, control): (Digest, ControlDocument)) {
    let event = |seq: u64, kind: &str, more: Value| {
        let mut event = json!({
            "event_type": kind, "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids(),
            "step_index": 0,
        });
        event.as_object_mut().expect("an object").extend(more.as_object().expect("more").clone());
        format!("{event}\n")
    };
    let ack = json!({ "control_version": version, "action_observed": control.action });
    let events = [
        event(0, "agent_step_start", json!({})),
        event(1, "agent_step_end", json!({})),
        event(2, "control_ack", ack),
    ];
    rig.provider.write_file(EVENTS, events.concat().as_bytes());
}

fn controls(finished: &Finished<TrialRecord>) -> &[HarnessControl] {
    &finished.record.harness.as_deref().expect("the result of a harness").controls
}

#[tokio::test(start_paused = true)]
async fn acknowledged_stop_lets_command_end_by_itself() {
    let rig = fixture(IntegrationLevel::CliEvents, 500).await;
    let user = async {
        let result = send(&rig, ControlAction::Stop).await;
        let control = read_control(&rig, 1).await;
        assert_eq!(control.1.label.as_deref(), Some("by hand"));
        write_acknowledgement(&rig, control);
        result.await.expect("an answer")
    };
    let (finished, result) = tokio::join!(run(&rig), user);
    let TrialControlResult::Acknowledged { control } = result else { panic!("{result:?}") };
    assert_eq!(controls(&finished), [control]);
    let control = &controls(&finished)[0];
    let acknowledgement = control.acknowledgement.expect("acknowledged");
    assert_eq!(
        (acknowledgement.action_taken, acknowledgement.step_index),
        (ControlAction::Stop, Some(0))
    );
    assert!(control.delivered_at.is_some() && !control.ended_command, "{control:?}");
    assert_eq!(finished.record.verdict.error, None);
    assert_eq!(finished.record.verdict.reward, Some(1.0));
    let events = finished.record.harness.as_deref().and_then(|harness| harness.events.as_ref());
    let events = events.expect("events");
    assert_eq!((events.total, events.violations.total), (3, 0), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn ignored_stop_ends_command_as_its_time_limit_does() {
    let rig = fixture(IntegrationLevel::CliEvents, 1_000_000).await;
    let began = tokio::time::Instant::now();
    let user = async { send(&rig, ControlAction::Stop).await.await.expect("an answer") };
    let (finished, result) = tokio::join!(run(&rig), user);
    let TrialControlResult::Unacknowledged { control, command_ended: false } = result else {
        panic!("{result:?}")
    };
    assert_eq!(control.acknowledgement, None);
    let took = began.elapsed().as_secs();
    assert!((90..120).contains(&took), "60 s until the answer, and 30 s of grace: {took}");
    let error = error(&finished);
    assert_eq!(
        (&error.kind, &error.code),
        (&ErrorType::AgentExecutionTimeout, &ErrorCode::TIMED_OUT)
    );
    assert_eq!(error.class, ErrorClass::Agent);
    assert!(error.message.contains("acknowledged no `stop`"), "{error:?}");
    let [recorded] = controls(&finished) else { panic!("{finished:?}") };
    assert_eq!((recorded.acknowledgement, recorded.ended_command), (None, true));
    assert_eq!(recorded.control_version, control.control_version);
}

#[tokio::test(start_paused = true)]
async fn acknowledgement_just_before_end_of_command_counts() {
    let rig = fixture(IntegrationLevel::CliEvents, 100).await;
    let user = async {
        // The command ends before the events are read again.
        read_control(&rig, 0).await;
        sleep(Duration::from_millis(99_500)).await;
        let result = send(&rig, ControlAction::Checkpoint).await;
        write_acknowledgement(&rig, read_control(&rig, 1).await);
        result.await.expect("an answer")
    };
    let (finished, result) = tokio::join!(run(&rig), user);
    assert!(matches!(result, TrialControlResult::Acknowledged { .. }), "{result:?}");
    assert!(controls(&finished)[0].acknowledgement.is_some());
}

#[tokio::test(start_paused = true)]
async fn acknowledgement_before_control_is_known_to_be_delivered_counts() {
    let rig = fixture(IntegrationLevel::CliEvents, 20).await;
    let user = async {
        read_control(&rig, 0).await;
        sleep(Duration::from_secs(10)).await;
        // The call that puts the control in place.
        let calls = rig.provider.calls().into_iter().filter(|call| *call == FakeCall::Exec).count();
        rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, calls), FaultEffect::HangAfterwards);
        let result = send(&rig, ControlAction::Stop).await;
        write_acknowledgement(&rig, read_control(&rig, 1).await);
        result.await.expect("an answer")
    };
    let (finished, result) = tokio::join!(run(&rig), user);
    assert!(matches!(result, TrialControlResult::Acknowledged { .. }), "{result:?}");
    let [control] = controls(&finished) else { panic!("{finished:?}") };
    assert!(control.acknowledgement.is_some() && control.delivered_at.is_none(), "{control:?}");
}

#[tokio::test(start_paused = true)]
async fn command_that_ends_unasked_leaves_control_unacknowledged() {
    let rig = fixture(IntegrationLevel::CliEvents, 20).await;
    let user = async { send(&rig, ControlAction::Checkpoint).await.await.expect("an answer") };
    let (finished, result) = tokio::join!(run(&rig), user);
    let ended = matches!(result, TrialControlResult::Unacknowledged { command_ended: true, .. });
    assert!(ended, "{result:?}");
    assert_eq!(finished.record.verdict.error, None);
    assert_eq!(controls(&finished).len(), 1);
    let closed = rig.controls.send(request(ControlAction::Stop)).expect_err("it has ended");
    assert_eq!(closed, MailboxRefusal::Closed);
}

#[tokio::test(start_paused = true)]
async fn agent_that_cannot_acknowledge_gets_no_control() {
    for level in [Some(IntegrationLevel::CliBasic), None] {
        let mut rig = fixture(IntegrationLevel::CliBasic, 20).await;
        if level.is_none() {
            rig.set_scripts(None, Some("sleep 20"));
        }
        let user = async {
            loop {
                match rig.controls.send(request(ControlAction::Stop)) {
                    Err(MailboxRefusal::Closed) => sleep(PAUSE).await,
                    other => return other.expect_err("refused"),
                }
            }
        };
        let (finished, refusal) = tokio::join!(run(&rig), user);
        assert_eq!(refusal, MailboxRefusal::Unsupported(level));
        assert_eq!(finished.record.verdict.error, None);
        assert!(finished.record.harness.is_none_or(|harness| harness.controls.is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn control_that_cannot_be_written_is_refused() {
    let rig = fixture(IntegrationLevel::SdkControl, 20).await;
    // The first two calls place the input and the first control.
    let third = FaultTrigger::Nth(FakeCall::CopyTo, 2);
    rig.provider.fault(third, FaultEffect::Fail(FailureKind::Service));
    let user = async { send(&rig, ControlAction::Stop).await.await.expect("an answer") };
    let (finished, result) = tokio::join!(run(&rig), user);
    let TrialControlResult::Refused { reason } = result else { panic!("{result:?}") };
    assert!(reason.starts_with("cannot write the control: "), "{reason}");
    let [recorded] = controls(&finished) else { panic!("{finished:?}") };
    assert_eq!((recorded.delivered_at, recorded.ended_command), (None, false));
    assert_eq!(finished.record.verdict.error, None);
}
