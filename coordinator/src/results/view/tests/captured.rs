//! Outputs and logs in the blob store.

use std::fs;

use rollout_protocol::blob::MediaType;
use rollout_protocol::record::{LogsRecord, OutputFile, StepRecord, TrialRecord};
use rollout_store::archive::{self, ArchiveLimits, FilterDecision};
use rollout_store::{BlobStore, MemoryStore};
use tokio::sync::mpsc;

use super::*;
use crate::results::testing;

async fn logs(store: &MemoryStore, path: &str, text: &str) -> LogsRecord {
    let source = tempfile::tempdir().expect("a directory");
    let file = source.path().join(path);
    fs::create_dir_all(file.parent().expect("below")).expect("a directory");
    fs::write(file, text).expect("written");
    let target = tempfile::tempdir().expect("a directory");
    let tar = target.path().join("logs.tar");
    archive::pack(source.path(), &tar, ArchiveLimits::LOGS, &|_, _| FilterDecision::Include)
        .expect("packed");
    let bytes = fs::read(&tar).expect("read").into();
    let archive = store.put_bytes(bytes, MediaType::Tar).await.expect("stored");
    LogsRecord { archive, entries: 1, skipped: 0, truncated: false }
}

async fn output(store: &MemoryStore, path: &str, text: &str) -> OutputFile {
    let bytes = text.to_owned().into();
    let blob: BlobRef = store.put_bytes(bytes, MediaType::Text).await.expect("stored");
    OutputFile { path: path.into(), total_bytes: blob.size_bytes, blob, truncated: false }
}

/// A record with outputs, logs, and the logs of a step.
async fn record(store: &MemoryStore) -> TrialRecord {
    let settlement =
        testing::settlement(testing::trial("agent", "a", 1), 1, Verdict::completed(1.0));
    let mut record = testing::record(&settlement);
    for (path, text) in [
        ("setup/stdout.txt", "installed"),
        ("command/stdout.txt", "said"),
        ("command/stderr.txt", "warned"),
        ("logs/verifier/stdout.txt", "tested"),
    ] {
        record.outputs.push(output(store, path, text).await);
    }
    record.logs = Some(logs(store, "agent/trace.json", "{}").await);
    let step = StepRecord {
        name: "one".into(),
        reward: None,
        rewards: Default::default(),
        error: None,
        agent_execution_started_at: None,
        agent_execution_ended_at: None,
        verifier_started_at: None,
        verifier_ended_at: None,
        logs: Some(logs(store, "verifier/note.txt", "of a step").await),
        harness: None,
    };
    record.steps.push(step);
    record
}

/// The text of a captured file.
async fn text(store: &MemoryStore, file: &CapturedFile) -> Result<String, CapturedError> {
    let (pieces, mut received) = mpsc::channel(4);
    let (read, text) = tokio::join!(read_captured(store, file, pieces), async {
        let mut text = Vec::new();
        while let Some(piece) = received.recv().await {
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).expect("text")
    });
    read.map(|()| text)
}

#[tokio::test]
async fn captured_files_are_chosen_by_name() {
    let store = MemoryStore::default();
    let record = record(&store).await;
    let all = captured_files(&record, None).expect("outputs");
    assert_eq!(all.len(), 4);
    for (name, expected) in [
        ("command/stdout.txt", &["said"][..]),
        ("command", &["said", "warned"]),
        ("verifier/stdout.txt", &["tested"]),
        ("logs/verifier/", &["tested"]),
        ("logs/agent/trace.json", &["{}"]),
        ("agent/trace.json", &["{}"]),
        ("steps/one/logs/verifier/note.txt", &["of a step"]),
    ] {
        let files = captured_files(&record, Some(name)).expect(name);
        let mut texts = Vec::new();
        for file in &files {
            texts.push(text(&store, file).await.expect(name));
        }
        assert_eq!(texts, expected, "{name}");
    }
}

#[tokio::test]
async fn output_of_scripts_is_told_from_records() {
    let store = MemoryStore::default();
    for (path, expected) in [
        ("command/stdout.txt", true),
        ("steps/one/logs/verifier/stderr.txt", true),
        ("setup/build.log", true),
        ("gateway/calls.jsonl", false),
        ("harness/output.json", false),
    ] {
        let source = CapturedSource::Blob(output(&store, path, "text").await);
        let file = CapturedFile { path: path.to_owned(), source };
        assert_eq!(file.is_script_output(), expected, "{path}");
    }
}

#[tokio::test]
async fn captured_file_that_is_missing_is_named() {
    let store = MemoryStore::default();
    let mut record = record(&store).await;
    let files = captured_files(&record, Some("logs/agent/other")).expect("in the logs or not");
    let missing = text(&store, &files[0]).await.expect_err("not in the logs");
    assert_eq!(missing.to_string(), "the execution left no file `logs/agent/other`");
    for hostile in ["../secret", "a/../../b", "\0"] {
        let refused = captured_files(&record, Some(hostile)).expect_err(hostile);
        assert!(matches!(refused, CapturedError::NoFile(_)), "{refused}");
    }
    record.logs = None;
    assert!(captured_files(&record, Some("agent/trace.json")).is_err());
}

#[tokio::test]
async fn logs_of_trial_and_steps_are_listed() {
    let store = MemoryStore::default();
    let record = record(&store).await;
    let found = list_logs(&store, &record).await.expect("readable");
    let found: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.kind, f.size_bytes)).collect();
    assert!(found.contains(&("logs/agent/trace.json", "file", 2)), "{found:?}");
    assert!(found.contains(&("steps/one/logs/verifier/note.txt", "file", 9)), "{found:?}");
}
