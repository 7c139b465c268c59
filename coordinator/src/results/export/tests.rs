mod harbor_stats;
mod harbor_steps;

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rollout_protocol::artifact::ArtifactType;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::record::{
    ArtifactKind, ArtifactRecord, ArtifactStatus, Durations, EnforcedLimits, EnvironmentRecord,
    Execution, ExecutionEnd, ItemOutcome, LogsRecord, LostReason, OutputFile, Rewards, Settlement,
    StepRecord, TrialRecord, Verdict,
};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::version::RUN_FORMAT;
use rollout_store::archive::{self, ArchiveLimits, FilterDecision};
use rollout_store::{BlobStore, MemoryStore};
use serde_json::{Value, json};

use super::*;
use crate::config::TaskMetadata;
use crate::plan::PlanDocument;
use crate::results::testing::{self, at, record};

const AGENTS: [&str; 2] = ["oracle", "=cmd"];
const TASKS: [&str; 2] = ["a,b", "two"];

/// Metadata of the first task; the other task has none.
fn about(task: &str) -> TaskMetadata {
    if task != TASKS[0] {
        return TaskMetadata::default();
    }
    let said = json!({
        "name": "org/first", "source": "somewhere", "metadata": {"difficulty": "hard"},
    });
    serde_json::from_value(said).expect("facts")
}

/// A run directory of two agents, two tasks and two attempts.
struct TestRun {
    dir: tempfile::TempDir,
    store: Arc<MemoryStore>,
    lines: Vec<u8>,
    settled: u64,
    /// Digests of the records, which change with the record format.
    records: Vec<Digest>,
}

impl TestRun {
    fn new() -> Self {
        Self::with(2, &["max"])
    }

    /// A run of this many attempts with these metrics.
    fn with(attempts: u32, metrics: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let plan = testing::plan(&AGENTS, &TASKS, attempts, about);
        let metrics: Vec<Value> = metrics.iter().map(|kind| json!({ "type": kind })).collect();
        let write = |name: &str, value: Value| {
            fs::write(dir.path().join(name), value.to_string()).expect("written");
        };
        write("plan.json", json!(PlanDocument::from(&plan)));
        write(
            "config.json",
            json!({"n_concurrent_trials": 3, "metrics": metrics,
                "retry": {"max_attempts": 3, "initial_delay_ms": 500},
                "datasets": [{"path": "somewhere/data"}]}),
        );
        fs::create_dir(dir.path().join("records")).expect("a directory");
        Self {
            dir,
            store: Arc::new(MemoryStore::default()),
            lines: Vec::new(),
            settled: 0,
            records: Vec::new(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Settles a trial with a record.
    async fn settle(&mut self, mut settlement: Settlement, record: Option<TrialRecord>) {
        if let Some(record) = record {
            let bytes = serde_json::to_vec(&record).expect("serializable").into();
            let blob = self.store.put_bytes(bytes, MediaType::Json).await.expect("stored");
            self.records.push(blob.digest);
            settlement.by.as_mut().expect("an execution").record = Some(blob);
        }
        serde_json::to_writer(&mut self.lines, &settlement).expect("serializable");
        self.lines.push(b'\n');
        self.settled += 1;
    }

    fn close(&self) {
        let manifest = json!({
            "format": RUN_FORMAT, "run": testing::run(), "job": "a job",
            "created_at": at(0), "updated_at": at(99), "plan": Digest::sha256(b"plan"), "epoch": 1,
            "state": "completed", "total": 8, "settled": self.settled, "in_flight": 0,
            "journal": {"epoch": 1, "durable_bytes": 0}, "sealed": [],
        });
        fs::write(self.path().join("manifest.json"), manifest.to_string()).expect("written");
        fs::write(self.path().join("records/000001.jsonl"), &self.lines).expect("written");
    }

    async fn export(&self, format: ExportFormat, out: &Path) -> Result<ExportSummary, ExportError> {
        let store: Arc<dyn BlobStore> = self.store.clone();
        let (run_dir, out) = (self.path(), Some(out.to_owned()));
        let min_reward = DEFAULT_MIN_REWARD;
        let request = ExportRequest { run_dir, store, format, out, shown_in: None, min_reward };
        crate::launch::export::export(&request).await
    }

    /// An archive of one file in the store.
    async fn archive(&self, path: &str, text: &str) -> BlobRef {
        let source = tempfile::tempdir().expect("a directory");
        let file = source.path().join(path);
        fs::create_dir_all(file.parent().expect("below")).expect("a directory");
        fs::write(file, text).expect("written");
        let tar = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        fs::remove_file(&tar).expect("removed");
        archive::pack(source.path(), &tar, ArchiveLimits::LOGS, &|_, _| FilterDecision::Include)
            .expect("packed");
        let bytes = fs::read(&tar).expect("read").into();
        self.store.put_bytes(bytes, MediaType::Tar).await.expect("stored")
    }
}

fn name(agent: usize, task: usize, attempt: u32) -> TrialName {
    testing::trial(AGENTS[agent], TASKS[task], attempt)
}

fn settlement(trial: TrialName, verdict: Verdict) -> Settlement {
    testing::settlement(trial, 1, verdict)
}

fn error(kind: ErrorType, class: ErrorClass, message: &str) -> TrialError {
    TrialError::new(kind, ErrorCode::TIMED_OUT, class, RetryClass::Permanent, message)
}

/// Settles four of eight trials in another order than the plan's.
async fn run() -> TestRun {
    let mut run = TestRun::new();
    let late = error(ErrorType::AgentExecutionTimeout, ErrorClass::Agent, "=late\nby far, \"far\"");
    let numbers = Rewards::from([("=a".to_owned(), 1.0), ("b".to_owned(), -0.25)]);
    let several =
        Verdict { reward: None, rewards: numbers, error: Some(late), ..Verdict::completed(0.0) };
    let mut settled = settlement(name(1, 0, 2), several);
    let model_use = ModelUse {
        calls: 3,
        tokens: 700,
        cost: 0.5,
        unpriced_calls: 1,
        sec: 2.5,
        ..ModelUse::NONE
    };
    let (reason, phase) = (LostReason::WorkerDied, None);
    let lost = ExecutionEnd::Lost { reason, phase, cost: 0.5, model_use };
    let former = Execution { end: lost, ..settled.by.clone().expect("an execution") };
    settled.superseded.push(former);
    let recorded = record(&settled);
    run.settle(settled, Some(recorded)).await;
    let harness = testing::harness_summary("=loss", 0.25);
    let passed = testing::with_harness(Verdict::completed(1.0), harness);
    let passed = settlement(name(0, 0, 1), passed);
    let recorded = record(&passed);
    run.settle(passed, Some(recorded)).await;
    let broken = error(ErrorType::EnvironmentStartFailed, ErrorClass::Infrastructure, "no");
    run.settle(settlement(name(0, 1, 2), Verdict::failed(broken)), None).await;
    let never_ran = Settlement { by: None, ..settlement(name(1, 1, 1), Verdict::cancelled(0.0)) };
    run.settle(never_ran, None).await;
    run.close();
    run
}

#[tokio::test]
async fn export_rows_match_golden_files() {
    let run = run().await;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/results/export/golden");
    for (format, file) in [(ExportFormat::Jsonl, "rows.jsonl"), (ExportFormat::Csv, "rows.csv")] {
        let out = run.path().join(file);
        let exported = run.export(format, &out).await.expect("exported");
        let expected = ExportSummary {
            path: Some(out.clone()),
            trials: 4,
            missing: 0,
            unplanned: 0,
            keys_left_out: false,
            without_trajectory: 0,
            below_reward: 0,
            paths_left_out: 0,
        };
        assert_eq!(exported, expected);
        let mut text = fs::read_to_string(out).expect("written");
        for digest in &run.records {
            text = text.replace(&digest.to_string(), "<record>");
        }
        let known = fs::read_to_string(golden.join(file)).expect("a golden file");
        assert_eq!(text, known, "{file} is now\n{text}");
    }
}

#[tokio::test]
async fn export_reports_missing_and_unplanned_trials() {
    let mut run = run().await;
    let gone = TrialName { attempt: 3, ..name(0, 0, 1) };
    run.settle(settlement(gone, Verdict::completed(1.0)), None).await;
    // A second settlement of a trial, under another definition.
    run.settle(settlement(name(0, 0, 1), Verdict::completed(0.5)), None).await;
    run.settled += 2;
    run.close();
    let out = run.path().join("out");
    let exported = run.export(ExportFormat::Jsonl, &out).await.expect("exported");
    assert_eq!((exported.trials, exported.unplanned, exported.missing), (4, 1, 3));
    let text = fs::read_to_string(&out).expect("written");
    let first: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["reward"], 0.5);
}

#[tokio::test]
async fn export_of_no_run_or_to_existing_output_is_refused() {
    let run = run().await;
    let out = run.path().join("jobs");
    run.export(ExportFormat::Harbor, &out).await.expect("exported");
    let again = run.export(ExportFormat::Harbor, &out).await;
    assert!(matches!(again, Err(ExportError::OutputExists(_))), "{again:?}");
    let names: Vec<_> = fs::read_dir(&out).expect("a directory").collect();
    assert_eq!(names.len(), 1, "{names:?}");
    fs::remove_file(run.path().join("manifest.json")).expect("removed");
    let none = run.export(ExportFormat::Csv, &run.path().join("x.csv")).await;
    assert!(matches!(none, Err(ExportError::NotRunDirectory { .. })), "{none:?}");
    assert!(!run.path().join("x.csv").exists());
}

#[cfg(feature = "parquet")]
#[tokio::test]
async fn parquet_rows_equal_json_lines() {
    let run = run().await;
    let out = run.path().join("rows.parquet");
    run.export(ExportFormat::Parquet, &out).await.expect("exported");
    let lines = run.path().join("rows.jsonl");
    run.export(ExportFormat::Jsonl, &lines).await.expect("exported");
    assert_eq!(testing::assert_same_rows::<columns::ExportTable>(&lines, &out), 4);
}

/// Adds a trajectory of a call to a record.
async fn with_trajectory(run: &TestRun, record: TrialRecord, own: bool) -> TrialRecord {
    let text = json!({"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"},
        "steps": [{"step_id": 1, "source": "user", "message": "u"},
            {"step_id": 2, "source": "agent", "message": "m"}]});
    let text = format!("{text}\n");
    let total_bytes = text.len() as u64;
    let blob = run.store.put_bytes(text.into(), MediaType::Json).await.expect("stored");
    let path = rollout_protocol::record::ATIF_PATH.to_owned();
    let file = OutputFile { path, blob, total_bytes, truncated: false };
    let archive = run.archive("agent/trajectory.json", "own").await;
    let logs = own.then_some(LogsRecord { archive, entries: 1, skipped: 0, truncated: false });
    TrialRecord { outputs: vec![file], logs, ..record }
}

#[tokio::test]
async fn trajectories_are_exported_by_reward_and_never_invented() {
    let mut run = run().await;
    for (attempt, reward) in [(1, 0.5), (2, 1.0)] {
        let settled = settlement(name(0, 1, attempt), Verdict::completed(reward));
        // The second attempt of the run has failed without a record.
        let settled = if attempt == 1 {
            settled
        } else {
            settlement(name(1, 0, 1), Verdict::completed(reward))
        };
        let recorded = with_trajectory(&run, record(&settled), attempt == 1).await;
        run.settle(settled, Some(recorded)).await;
    }
    run.close();
    let lines = |path: &Path| -> Vec<Value> {
        let text = fs::read_to_string(path).expect("written");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let out = run.path().join("traces.jsonl");
    let exported = run.export(ExportFormat::TracesJsonl, &out).await.expect("exported");
    assert_eq!((exported.trials, exported.without_trajectory), (6, 4));
    let traces = lines(&out);
    assert_eq!(traces.len(), 6, "a line for each trial");
    let with: Vec<_> = traces.iter().filter(|line| !line["trajectory"].is_null()).collect();
    assert_eq!(with.len(), 2);
    assert_eq!(with[0]["trajectory"]["steps"][1]["message"], "m");
    let failed = traces.iter().find(|line| line["outcome"] == "failed").expect("one");
    assert_eq!(
        (&failed["reward"], &failed["error"]["class"]),
        (&Value::Null, &"infrastructure".into())
    );

    let out = run.path().join("sft.jsonl");
    let exported = run.export(ExportFormat::Sft, &out).await.expect("exported");
    // One trial with the full reward has no trajectory.
    assert_eq!((exported.below_reward, exported.without_trajectory), (4, 1));
    let found = lines(&out);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["reward"], 1.0);
    let messages = json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "m"}]);
    assert_eq!(found[0]["messages"], messages);

    let out = run.path().join("atif");
    let exported = run.export(ExportFormat::Atif, &out).await.expect("exported");
    assert_eq!(exported.without_trajectory, 4);
    let file = out.join(AGENTS[0]).join("data").join("two__1.json");
    assert_eq!(lines(&file)[0]["schema_version"], "ATIF-v1.8");
    let again = run.export(ExportFormat::Atif, &out).await;
    assert!(matches!(again, Err(ExportError::OutputExists(_))), "{again:?}");

    let jobs = run.path().join("jobs");
    run.export(ExportFormat::Harbor, &jobs).await.expect("exported");
    let job = fs::read_dir(jobs.join("a job")).expect("a directory").flatten();
    let texts: Vec<_> = job
        .filter_map(|entry| fs::read_to_string(entry.path().join("agent/trajectory.json")).ok())
        .collect();
    let own = texts.iter().filter(|text| *text == "own").count();
    assert_eq!((texts.len(), own), (2, 1), "the agent's own one stays");
}

/// A record with logs, captured output, an artifact and a step.
async fn with_files(run: &TestRun, settled: &Settlement) -> TrialRecord {
    let text = run.store.put_bytes(b"text"[..].into(), MediaType::Text).await.expect("stored");
    let output = |path: &str| OutputFile {
        path: path.into(),
        blob: text.clone(),
        total_bytes: 4,
        truncated: false,
    };
    let artifact = ArtifactRecord {
        source: "/out".into(),
        path: "artifacts/out".into(),
        service: None,
        status: ArtifactStatus::Ok,
        kind: Some(ArtifactKind::Directory),
        archive: Some(run.archive("x", "kept").await),
        artifact_type: ArtifactType::default(),
        error: None,
        possible_secrets: Vec::new(),
    };
    let archive = run.archive("agent/trajectory.json", "{}").await;
    let step = StepRecord {
        name: "one".into(),
        reward: Some(0.5),
        rewards: Rewards::new(),
        error: None,
        agent_execution_started_at: Some(at(1)),
        agent_execution_ended_at: Some(at(2)),
        verifier_started_at: None,
        verifier_ended_at: None,
        logs: None,
        harness: None,
    };
    TrialRecord {
        outputs: ["setup/stdout.txt", "logs/verifier/stdout.txt", "steps/one/command/stdout.txt"]
            .map(output)
            .to_vec(),
        logs: Some(LogsRecord { archive, entries: 1, skipped: 0, truncated: false }),
        artifacts: vec![artifact],
        steps: vec![step],
        ..record(settled)
    }
}

#[tokio::test]
async fn harbor_export_writes_every_file_in_place() {
    let mut run = run().await;
    let settled = settlement(name(0, 1, 1), Verdict::completed(0.5));
    let recorded = with_files(&run, &settled).await;
    run.settle(settled, Some(recorded)).await;
    run.close();
    let jobs = run.path().join("jobs");
    let exported = run.export(ExportFormat::Harbor, &jobs).await.expect("exported");
    let job = jobs.canonicalize().expect("a directory").join("a job");
    assert_eq!(exported.path.as_deref(), Some(&*job));
    let read = |path: PathBuf| -> Value {
        serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
    };
    let lock = read(job.join("lock.json"));
    assert_eq!(lock["trials"].as_array().map(Vec::len), Some(5));
    assert_eq!(lock["retry"]["max_retries"], 2);
    let stats = &read(job.join("result.json"))["stats"];
    let figures = ["n_completed_trials", "n_errored_trials", "n_pending_trials"];
    assert_eq!(figures.map(|figure| stats[figure].as_u64()), [Some(5), Some(3), Some(3)]);
    assert_eq!(stats["n_cancelled_trials"], 1);
    assert_eq!(stats["evals"]["oracle__data"]["metrics"], json!([{"max": 1.0}]));
    // A trial without a valid reward is in no figure.
    assert_eq!(stats["evals"]["=cmd__data"]["metrics"], json!([{"=a": 1.0, "b": -0.25}]));
    assert_eq!(stats["evals"]["oracle__data"]["n_trials"], 2);
    let mut trials: Vec<Value> = Vec::new();
    for entry in fs::read_dir(&job).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            trials.push(read(path.join("result.json")));
        }
    }
    let exception = |trial: &Value| trial["exception_info"]["exception_type"].clone();
    let mut seen: Vec<String> = trials.iter().map(|trial| exception(trial).to_string()).collect();
    seen.sort();
    assert_eq!(
        seen,
        ["\"AgentTimeoutError\"", "\"CancelledError\"", "\"RuntimeError\"", "null", "null"]
    );
    let stepped = trials.iter().find(|trial| !trial["step_results"].is_null()).expect("one");
    assert_eq!(stepped["step_results"][0]["verifier_result"]["rewards"], json!({"reward": 0.5}));
    assert_eq!(stepped["task_id"]["path"], "somewhere/data/two");
    let dir = job.join(stepped["trial_name"].as_str().expect("a name"));
    for (path, text) in [
        ("agent/trajectory.json", "{}"),
        ("agent/setup/stdout.txt", "text"),
        ("verifier/test-stdout.txt", "text"),
        ("steps/one/agent/command/stdout.txt", "text"),
        ("artifacts/out/x", "kept"),
    ] {
        assert_eq!(fs::read_to_string(dir.join(path)).expect(path), text);
    }
    assert!(dir.join("artifacts/manifest.json").exists());
}

#[test]
fn harbor_exception_exists_for_every_error_but_teardown() {
    for kind in ErrorType::ALL {
        let none = *kind == ErrorType::EnvironmentTeardownFailed;
        assert_eq!(harbor::exception_type(*kind).is_none(), none, "{kind}");
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{0,20}", any::<String>()]
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0), any::<f64>().prop_filter("finite", |n| n.is_finite())]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let kinds = prop::sample::select(ErrorType::ALL);
    let classes = prop::sample::select(vec![ErrorClass::Infrastructure, ErrorClass::Task]);
    let failed = (kinds, classes, text()).prop_map(|(k, class, text)| error(k, class, &text));
    let rewards = prop::collection::btree_map(text(), number(), 0..4);
    let outcome = prop::sample::select(vec![
        ItemOutcome::Completed,
        ItemOutcome::Failed,
        ItemOutcome::Cancelled,
    ]);
    let (reward, steps) = (prop::option::of(number()), prop::collection::vec(text(), 0..2));
    (outcome, reward, rewards, 0.0..9.0, prop::option::of(failed), steps).prop_map(
        |(outcome, reward, rewards, cost, error, unverified_steps)| {
            let completed = outcome == ItemOutcome::Completed;
            let rewards = if completed { rewards } else { Rewards::new() };
            let unverified_steps = if completed { unverified_steps } else { Vec::new() };
            let reward = reward.filter(|_| completed);
            let numbers = Verdict { rewards, unverified_steps, ..Verdict::cancelled(cost) };
            Verdict { outcome, reward, error, ..numbers }
        },
    )
}

/// Any record without files in the store.
fn any_record() -> impl Strategy<Value = (Verdict, TrialRecord)> {
    let step = ("[a-z]{1,8}", prop::option::of(number()), prop::option::of(0..99i64)).prop_map(
        |(name, reward, second)| StepRecord {
            name,
            reward,
            rewards: Rewards::new(),
            error: second.map(|_| error(ErrorType::VerifierTimeout, ErrorClass::Verifier, "x")),
            agent_execution_started_at: second.map(at),
            agent_execution_ended_at: None,
            verifier_started_at: None,
            verifier_ended_at: second.map(at),
            logs: None,
            harness: None,
        },
    );
    let artifact = ("(/[a-z.]{1,6}){1,3}", any::<bool>()).prop_map(|(source, skipped)| {
        let status = if skipped { ArtifactStatus::Skipped } else { ArtifactStatus::Failed };
        let path = format!("artifacts/kept{}", source.replace("..", "--").replace("/.", "/-"));
        ArtifactRecord {
            source,
            path,
            service: None,
            status,
            kind: None,
            archive: None,
            artifact_type: ArtifactType::default(),
            error: None,
            possible_secrets: Vec::new(),
        }
    });
    let environment = text().prop_map(|id| EnvironmentRecord {
        provider: "docker".into(),
        id,
        image: "image".into(),
        image_made: false,
        image_build: None,
        limits: EnforcedLimits::default(),
        start_wait: None,
        preserved: None,
    });
    let parts = (
        verdict(),
        text(),
        prop::option::of(text()),
        prop::collection::vec(step, 0..3),
        prop::collection::vec(artifact, 0..3),
        prop::option::of(environment),
        prop::option::of(0.0..1e9),
    );
    parts.prop_map(|(verdict, host, commit, steps, artifacts, environment, seconds)| {
        let made = record(&settlement(name(1, 1, 2), verdict.clone()));
        let durations = Durations { agent_setup_sec: seconds, ..made.durations };
        let verifier_environment = environment.clone();
        let task_git_commit_id = commit;
        (
            verdict,
            TrialRecord {
                host,
                task_git_commit_id,
                steps,
                artifacts,
                environment,
                durations,
                verifier_environment,
                ..made
            },
        )
    })
}

/// Exports a run of one settled trial in every format.
fn every_form(verdict: &Verdict, recorded: TrialRecord) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut run = TestRun::new();
        let settled = settlement(name(1, 1, 2), verdict.clone());
        run.settle(settled, Some(recorded)).await;
        run.close();
        for format in <ExportFormat as clap::ValueEnum>::value_variants() {
            let out = run.path().join(format!("{format:?}"));
            let exported = run.export(*format, &out).await.expect("exported");
            assert_eq!(exported.trials, 1);
        }
        let csv = fs::read_to_string(run.path().join("Csv")).expect("text");
        assert_eq!(csv.matches("\r\n").count(), csv.matches('\n').count());
        assert_eq!(csv.lines().count(), 2, "no text breaks a line: {csv}");
        assert!(!csv.contains(['\u{1b}', '\t']));
        let line = fs::read_to_string(run.path().join("Jsonl")).expect("text");
        let row: Value = serde_json::from_str(&line).expect("JSON");
        // Numbers pass through JSON, whose reader may be wrong in the last bit.
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
        let (got, expected) = (row["reward"].as_f64(), verdict.reward);
        assert_eq!(got.is_some(), expected.is_some());
        assert!(got.zip(expected).is_none_or(|(a, b)| close(a, b)), "{got:?}, not {expected:?}");
    });
}

#[test]
fn record_with_inexact_reward_exports_in_every_format() {
    let verdict = Verdict::completed(-1.413_221_557_690_379_3e-8);
    let recorded = record(&settlement(name(1, 1, 2), verdict.clone()));
    every_form(&verdict, recorded);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn record_of_any_content_exports_in_every_format((verdict, recorded) in any_record()) {
        every_form(&verdict, recorded);
    }
}
