//! Agents that follow the contract of a harness.

use rollout_base::secrets::TrialVariables;
use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::error::TrialError;
use rollout_protocol::harness::{
    HarnessOutcome, HookRule, IntegrationLevel, MetricValue, TrialInput,
};
use rollout_protocol::limits;
use rollout_protocol::record::{HarnessRecord, ItemOutcome, OutputSource, TrialRecord};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::harness::HarnessSpec;
use rollout_protocol::template::Template;
use serde_json::{Value, json};

use super::super::testing::TrialFixture;
use super::{error, error_summary, is_bare, output, run, secondary_codes};
use crate::executor::Finished;

const EVENTS: &str = "/logs/agent/events.jsonl";

/// A trial of a harness with a command of the scripted shell.
async fn fixture(command: &str) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    set(&mut rig, HarnessSpec::new(command));
    rig
}

fn set(rig: &mut TrialFixture, spec: HarnessSpec) {
    rig.agent.kind = AgentKind::Harness(Box::new(spec));
}

/// A trial of a harness that writes events.
async fn fixture_with_events(level: IntegrationLevel, command: &str) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    let command = format!("{command}\n{}", write_output(&json!({})));
    let events_path = Some(EVENTS.to_owned());
    set(
        &mut rig,
        HarnessSpec { integration_level: level, events_path, ..HarnessSpec::new(command) },
    );
    rig
}

fn ids() -> Value {
    json!({ "run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0 })
}

/// An output document with further properties.
fn document(more: &Value) -> String {
    let mut document =
        json!({ "schema_version": "trial_output_v1", "ids": ids(), "outcome": "success" });
    let more = more.as_object().expect("an object").clone();
    document.as_object_mut().expect("an object").extend(more);
    document.to_string()
}

/// A command that writes an output document.
fn write_output(more: &Value) -> String {
    format!("echo '{}' > $ROLLOUT_TRIAL_OUTPUT", document(more))
}

/// A command that writes an event.
fn write_event(seq: u64, more: &Value) -> String {
    let mut event = json!({
        "event_type": "error", "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids(),
        "message": "m",
    });
    event.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    format!("echo '{event}' >> $ROLLOUT_EVENTS_PATH")
}

fn harness(finished: &Finished<TrialRecord>) -> &HarnessRecord {
    finished.record.harness.as_deref().expect("the result of a harness")
}

/// The complete record after its files were stored.
async fn stored(rig: &TrialFixture, finished: &Finished<TrialRecord>) -> TrialRecord {
    finished.store(&*rig.store).await.expect("stored")
}

async fn blob(rig: &TrialFixture, blob: Option<&rollout_protocol::blob::BlobRef>) -> String {
    let blob = blob.expect("a blob");
    let bytes = rig.store.get_bytes(&blob.digest, blob.size_bytes).await.expect("stored");
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[tokio::test]
async fn harness_output_file_is_recorded_beside_reward() {
    let more = json!({
        "objective": { "name": "score", "value": 0.25, "direction": "maximize" },
        "metrics": { "turns": 3, "model": "m" },
        "outcome": "failure",
    });
    let rig = fixture(&write_output(&more)).await;
    let finished = run(&rig).await;
    let verdict = &finished.record.verdict;
    assert_eq!((verdict.outcome, verdict.reward), (ItemOutcome::Completed, Some(1.0)));
    assert_eq!((&verdict.error, &finished.record.secondary_errors), (&None, &Vec::new()));
    let record = stored(&rig, &finished).await;
    let harness = record.harness.as_deref().expect("a result");
    assert_eq!(harness.outcome, HarnessOutcome::Failure);
    assert_eq!(harness.output_source, OutputSource::File);
    assert_eq!(harness.objective.as_ref().map(|objective| objective.value), Some(0.25));
    assert_eq!(harness.metrics["turns"], MetricValue::Number(3.0));
    assert_eq!(harness.events, None, "no file of events is declared");
    assert_eq!(blob(&rig, harness.output.as_ref()).await, document(&more) + "\n");
    assert_eq!(verdict.harness.as_deref(), Some(&harness.summary()));
    let paths: Vec<_> = record.outputs.iter().map(|output| output.path.as_str()).collect();
    assert!(paths.contains(&"harness/trial_output.json"), "{paths:?}");
    assert!(!is_bare(&finished));
}

#[tokio::test]
async fn harness_gets_input_control_and_variables() {
    let commands = "cat; cat $ROLLOUT_CONTROL_PATH\n\
                    test $AGENTLAB_TRIAL_INPUT = $ROLLOUT_TRIAL_INPUT\n\
                    test $AGENTLAB_TRIAL_OUTPUT = $ROLLOUT_TRIAL_OUTPUT\n\
                    test $AGENTLAB_CONTROL_PATH = $ROLLOUT_CONTROL_PATH";
    let mut rig = fixture("").await;
    let mut spec = HarnessSpec::new(format!("{commands}\n{}", write_output(&json!({}))));
    spec.bindings.insert("temperature".to_owned(), json!(0.5));
    set(&mut rig, spec);
    // The job's own variables cannot replace those of the contract.
    rig.agent.env.insert("ROLLOUT_TRIAL_OUTPUT".to_owned(), Template::new("/elsewhere".to_owned()));
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.error, None);
    let stdout = output(&finished, "command/stdout.txt");
    let (input, control) = stdout.split_once('\n').expect("two documents");
    let input: TrialInput = serde_json::from_str(input).expect("an input");
    assert_eq!((input.ids.task_id.as_str(), input.ids.repl_idx), ("task", 0));
    assert_eq!(input.ids.trial_id, finished.record.item.to_string());
    assert_eq!(input.task["instruction"], "do it");
    assert_eq!(input.bindings["temperature"], 0.5);
    assert_eq!(input.runtime.paths.workspace, "/app");
    assert_eq!(
        input.runtime.timeouts.and_then(|limits| limits.trial_seconds?.get().into()),
        Some(60)
    );
    let control: Value = serde_json::from_str(control).expect("a control");
    assert_eq!(control["schema_version"], "control_plane_v1");
    assert_eq!((&control["seq"], &control["action"]), (&json!(0), &json!("continue")));
}

#[tokio::test]
async fn harness_last_line_of_stdout_is_output_without_file() {
    let line = document(&json!({ "metrics": { "a": 1 } }));
    let rig = fixture(&format!("echo working; echo '{line}'; echo")).await;
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.reward, Some(1.0));
    assert_eq!(harness(&finished).output_source, OutputSource::LastLine);
    assert_eq!(harness(&finished).metrics["a"], MetricValue::Number(1.0));
}

/// A trial whose harness leaves no valid output, and the error of its verdict.
async fn run_invalid(command: &str) -> (Finished<TrialRecord>, TrialError) {
    let rig = fixture(command).await;
    let finished = run(&rig).await;
    let error = error(&finished).clone();
    assert_eq!(error_summary(&error), "agent_execution_failed trial_output_error agent permanent");
    assert_eq!(finished.record.verdict.outcome, ItemOutcome::Failed);
    assert_eq!(harness(&finished).outcome, HarnessOutcome::Error);
    (finished, error)
}

#[tokio::test]
async fn harness_without_valid_output_is_failure_of_agent() {
    let large = "x".repeat(usize::try_from(limits::TRIAL_OUTPUT_BYTES).expect("small"));
    for (command, message) in [
        ("echo done", "is not an output"),
        ("echo '{}'", "`schema_version` is missing"),
        ("echo broken > $ROLLOUT_TRIAL_OUTPUT", "it is not a JSON object"),
        ("echo '{}' > $ROLLOUT_TRIAL_OUTPUT; echo x", "`schema_version` is missing"),
        ("mkdir $ROLLOUT_TRIAL_OUTPUT", "it is not a regular file"),
        ("ln -s /etc/passwd $ROLLOUT_TRIAL_OUTPUT", "it is not a regular file"),
        (&format!("echo {large} > $ROLLOUT_TRIAL_OUTPUT"), "bytes, more than 4194304"),
    ] {
        let (finished, error) = run_invalid(command).await;
        assert!(error.message.contains(message), "{}", error.message);
        assert!(error.message.contains("harness_process_error"), "{}", error.message);
        let harness = harness(&finished);
        assert_eq!(harness.output_source, OutputSource::Synthesized);
        let kind = harness.error.as_ref().and_then(|error| error.error_type.as_deref());
        assert_eq!(kind, Some("harness_process_error"));
    }
}

#[tokio::test]
async fn harness_output_that_states_error_is_failure_of_agent() {
    let more =
        json!({ "outcome": "error", "error": { "error_type": "limit", "message": "no\u{1b}" } });
    let (finished, error) = run_invalid(&write_output(&more)).await;
    assert_eq!(harness(&finished).output_source, OutputSource::File);
    let message = "the output of the harness states an error: limit: no\u{fffd}";
    assert_eq!(error.message, message);
}

#[tokio::test]
async fn harness_error_is_verified_where_rules_say_so() {
    let mut rig = fixture(&write_output(&json!({ "outcome": "error" }))).await;
    rig.use_harbor_format();
    let finished = run(&rig).await;
    let verdict = &finished.record.verdict;
    assert_eq!((verdict.outcome, verdict.reward), (ItemOutcome::Completed, Some(1.0)));
    assert_eq!(error(&finished).code.as_str(), "trial_output_error");
}

#[tokio::test]
async fn harness_with_exit_code_keeps_its_output_and_error() {
    let more = json!({ "metrics": { "a": 1 } });
    let rig = fixture(&format!("{}; echo why >&2; exit 3", write_output(&more))).await;
    let finished = run(&rig).await;
    let summary = error_summary(error(&finished));
    assert_eq!(summary, "agent_execution_failed non_zero_exit agent permanent");
    assert_eq!(harness(&finished).outcome, HarnessOutcome::Success);
    assert_eq!(harness(&finished).metrics.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn harness_at_time_limit_keeps_its_output() {
    let rig = fixture(&format!("{}; sleep 1000", write_output(&json!({})))).await;
    let finished = run(&rig).await;
    assert_eq!(error(&finished).code.as_str(), "timed_out");
    assert_eq!(harness(&finished).outcome, HarnessOutcome::Success);
}

#[tokio::test]
async fn harness_in_lost_environment_is_failure_of_infrastructure() {
    let rig = fixture(&format!("{}; vanish", write_output(&json!({})))).await;
    let finished = run(&rig).await;
    let summary = error_summary(error(&finished));
    assert_eq!(summary, "agent_execution_failed environment_lost infrastructure transient");
    assert_eq!(finished.record.harness, None);
}

#[tokio::test]
async fn harness_output_that_cannot_be_fetched_is_failure_of_infrastructure() {
    let first = FaultTrigger::Nth(FakeCall::CopyFrom, 0);
    for (kind, class) in [
        (FailureKind::Service, "provider_error infrastructure transient"),
        (FailureKind::Gone, "environment_lost infrastructure transient"),
        (FailureKind::Unusable, "trial_output_error agent permanent"),
    ] {
        let rig = fixture(&write_output(&json!({}))).await;
        rig.provider.fault(first, FaultEffect::Fail(kind));
        let finished = run(&rig).await;
        assert_eq!(error_summary(error(&finished)), format!("agent_execution_failed {class}"));
    }
    let rig = fixture("exit 3").await;
    rig.provider.fault(first, FaultEffect::Fail(FailureKind::Service));
    let finished = run(&rig).await;
    assert_eq!(error(&finished).code.as_str(), "non_zero_exit");
    assert_eq!(secondary_codes(&finished.record), ["provider_error"]);
}

#[tokio::test]
async fn harness_input_that_cannot_be_placed_is_failure_of_infrastructure() {
    let rig = fixture(&write_output(&json!({}))).await;
    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::CopyTo, 1), FaultEffect::Fail(FailureKind::Service));
    let finished = run(&rig).await;
    let summary = error_summary(error(&finished));
    assert_eq!(summary, "agent_execution_failed provider_error infrastructure transient");
    assert!(error(&finished).message.contains("the control of the harness"));
}

#[tokio::test]
async fn harness_events_are_counted_and_stored() {
    let events = [write_event(0, &json!({})), write_event(4, &json!({ "error_type": "t" }))];
    let rig = fixture_with_events(IntegrationLevel::CliEvents, &events.join("\n")).await;
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.error, None);
    let record = stored(&rig, &finished).await;
    let events = record.harness.as_ref().and_then(|harness| harness.events.as_ref());
    let events = events.expect("events");
    assert_eq!((events.total, events.counts["error"], events.violations.total), (2, 2, 0));
    let log = blob(&rig, events.log.as_ref()).await;
    assert_eq!(log.lines().count(), 2, "{log}");
    let summary = record.verdict.harness.and_then(|harness| harness.events).expect("counts");
    assert_eq!((summary.total, summary.violations), (2, 0));
    assert!(record.outputs.iter().any(|output| output.path == "harness/hook_events.jsonl"));
}

#[tokio::test]
async fn harness_events_with_violations_lose_no_result() {
    let step = json!({ "event_type": "agent_step_end", "step_index": 0 });
    for (events, rules) in [
        (
            vec![write_event(1, &json!({})), write_event(1, &json!({}))],
            vec![HookRule::SeqNotIncreasing],
        ),
        (vec!["echo broken >> $ROLLOUT_EVENTS_PATH".to_owned()], vec![HookRule::InvalidJson]),
        (vec![write_event(0, &step)], vec![HookRule::InvalidEvent]),
        (vec!["echo -n > $ROLLOUT_EVENTS_PATH".to_owned()], vec![HookRule::EventsMissing]),
        (vec!["mkdir $ROLLOUT_EVENTS_PATH".to_owned()], vec![HookRule::EventsUnreadable]),
        (vec![], vec![HookRule::EventsMissing]),
    ] {
        let rig = fixture_with_events(IntegrationLevel::CliEvents, &events.join("\n")).await;
        let finished = run(&rig).await;
        let verdict = &finished.record.verdict;
        assert_eq!((verdict.reward, &verdict.error), (Some(1.0), &None));
        let found = harness(&finished).events.as_ref().expect("declared");
        let found: Vec<_> = found.violations.first.iter().map(|broken| broken.rule).collect();
        assert_eq!(found, rules, "{events:?}");
        assert_eq!(secondary_codes(&finished.record), Vec::<&str>::new());
    }
}

#[tokio::test]
async fn harness_below_event_level_needs_no_events() {
    let rig = fixture_with_events(IntegrationLevel::CliBasic, "echo none").await;
    let finished = run(&rig).await;
    let events = harness(&finished).events.as_ref().expect("declared");
    assert_eq!((events.total, events.violations.total), (0, 0));
}

#[tokio::test]
async fn harness_events_that_cannot_be_fetched_lose_no_result() {
    let rig = fixture_with_events(IntegrationLevel::CliEvents, &write_event(0, &json!({}))).await;
    let second = FaultTrigger::Nth(FakeCall::CopyFrom, 1);
    rig.provider.fault(second, FaultEffect::Fail(FailureKind::Service));
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.reward, Some(1.0));
    assert_eq!(secondary_codes(&finished.record), ["collection_failed"]);
    let events = harness(&finished).events.as_ref().expect("declared");
    assert_eq!(events.violations.first[0].rule, HookRule::EventsUnreadable);
}

#[tokio::test]
async fn harness_documents_show_no_secrets() {
    let more = json!({ "metrics": { "key": "k-12345" }, "answer": "k-12345" });
    let command =
        format!("{}\n{}", write_event(0, &json!({ "message": "k-12345" })), write_output(&more));
    let mut rig = fixture("").await;
    let events_path = Some(EVENTS.to_owned());
    set(&mut rig, HarnessSpec { events_path, ..HarnessSpec::new(command) });
    rig.agent.env.insert("KEY".to_owned(), Template::new("${KEY}".to_owned()));
    rig.variables = TrialVariables::new([("KEY".to_owned(), "k-12345".to_owned())]);
    let record = stored(&rig, &run(&rig).await).await;
    let text = serde_json::to_string(&record).expect("JSON");
    assert!(text.contains("[redacted:KEY]") && !text.contains("k-12345"), "{text}");
    let harness = record.harness.as_deref().expect("a result");
    let log = harness.events.as_ref().and_then(|events| events.log.as_ref());
    for kept in [harness.output.as_ref(), log] {
        let text = blob(&rig, kept).await;
        assert!(text.contains("*******") && !text.contains("k-12345"), "{text}");
    }
}

#[tokio::test]
async fn harness_of_unverified_task_keeps_its_result() {
    let mut rig = fixture(&write_output(&json!({}))).await;
    rig.settings.verifier.disable = true;
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.outcome, ItemOutcome::Unverified);
    assert_eq!(harness(&finished).outcome, HarnessOutcome::Success);
}

#[tokio::test]
async fn harness_in_steps_has_result_of_each_and_takes_no_old_one() {
    let mut rig = TrialFixture::new().await;
    let tests = "echo 1 > /logs/verifier/reward.txt";
    rig.set_steps(&[("one", "", tests), ("two", "", tests)]).await;
    // The second step ends before it writes an output.
    rig.provider.image_file("/app/first", "");
    let write = write_output(&json!({}));
    set(&mut rig, HarnessSpec::new(format!("cat /app/first; rm /app/first; {write}")));
    let record = stored(&rig, &run(&rig).await).await;
    let of_steps: Vec<&HarnessRecord> =
        record.steps.iter().map(|step| step.harness.as_deref().expect("a result")).collect();
    let sources: Vec<OutputSource> = of_steps.iter().map(|harness| harness.output_source).collect();
    assert_eq!(sources, [OutputSource::File, OutputSource::Synthesized]);
    assert!(of_steps.iter().all(|harness| harness.output.is_some()), "{of_steps:?}");
    assert_ne!(of_steps[0].output, of_steps[1].output);
    assert_eq!(record.harness, record.steps[1].harness);
    let paths: Vec<_> = record.outputs.iter().map(|output| output.path.as_str()).collect();
    for path in ["steps/one/harness/trial_output.json", "steps/two/harness/trial_input.json"] {
        assert!(paths.contains(&path), "{paths:?}");
    }
}

#[tokio::test]
async fn harness_output_of_image_is_not_taken() {
    let rig = fixture("echo nothing").await;
    rig.provider.image_file("/out/trial_output.json", &document(&json!({})));
    let finished = run(&rig).await;
    assert_eq!(harness(&finished).output_source, OutputSource::Synthesized);
}
