use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Timestamp;
use crate::harness::{HarnessOutcome, IntegrationLevel};
use crate::id::{ExecId, RunId, TryId};
use crate::record::{
    ArtifactRecord, ArtifactStatus, Durations, HarnessEvents, OutputFile, OutputSource, StepRecord,
    Timestamps, Verdict,
};
use crate::spec::trial::TrialName;

fn blob(text: &str, media_type: MediaType) -> BlobRef {
    BlobRef::for_bytes(text.as_bytes(), media_type)
}

fn record() -> TrialRecord {
    let trial = TrialName {
        agent: "agent".to_owned(),
        dataset: "dataset".to_owned(),
        task: "task".to_owned(),
        attempt: 1,
    };
    TrialRecord {
        format: crate::version::RUN_FORMAT,
        run: RunId::from_bytes([1; 16]),
        item: trial.item(),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([2; 16]),
        worker: "worker".parse().expect("a token"),
        host: "host".to_owned(),
        trial,
        spec: crate::digest::Digest::sha256(b"spec"),
        task_git_commit_id: None,
        verdict: Verdict::completed(1.0),
        secondary_errors: Vec::new(),
        durations: Durations::default(),
        timestamps: Timestamps::instant(Timestamp::UNIX_EPOCH),
        environment: None,
        outputs: Vec::new(),
        logs: None,
        verifier_stdout: None,
        verifier_stderr: None,
        artifacts: Vec::new(),
        steps: Vec::new(),
        verifier_environment: None,
        harness: None,
        gateway: None,
    }
}

fn harness(output: Option<&str>, events: &str) -> Box<HarnessRecord> {
    Box::new(HarnessRecord {
        integration_level: IntegrationLevel::CliEvents,
        outcome: HarnessOutcome::Success,
        output_source: OutputSource::File,
        objective: None,
        metrics: [].into(),
        metrics_left_out: 0,
        error: None,
        output: output.map(|text| blob(text, MediaType::Json)),
        events: Some(HarnessEvents {
            log: Some(blob(events, MediaType::Text)),
            total: 7,
            ..HarnessEvents::default()
        }),
        controls: Vec::new(),
    })
}

fn step(name: &str, events: &str) -> StepRecord {
    StepRecord {
        name: name.to_owned(),
        reward: None,
        rewards: [].into(),
        error: None,
        agent_execution_started_at: None,
        agent_execution_ended_at: None,
        verifier_started_at: None,
        verifier_ended_at: None,
        logs: Some(LogsRecord {
            archive: blob("step logs", MediaType::Tar),
            entries: 1,
            skipped: 0,
            truncated: true,
        }),
        harness: Some(harness(Some("step output"), events)),
    }
}

fn captured(path: &str, blob: BlobRef) -> OutputFile {
    let total_bytes = blob.size_bytes;
    OutputFile { path: path.to_owned(), blob, total_bytes, truncated: false }
}

#[test]
fn record_without_harness_is_the_output() {
    let (blob, record) = (blob("record", MediaType::Json), record());
    let found = TrialReferences::from_record(&blob, &record);
    assert_eq!(found.output, Some(OutputRef::for_record(blob)));
    assert_eq!((found.event_logs, found.artifacts), (Vec::new(), Vec::new()));
}

#[test]
fn document_of_harness_is_the_output_and_its_events_are_a_trace() {
    let mut record = record();
    record.harness = Some(harness(Some("output"), "events"));
    record.outputs = vec![
        captured("agent/stdout.txt", blob("said", MediaType::Text)),
        captured("harness/trial_output.json", blob("output", MediaType::Json)),
        captured("harness/events.jsonl", blob("events", MediaType::Text)),
    ];
    let kept = |path: &str, artifact_type, archive| ArtifactRecord {
        source: "/app".to_owned(),
        path: path.to_owned(),
        service: None,
        status: ArtifactStatus::Ok,
        kind: None,
        archive,
        artifact_type,
        error: None,
        possible_secrets: Vec::new(),
    };
    let archive = Some(blob("diff", MediaType::Tar));
    record.artifacts = vec![
        kept("artifacts/app.diff", ArtifactType::WorkspaceDiff, archive),
        kept("artifacts/missing", ArtifactType::Custom, None),
    ];
    let found = TrialReferences::from_record(&blob("record", MediaType::Json), &record);
    let output = found.output.expect("an output");
    assert_eq!(output.output_type, OutputType::TrialOutputV1);
    assert_eq!(output.blob, blob("output", MediaType::Json));
    let log = EventLogRef { blob: blob("events", MediaType::Text), step: None, events: 7 };
    assert_eq!(found.event_logs, [log]);
    let types: Vec<_> =
        found.artifacts.iter().map(|a| (a.path.as_str(), a.artifact_type)).collect();
    assert_eq!(
        types,
        [
            ("agent/stdout.txt", ArtifactType::Log),
            ("harness/trial_output.json", ArtifactType::Custom),
            ("harness/events.jsonl", ArtifactType::Trace),
            ("artifacts/app.diff", ArtifactType::WorkspaceDiff),
        ]
    );
}

#[test]
fn steps_have_event_logs_of_their_own() {
    let mut record = record();
    record.steps = vec![step("one", "first"), step("two", "second")];
    // The trial repeats its last step.
    record.harness = record.steps[1].harness.clone();
    let found = TrialReferences::from_record(&blob("record", MediaType::Json), &record);
    let logs: Vec<_> =
        found.event_logs.iter().map(|log| (log.step.as_deref(), log.blob.digest)).collect();
    let digest = |text| blob(text, MediaType::Text).digest;
    assert_eq!(logs, [(Some("one"), digest("first")), (Some("two"), digest("second"))]);
    let paths: Vec<_> = found.artifacts.iter().map(|a| (a.path.as_str(), a.truncated)).collect();
    assert_eq!(paths, [("steps/one/logs", true), ("steps/two/logs", true)]);
}

#[test]
fn reference_is_written_as_blob_with_its_type() {
    let content = blob("hello", MediaType::Text);
    let output = OutputRef::for_record(content.clone());
    let expected = json!({
        "uri": format!("cas://{}", content.digest),
        "digest": content.digest,
        "size_bytes": 5,
        "media_type": "text/plain",
        "output_type": "trial_record",
    });
    assert_eq!(serde_json::to_value(&output).expect("JSON"), expected);
    assert_eq!(serde_json::from_value::<OutputRef>(expected.clone()).expect("read"), output);
    let mut other = expected;
    other["uri"] = "cas://sha256:00".into();
    assert!(serde_json::from_value::<OutputRef>(other).is_err(), "the address is another blob's");
}

#[test]
fn artifact_of_unknown_or_no_type_is_custom() {
    let reference = ArtifactRef {
        blob: blob("x", MediaType::Bytes),
        artifact_type: ArtifactType::WorkspaceDiff,
        path: "artifacts/x".to_owned(),
        truncated: false,
    };
    let mut value = serde_json::to_value(&reference).expect("JSON");
    assert_eq!(value["artifact_type"], "workspace_diff");
    value["artifact_type"] = "hologram".into();
    let read = |value: &Value| -> ArtifactRef {
        serde_json::from_value(value.clone()).expect("a reference")
    };
    assert_eq!(read(&value).artifact_type, ArtifactType::Custom);
    value.as_object_mut().expect("an object").remove("artifact_type");
    assert_eq!(read(&value).artifact_type, ArtifactType::Custom);
}

proptest! {
    #[test]
    fn references_round_trip(
        content in ".{0,20}",
        path in "[a-z/\\PC]{1,20}",
        step in proptest::option::of("[a-z]{1,5}"),
        number in any::<u64>(),
        truncated in any::<bool>(),
        kind in 0usize..4,
    ) {
        use ArtifactType::{Custom, Log, Trace, WorkspaceDiff};
        let artifact_type = [WorkspaceDiff, Log, Trace, Custom][kind];
        let blob = blob(&content, MediaType::Text);
        let all = TrialReferences {
            output: Some(OutputRef::for_record(blob.clone())),
            event_logs: vec![EventLogRef { blob: blob.clone(), step, events: number }],
            artifacts: vec![ArtifactRef { blob, artifact_type, path, truncated }],
        };
        let text = serde_json::to_string(&all).expect("text keys only");
        prop_assert_eq!(serde_json::from_str::<TrialReferences>(&text).expect("read"), all);
    }
}
