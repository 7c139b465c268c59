//! The contract suite of executors. It runs the job of [`write_job`](super::write_job) on an executor
//! on which no trial was started, and leaves every trial settled. It fails by panicking.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rollout_coordinator::executor::{
    ExecutorError, PlanTrial, TrialEventStream, TrialExecutor, run_plan,
};
use rollout_coordinator::plan::JobPlan;
use rollout_protocol::artifact::ArtifactType;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::RetryClass;
use rollout_protocol::executor::{StartTrial, TrialHandle, TrialStatus};
use rollout_protocol::harness::{ControlAction, ControlRequest, HookEventType, TrialOutput};
use rollout_protocol::id::ItemId;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, TrialRecord};
use rollout_protocol::reference::OutputType;
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::trial_control::TrialControlResult;
use tokio::io::AsyncReadExt as _;

use super::{HEEDS, KEPT, WAITS, WRITES};
use crate::wait;

/// Longest wait for a status.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs the whole suite. Returns the trials of the plan, all settled.
///
/// # Panics
/// When the executor breaks its contract.
pub async fn run_all(executor: &dyn TrialExecutor, plan: &JobPlan) -> Vec<PlanTrial> {
    unknown_trial_is_refused(executor, plan).await;
    let written = finished_trial_has_output_and_artifacts(executor, plan).await;
    let heeded = control_is_acknowledged_and_events_are_numbered(executor, plan).await;
    let cancelled = cancelled_trial_settles_as_cancelled(executor, plan).await;
    missing_content_is_an_error(executor).await;
    let trials = run_plan(executor, plan, 2).await.expect("every trial is settled");
    let items: Vec<_> = trials.iter().map(|trial| trial.settlement.item).collect();
    assert_eq!(items, [written, heeded, cancelled], "the plan's order");
    for trial in &trials {
        assert_eq!(trial.settlement.superseded, [], "settled trials do not run again");
    }
    trials
}

fn start_of(plan: &JobPlan, agent: &str) -> StartTrial {
    let planned = plan.trials().find(|trial| trial.name.agent == agent).expect("a planned trial");
    StartTrial { trial: planned.name, spec: planned.trial_ref }
}

async fn start(executor: &dyn TrialExecutor, plan: &JobPlan, agent: &str) -> TrialHandle {
    executor.start_trial(start_of(plan, agent)).await.expect("started")
}

/// Trials that are not planned, planned under other documents, or not started, are errors for good.
async fn unknown_trial_is_refused(executor: &dyn TrialExecutor, plan: &JobPlan) {
    let good = start_of(plan, WRITES);
    let mut other_name = good.clone();
    other_name.trial.attempt = 99;
    let refused = executor.start_trial(other_name).await.expect_err("not planned");
    assert!(matches!(refused, ExecutorError::UnknownTrial { .. }), "{refused}");
    assert_eq!(refused.retry_class(), RetryClass::Permanent);
    let spec = TrialRef { agent: Digest::sha256(b"another agent"), ..good.spec };
    let other_spec = StartTrial { spec, ..good.clone() };
    let refused = executor.start_trial(other_spec).await.expect_err("another spec");
    assert!(matches!(refused, ExecutorError::OtherSpec { .. }), "{refused}");

    let item = good.item();
    let calls = [
        executor.trial_status(item).await.err(),
        executor.trial_output(item).await.err(),
        executor.trial_artifacts(item).await.err(),
        executor.cancel_trial(item).await.err(),
        executor.send_control(item, control(ControlAction::Stop)).await.err(),
        executor.trial_events(item, 0).try_next().await.err(),
    ];
    for (number, error) in calls.into_iter().enumerate() {
        assert!(matches!(error, Some(ExecutorError::UnknownTrial { .. })), "{number}: {error:?}");
    }
}

/// A settled trial has its settlement, its record as output, and its artifacts by reference.
async fn finished_trial_has_output_and_artifacts(
    executor: &dyn TrialExecutor,
    plan: &JobPlan,
) -> ItemId {
    let handle = start(executor, plan, WRITES).await;
    assert_eq!(start(executor, plan, WRITES).await, handle, "it is started once");
    let item = handle.item;
    let events: Vec<_> = executor.trial_events(item, 0).collect().await;
    assert!(events.is_empty(), "it has no harness: {events:?}");
    let status = executor.trial_status(item).await.expect("started");
    let settlement = status.settlement().expect("the stream ends with the trial").clone();
    assert_eq!(settlement.verdict.reward, Some(1.0), "{settlement:#?}");

    let output = executor.trial_output(item).await.expect("settled").expect("a record");
    assert_eq!(output.output_type, OutputType::TrialRecord);
    let by = settlement.by.as_ref().expect("an execution");
    assert_eq!(Some(&output.blob), by.record.as_ref());
    let record: TrialRecord =
        serde_json::from_slice(&read(executor, &output.blob).await).expect("a record");
    assert_eq!((record.item, record.exec, &record.verdict), (item, by.exec, &settlement.verdict));

    let artifacts = executor.trial_artifacts(item).await.expect("settled");
    let find = |path: &str| {
        let found = artifacts.iter().find(|artifact| artifact.path == path);
        found.unwrap_or_else(|| panic!("no {path}: {artifacts:#?}"))
    };
    let stdout = find("command/stdout.txt");
    assert_eq!(stdout.artifact_type, ArtifactType::Log);
    assert_eq!(read(executor, &stdout.blob).await, b"hello\n");
    let kept = find("artifacts/kept.txt");
    assert_eq!(kept.artifact_type, ArtifactType::WorkspaceDiff, "as the job says");
    assert_eq!(kept.blob.media_type, Some(MediaType::Tar));
    let archive = read(executor, &kept.blob).await;
    let at = archive.windows(KEPT.len()).position(|window| window == KEPT.as_bytes());
    assert!(at.is_some(), "the archive has the file");
    executor.cancel_trial(item).await.expect("it keeps its result");
    assert_eq!(executor.trial_status(item).await.expect("settled"), status);
    let late = executor.send_control(item, control(ControlAction::Stop)).await;
    assert!(matches!(late, Err(ExecutorError::NotRunning { .. })), "{late:?}");
    item
}

/// A harness acknowledges a control. Its events are numbered without gaps, from any number on.
async fn control_is_acknowledged_and_events_are_numbered(
    executor: &dyn TrialExecutor,
    plan: &JobPlan,
) -> ItemId {
    let item = start(executor, plan, HEEDS).await.item;
    let early = executor.trial_output(item).await.expect_err("it runs");
    assert!(matches!(early, ExecutorError::NotSettled { .. }), "{early}");
    assert_eq!(early.retry_class(), RetryClass::Transient);
    wait_for_command(executor, item).await;
    let live = events_arrive_while_trial_runs(executor, item).await;
    wait::until_async(DEADLINE, "an acknowledged stop", async || {
        let sent = executor.send_control(item, control(ControlAction::Stop)).await;
        let receipt = sent.expect("its worker answers");
        assert_eq!((receipt.item, receipt.action), (item, ControlAction::Stop));
        // The command may not have begun yet.
        matches!(receipt.result, TrialControlResult::Acknowledged { .. })
    })
    .await;

    let events: Vec<_> =
        executor.trial_events(item, 0).try_collect().await.expect("recorded events");
    assert_eq!(live.try_collect::<Vec<_>>().await.expect("events"), events, "sent while it ran");
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let of_type =
        |kind: HookEventType| events.iter().filter(move |e| e.event.body.event_type() == kind);
    assert!(of_type(HookEventType::ControlAck).count() >= 1, "{events:#?}");
    for from in [1, events.len() as u64 - 1, events.len() as u64, u64::MAX] {
        let rest: Vec<_> = executor.trial_events(item, from).try_collect().await.expect("events");
        let expected = events.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or(&[]);
        assert_eq!(rest, expected, "from {from}");
    }
    let output = executor.trial_output(item).await.expect("settled").expect("a document");
    assert_eq!(output.output_type, OutputType::TrialOutputV1);
    TrialOutput::parse(&read(executor, &output.blob).await).expect("an output document");
    let artifacts = executor.trial_artifacts(item).await.expect("settled");
    let traces = artifacts.iter().filter(|a| a.artifact_type == ArtifactType::Trace);
    assert_eq!(traces.count(), 1, "{artifacts:#?}");
    item
}

/// Events are sent while the harness waits for a control, from any number. Returns a stream of all
/// events that was begun while the trial ran.
async fn events_arrive_while_trial_runs(
    executor: &dyn TrialExecutor,
    item: ItemId,
) -> TrialEventStream {
    let mut first = Vec::new();
    let mut streams = [0, 1].map(|from| executor.trial_events(item, from));
    for (from, stream) in (0u64..).zip(&mut streams) {
        let next = tokio::time::timeout(DEADLINE, stream.try_next()).await;
        let event = next.expect("while it runs").expect("an event").expect("not its end");
        assert_eq!(event.number, from);
        first.push(event);
    }
    let status = executor.trial_status(item).await.expect("started");
    assert!(matches!(status, TrialStatus::Running { .. }), "{status:?}");
    let [all, _] = streams;
    stream::iter([Ok(first.swap_remove(0))]).chain(all).boxed()
}

/// A cancelled trial settles as cancelled; a second request changes nothing.
async fn cancelled_trial_settles_as_cancelled(
    executor: &dyn TrialExecutor,
    plan: &JobPlan,
) -> ItemId {
    let item = start(executor, plan, WAITS).await.item;
    wait_for_command(executor, item).await;
    executor.cancel_trial(item).await.expect("cancelled");
    let mut events = executor.trial_events(item, 0);
    let end = tokio::time::timeout(DEADLINE, events.try_next()).await.expect("it settles soon");
    assert_eq!(end.expect("an end"), None);
    let status = executor.trial_status(item).await.expect("started");
    let settlement = status.settlement().expect("settled");
    assert_eq!(settlement.verdict.outcome, ItemOutcome::Cancelled);
    executor.cancel_trial(item).await.expect("cancelled before");
    assert_eq!(executor.trial_status(item).await.expect("settled"), status);
    item
}

/// Content that is not there is an error, and never other content.
async fn missing_content_is_an_error(executor: &dyn TrialExecutor) {
    let missing = BlobRef::for_bytes(b"never stored", MediaType::Text);
    let refused = executor.read_artifact(&missing).await.err().expect("it is missing");
    assert!(matches!(refused, ExecutorError::Store(_)), "{refused}");
    assert_eq!(refused.retry_class(), RetryClass::Permanent);
}

async fn wait_for_command(executor: &dyn TrialExecutor, item: ItemId) {
    wait::until_async(DEADLINE, "the agent's command", async || {
        let status = executor.trial_status(item).await.expect("started");
        matches!(status, TrialStatus::Running { phase: Phase::AgentExecution, .. })
    })
    .await;
}

fn control(action: ControlAction) -> ControlRequest {
    ControlRequest {
        action,
        label: None,
        requested_by: "test".to_owned(),
        timeout: Duration::from_secs(30),
        grace: Duration::from_secs(30),
    }
}

/// The content of a blob, which must have its digest and size.
async fn read(executor: &dyn TrialExecutor, blob: &BlobRef) -> Vec<u8> {
    let mut content = Vec::new();
    let mut reader = executor.read_artifact(blob).await.expect("stored");
    reader.read_to_end(&mut content).await.expect("read");
    assert_eq!(Digest::sha256(&content), blob.digest);
    assert_eq!(content.len() as u64, blob.size_bytes);
    content
}
