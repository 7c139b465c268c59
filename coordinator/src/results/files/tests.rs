mod materialize;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorType};
use rollout_protocol::harness::{HarnessOutcome, IntegrationLevel, MetricValue};
use rollout_protocol::limits::TASK_NAME_BYTES;
use rollout_protocol::record::{
    ArtifactKind, ArtifactRecord, ArtifactStatus, HarnessEvents, HarnessRecord, LogsRecord,
    OutputFile, OutputSource, Rewards, Settlement, StepRecord, TrialRecord, Verdict,
};
use rollout_store::BlobStore;
use rollout_store::archive::{self, ArchiveLimits, FilterDecision};
use rollout_store::fs::FsStore;
use rollout_store::testing::{FaultyStore, StoreCall, StoreFault};
use serde_json::{Value, json};
use tokio_util::bytes::Bytes;

use super::MaterializeMode;
use super::layout::trial_dir;
use super::trial_dir_writer::{TrialDirWriter, TrialFilesError};
use crate::results::testing::{error, failed, passed, record, run, settlement, trial, with_record};

struct TrialFixture {
    dir: tempfile::TempDir,
    store: Arc<FsStore>,
    writer: Arc<TrialDirWriter>,
}

async fn fixture() -> TrialFixture {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Arc::new(FsStore::open(dir.path().join("store")).await.expect("a store"));
    let run_dir = dir.path().join("run");
    fs::create_dir_all(run_dir.join(".tmp/left-by-a-dead-process")).expect("a directory");
    let writer = open_writer(&run_dir, &store, MaterializeMode::Full);
    TrialFixture { dir, store, writer }
}

fn open_writer(run_dir: &Path, store: &Arc<FsStore>, mode: MaterializeMode) -> Arc<TrialDirWriter> {
    let store = Arc::clone(store) as Arc<dyn BlobStore>;
    let opened = TrialDirWriter::open(run(), run_dir, mode, store, Arc::default());
    Arc::new(opened.expect("opened"))
}

impl TrialFixture {
    fn writer_with(&self, mode: MaterializeMode) -> Arc<TrialDirWriter> {
        open_writer(&self.run_dir(), &self.store, mode)
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// File of a blob in the store.
    fn blob_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.hex();
        self.dir.path().join("store/blobs").join(&hex[..2]).join(&hex[2..])
    }

    /// Removes a blob from the store.
    fn lose(&self, digest: &Digest) {
        fs::remove_file(self.blob_path(digest)).expect("removed");
    }

    async fn put(&self, bytes: &[u8]) -> BlobRef {
        let bytes = Bytes::copy_from_slice(bytes);
        self.store.put_bytes(bytes, MediaType::Text).await.expect("stored")
    }

    async fn output(&self, path: &str, bytes: &[u8]) -> OutputFile {
        let blob = self.put(bytes).await;
        OutputFile { path: path.into(), blob, total_bytes: bytes.len() as u64, truncated: false }
    }

    /// Stores an archive of these files.
    async fn archive(&self, files: &[(&str, &str)]) -> BlobRef {
        let source = tempfile::tempdir_in(self.dir.path()).expect("a directory");
        let source = source.path();
        for (path, text) in files {
            let path = source.join(path);
            fs::create_dir_all(path.parent().expect("below")).expect("a directory");
            fs::write(path, text).expect("written");
        }
        let tar = self.dir.path().join("logs.tar");
        archive::pack(source, &tar, ArchiveLimits::LOGS, &|_, _| FilterDecision::Include)
            .expect("packed");
        let stored = self.store.put_file(&tar, MediaType::Tar).await.expect("stored");
        fs::remove_file(tar).expect("removed");
        stored
    }

    async fn logs(&self, files: &[(&str, &str)]) -> LogsRecord {
        let archive = self.archive(files).await;
        LogsRecord { archive, entries: 1, skipped: 0, truncated: false }
    }

    /// An artifact of these files; of kind `file` for a single file `only`.
    async fn artifact(&self, source: &str, path: &str, files: &[(&str, &str)]) -> ArtifactRecord {
        let kind = match files {
            [("only", _)] => ArtifactKind::File,
            _ => ArtifactKind::Directory,
        };
        ArtifactRecord {
            source: source.into(),
            path: path.into(),
            service: None,
            status: ArtifactStatus::Ok,
            kind: Some(kind),
            archive: Some(self.archive(files).await),
            artifact_type: rollout_protocol::artifact::ArtifactType::default(),
            error: None,
            possible_secrets: Vec::new(),
        }
    }

    /// Writes a settlement whose record is `record`.
    async fn write(
        &self,
        settled: Settlement,
        record: &TrialRecord,
    ) -> Result<Vec<TrialFilesError>, TrialFilesError> {
        let bytes = serde_json::to_vec(record).expect("serializable");
        let blob = self.put(&bytes).await;
        self.writer.write(Arc::new(with_record(settled, blob))).await
    }
}

/// Every path below `root`, with the text of files.
fn tree(root: &Path) -> Vec<(String, Option<String>)> {
    fn walk(root: &Path, dir: &Path, found: &mut Vec<(String, Option<String>)>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
            if path.is_dir() {
                found.push((name, None));
                walk(root, &path, found);
            } else {
                let text = String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned();
                found.push((name, Some(text)));
            }
        }
    }
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.sort();
    found
}

fn result(dir: &Path) -> Value {
    let text = fs::read(dir.join("result.json")).expect("a result");
    serde_json::from_slice(&text).expect("JSON")
}

#[tokio::test]
async fn trial_files_are_written_as_directory_tree() {
    let place = fixture().await;
    let settled = settlement(trial("cpe", "task", 2), 1, passed(0.5));
    let mut record = record(&settled);
    // The agent left a file at the path of one captured output and a directory at another's.
    let files = [
        ("agent/trace.json", "{}"),
        ("verifier/stdout.txt", "forged"),
        ("verifier/stderr.txt/x", "forged"),
    ];
    record.logs = Some(place.logs(&files).await);
    record.outputs = vec![
        place.output("setup/stdout.txt", b"installed\n").await,
        place.output("command/stderr.txt", b"\xff\n").await,
        place.output("logs/verifier/stdout.txt", b"tested\n").await,
        place.output("logs/verifier/stderr.txt", b"").await,
    ];
    record.verifier_stdout = Some("tested\n".into());
    place.write(settled, &record).await.expect("written");
    place.writer.close().expect("durable");
    let dir = trial_dir(&place.run_dir(), &trial("cpe", "task", 2));
    assert_eq!(dir, place.run_dir().join("cpe/data/task__2"));
    let written = result(&dir);
    let mut found = tree(&place.run_dir());
    found.retain(|(path, _)| path != "cpe/data/task__2/result.json");
    let expected = [
        ("cpe", None),
        ("cpe/data", None),
        ("cpe/data/task__2", None),
        ("cpe/data/task__2/command", None),
        ("cpe/data/task__2/command/stderr.txt", Some("\u{fffd}\n")),
        ("cpe/data/task__2/logs", None),
        ("cpe/data/task__2/logs/agent", None),
        ("cpe/data/task__2/logs/agent/trace.json", Some("{}")),
        ("cpe/data/task__2/logs/verifier", None),
        ("cpe/data/task__2/logs/verifier/stdout.txt", Some("tested\n")),
        ("cpe/data/task__2/setup", None),
        ("cpe/data/task__2/setup/stdout.txt", Some("installed\n")),
    ];
    assert_eq!(found, expected.map(|(p, t)| (p.to_owned(), t.map(str::to_owned))));
    assert_eq!(written["reward"], 0.5);
    assert_eq!(written["attempt"], 2);
    assert_eq!(written["task_git_commit_id"], "c0ffee");
    assert_eq!(written["error"], Value::Null);
    assert_eq!(
        written["durations"],
        json!({
            "total_sec": 3.0, "environment_setup_sec": null, "agent_setup_sec": null,
            "agent_execution_sec": null, "verifier_sec": 1.0,
        })
    );
    assert_eq!(written["timestamps"].as_object().expect("a mapping").len(), 10);
    assert_eq!(written["verifier_stdout"], "tested\n");
    assert_eq!(written["outcome"], "completed");
    assert_eq!(written["exec"], "01".repeat(16));
}

#[tokio::test]
async fn trial_files_stay_until_another_execution_replaces_them() {
    let place = fixture().await;
    let name = trial("a", "t", 1);
    let dir = trial_dir(&place.run_dir(), &name);
    let write = async |exec, reward| {
        let settled = settlement(name.clone(), exec, passed(reward));
        place.writer.write(Arc::new(settled)).await.expect("written");
    };
    let is_written = |reward| place.writer.is_written(&settlement(name.clone(), 1, passed(reward)));
    assert!(!is_written(1.0));
    write(1, 1.0).await;
    assert!(is_written(1.0) && !is_written(0.5), "a damaged reward is no result");
    fs::write(dir.join("note"), "mine").expect("written");
    write(1, 1.0).await;
    assert!(dir.join("note").exists());
    write(2, 0.0).await;
    assert!(!dir.join("note").exists());
    assert_eq!(result(&dir)["reward"], 0.0);
    // A truncated result is replaced.
    fs::write(dir.join("result.json"), "{").expect("written");
    write(2, 0.0).await;
    assert_eq!(result(&dir)["reward"], 0.0);
    let list = |path| fs::read_dir(path).expect("a directory").map(|e| e.expect("an entry").path());
    let own: Vec<_> = list(place.run_dir().join(".tmp")).collect();
    assert_eq!(own.len(), 1, "{own:?}");
    assert_eq!(list(own[0].clone()).count(), 0);
}

#[tokio::test]
async fn trial_of_longest_task_name_has_directory_and_longer_one_is_refused() {
    let place = fixture().await;
    let longest = "x".repeat(TASK_NAME_BYTES);
    let write = async |task: &str, exec| {
        let settled = settlement(trial("a", task, u32::MAX), exec, passed(1.0));
        place.writer.write(Arc::new(settled)).await
    };
    write(&longest, 1).await.expect("written");
    // Another execution replaces the directory.
    write(&longest, 2).await.expect("written again");
    let dir = trial_dir(&place.run_dir(), &trial("a", &longest, u32::MAX));
    assert_eq!(result(&dir)["reward"], 1.0);
    let why = write(&format!("{longest}x"), 1).await.expect_err("refused");
    assert!(why.to_string().ends_with("is longer than 240 bytes"), "{why}");
}

#[tokio::test]
async fn failed_trial_writes_error_text_file() {
    let place = fixture().await;
    let cause = error(ErrorType::AgentExecutionFailed, ErrorClass::Agent, "exit code 3\x1b[2J");
    let settled = settlement(trial("a", "t", 1), 1, failed(cause));
    let mut record = record(&settled);
    let teardown =
        error(ErrorType::EnvironmentTeardownFailed, ErrorClass::Infrastructure, "still there");
    record.secondary_errors = vec![teardown];
    record.outputs = vec![
        place.output("setup/stdout.txt", b"x").await,
        place.output("command/stdout.txt", b"oh no").await,
    ];
    place.write(settled, &record).await.expect("written");
    let dir = trial_dir(&place.run_dir(), &trial("a", "t", 1));
    let text = fs::read_to_string(dir.join("error.txt")).expect("a text");
    let expected = format!(
        "\
agent_execution_failed: exit code 3\\x1b[2J

code:  non_zero_exit
class: agent
phase: agent_execution
try:   1-1 (execution {})
ran by worker-1 on host

Further errors:
* environment_teardown_failed (non_zero_exit, teardown): still there

Where to look:
* command/stdout.txt (5 bytes)
",
        "01".repeat(16)
    );
    assert_eq!(text, expected);
    assert_eq!(result(&dir)["error"]["type"], "agent_execution_failed");
    assert_eq!(result(&dir)["secondary_errors"][0]["message"], "still there");
}

#[tokio::test]
async fn trial_record_invalid_is_refused_and_writes_nothing() {
    let place = fixture().await;
    let settled = settlement(trial("a", "t", 1), 1, passed(1.0));
    let mut outside = record(&settled);
    outside.outputs = vec![place.output("../../x", b"x").await];
    let error = place.write(settled.clone(), &outside).await.expect_err("leads outside");
    assert!(matches!(error, TrialFilesError::InvalidFile(_)), "{error}");
    let mut other = record(&settled);
    other.exec = rollout_protocol::id::ExecId::from_bytes([9; 16]);
    let error = place.write(settled.clone(), &other).await.expect_err("another's");
    assert!(matches!(error, TrialFilesError::RecordMismatch(_)), "{error}");
    let mut newer = record(&settled);
    newer.format += 1;
    let error = place.write(settled.clone(), &newer).await.expect_err("a newer format");
    assert!(matches!(error, TrialFilesError::NewerRecord { .. }), "{error}");
    let dotted = settlement(trial("..", "t", 1), 1, passed(1.0));
    let error = place.writer.write(Arc::new(dotted)).await.expect_err("not a name");
    assert!(matches!(error, TrialFilesError::Name { .. }), "{error}");
    place.writer.close().expect("durable");
    assert_eq!(tree(&place.run_dir()), []);
}

/// The result of a harness without files.
fn harness_record() -> HarnessRecord {
    HarnessRecord {
        integration_level: IntegrationLevel::CliEvents,
        outcome: HarnessOutcome::Success,
        output_source: OutputSource::LastLine,
        objective: None,
        metrics: [("turns".to_owned(), MetricValue::Number(3.0))].into(),
        metrics_left_out: 1,
        error: None,
        output: None,
        events: Some(HarnessEvents { total: 2, ..HarnessEvents::default() }),
        controls: Vec::new(),
    }
}

#[tokio::test]
async fn result_of_harness_is_in_trial_result() {
    let place = fixture().await;
    let settled = settlement(trial("a", "t", 1), 1, Verdict::completed(1.0));
    let result = async |harness: Option<HarnessRecord>| -> Value {
        let record = TrialRecord { harness: harness.map(Box::new), ..record(&settled) };
        place.write(settled.clone(), &record).await.expect("written");
        let file = trial_dir(&place.run_dir(), &trial("a", "t", 1)).join("result.json");
        let text = fs::read(&file).expect("a result");
        fs::remove_dir_all(file.parent().expect("a directory")).expect("removed");
        serde_json::from_slice(&text).expect("JSON")
    };
    assert_eq!(result(None).await.get("harness"), None);
    let written = result(Some(harness_record())).await;
    assert_eq!(
        written["harness"],
        json!({
            "integration_level": "cli_events", "outcome": "success", "output_source": "last_line",
            "metrics": { "turns": 3.0 }, "metrics_left_out": 1, "output": null,
            "events": { "log": null, "total": 2, "violations": { "total": 0 } },
        })
    );
}

/// A step that was verified.
async fn step(place: &TrialFixture) -> StepRecord {
    StepRecord {
        name: "one".into(),
        reward: Some(1.0),
        rewards: Rewards::new(),
        error: None,
        agent_execution_started_at: None,
        agent_execution_ended_at: None,
        verifier_started_at: None,
        verifier_ended_at: None,
        logs: Some(place.logs(&[("verifier/reward.txt", "1\n")]).await),
        harness: None,
    }
}

#[tokio::test]
async fn artifacts_are_placed_with_manifest_for_each_step() {
    let place = fixture().await;
    let numbers = Rewards::from([("a".to_owned(), 0.5), ("b".to_owned(), 0.0)]);
    let late = error(ErrorType::AgentExecutionTimeout, ErrorClass::Agent, "too slow");
    let verdict =
        Verdict { reward: None, rewards: numbers, error: Some(late), ..Verdict::completed(0.0) };
    let settled = settlement(trial("a", "t", 1), 1, verdict);
    let mut record = record(&settled);
    let missing = ArtifactRecord {
        kind: None,
        archive: None,
        status: ArtifactStatus::Skipped,
        service: Some("db".into()),
        ..place.artifact("/var/dump", "artifacts/var/dump", &[("only", "")]).await
    };
    record.artifacts = vec![
        // A file inside another artifact's directory, and a manifest forged by the agent.
        place.artifact("/out/x.txt", "artifacts/out/x.txt", &[("only", "mine")]).await,
        place.artifact("/out", "artifacts/out", &[("y/z", "z"), ("y/manifest.json", "{}")]).await,
        place.artifact("/m", "artifacts/manifest.json", &[("only", "forged")]).await,
        place.artifact("/one", "steps/one/artifacts/renamed", &[("only", "1")]).await,
        missing,
    ];
    record.steps = vec![step(&place).await];
    place.write(settled, &record).await.expect("written");
    let dir = trial_dir(&place.run_dir(), &trial("a", "t", 1));
    let mut files = tree(&dir);
    files.retain(|(path, text)| text.is_some() && path != "result.json" && path != "error.txt");
    let manifests = ["artifacts/manifest.json", "steps/one/artifacts/manifest.json"];
    let texts: Vec<(&str, Option<&str>)> = (files.iter())
        .filter(|(path, _)| !manifests.contains(&path.as_str()))
        .map(|(path, text)| (path.as_str(), text.as_deref()))
        .collect();
    let expected = [
        ("artifacts/out/x.txt", Some("mine")),
        ("artifacts/out/y/manifest.json", Some("{}")),
        ("artifacts/out/y/z", Some("z")),
        ("steps/one/artifacts/renamed", Some("1")),
        ("steps/one/logs/verifier/reward.txt", Some("1\n")),
    ];
    assert_eq!(texts, expected);
    let manifest = |at: usize| -> Value {
        let text = fs::read(dir.join(manifests[at])).expect("a manifest");
        serde_json::from_slice(&text).expect("JSON")
    };
    let line = |source, destination: &str, kind, status, service: Option<&str>| {
        json!({"source": source, "destination": destination, "type": kind, "status": status,
            "service": service})
    };
    assert_eq!(
        manifest(0),
        json!([
            line("/out/x.txt", "artifacts/out/x.txt", "file", "ok", None),
            line("/out", "artifacts/out", "directory", "ok", None),
            line("/m", "artifacts/manifest.json", "file", "ok", None),
            line("/var/dump", "artifacts/var/dump", "directory", "skipped", Some("db")),
        ])
    );
    assert_eq!(manifest(1), json!([line("/one", "artifacts/renamed", "file", "ok", None)]));
    let written = result(&dir);
    assert_eq!((&written["reward"], &written["outcome"]), (&Value::Null, &json!("completed")));
    assert_eq!(written["rewards"], json!({"a": 0.5, "b": 0.0}));
    assert_eq!(written["error"]["type"], "agent_execution_timeout");
    assert_eq!(written["steps"][0]["name"], "one");
    assert_eq!(written["artifacts"].as_array().expect("a list").len(), 5);
}

#[tokio::test]
async fn artifact_path_outside_artifacts_is_refused() {
    let place = fixture().await;
    for bad in ["logs/agent/x", "artifacts", "steps/artifacts/x", "artifacts/../../x"] {
        let settled = settlement(trial("a", "bad", 1), 1, passed(1.0));
        let mut record = crate::results::testing::record(&settled);
        record.artifacts = vec![place.artifact("/x", bad, &[("only", "")]).await];
        let error = place.write(settled, &record).await.expect_err(bad);
        assert!(matches!(error, TrialFilesError::InvalidFile(_)), "{bad}: {error}");
    }
}

#[tokio::test]
async fn trial_with_damaged_content_keeps_result_and_lists_missing() {
    let place = fixture().await;
    let settled = settlement(trial("a", "t", 1), 1, passed(1.0));
    let absent = |name: &str| BlobRef {
        digest: Digest::sha256(name.as_bytes()),
        size_bytes: 1,
        media_type: None,
    };
    let mut damaged = record(&settled);
    damaged.outputs = vec![place.output("command/stdout.txt", b"whole").await];
    let archive = place.put(b"no archive at all, although it is long enough for a header").await;
    damaged.logs = Some(LogsRecord { archive, entries: 1, skipped: 0, truncated: false });
    let mut artifact = place.artifact("/tmp/x", "artifacts/tmp/x", &[("only", "x")]).await;
    artifact.archive = Some(absent("artifact"));
    let mut empty = place.artifact("/tmp/y", "artifacts/tmp/y", &[]).await;
    empty.kind = Some(ArtifactKind::File);
    damaged.artifacts = vec![artifact, empty];
    let lost = place.write(settled.clone(), &damaged).await.expect("the rest is written");
    assert_eq!(lost.len(), 3, "{lost:?}");
    let dir = trial_dir(&place.run_dir(), settled.trial().expect("a trial"));
    assert_eq!(fs::read(dir.join("command/stdout.txt")).expect("whole"), b"whole");
    let text = fs::read_to_string(dir.join("missing.txt")).expect("named");
    assert!(text.contains("the logs") && text.contains("artifacts/tmp/x"), "{text}");
    assert!(text.contains("the archive of artifacts/tmp/y contains no file"), "{text}");
    assert!(!dir.join("logs").exists() && !dir.join("artifacts/tmp/x").exists());
    assert_eq!(result(&dir)["reward"], 1.0);

    let other = settlement(trial("a", "u", 1), 2, passed(0.5));
    let missing = Arc::new(with_record(other.clone(), absent("record")));
    let error = place.writer.write(missing).await.expect_err("it may be in another store");
    assert!(error.is_missing(), "{error}");
    let unreadable = place.put(b"no record").await;
    let lost = place.writer.write(Arc::new(with_record(other.clone(), unreadable))).await;
    assert_eq!(lost.expect("the result is written").len(), 1);
    let dir = trial_dir(&place.run_dir(), other.trial().expect("a trial"));
    assert_eq!(result(&dir)["reward"], 0.5);
}

#[tokio::test]
async fn store_that_breaks_off_an_archive_has_failed_and_is_retried() {
    let place = fixture().await;
    let settled = settlement(trial("a", "t", 1), 1, passed(1.0));
    let mut record = record(&settled);
    let text = "a line of the log\n".repeat(10_000);
    record.logs = Some(place.logs(&[("agent/one.txt", "1"), ("agent/two.txt", &text)]).await);
    record.artifacts = vec![place.artifact("/x", "artifacts/x", &[("only", &text)]).await];
    let blob = place.put(&serde_json::to_vec(&record).expect("serializable")).await;
    let settled = Arc::new(with_record(settled, blob));

    let faulty = Arc::new(FaultyStore::new(Arc::clone(&place.store)));
    faulty.inject(StoreCall::Get, 1, StoreFault::FailAfter);
    faulty.inject(StoreCall::Get, 3, StoreFault::FailAfter);
    let store = Arc::clone(&faulty) as Arc<dyn BlobStore>;
    let mode = MaterializeMode::Full;
    let opened = TrialDirWriter::open(run(), &place.run_dir(), mode, store, Arc::default());
    let writer = Arc::new(opened.expect("opened"));
    let dir = trial_dir(&place.run_dir(), settled.trial().expect("a trial"));
    for what in ["logs", "artifact"] {
        let error = writer.write(Arc::clone(&settled)).await.expect_err(what);
        let TrialFilesError::Store { source, .. } = &error else { panic!("{what}: {error}") };
        assert!(source.is_unanswered(), "{what}: {error}");
        assert!(!dir.exists(), "{what}");
    }
    assert_eq!(writer.write(settled).await.expect("written").len(), 0);
    assert_eq!(fs::read_to_string(dir.join("logs/agent/two.txt")).expect("whole"), text);
    assert_eq!(fs::read_to_string(dir.join("artifacts/x")).expect("whole"), text);
}

#[tokio::test]
async fn files_of_a_trial_make_no_new_directory_of_a_run() {
    let place = fixture().await;
    let settled = Arc::new(settlement(trial("a", "t", 1), 1, passed(1.0)));
    let moved = place.dir.path().join("moved");
    fs::rename(place.run_dir(), &moved).expect("moved");
    let _error = place.writer.write(Arc::clone(&settled)).await.expect_err("it is gone");
    assert!(!place.run_dir().exists());
    fs::rename(&moved, place.run_dir()).expect("moved back");
    place.writer.write(settled).await.expect("written");
}
