use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorType};
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::record::Verdict;
use rollout_protocol::spec::guardrail::Guardrail;
use rollout_protocol::spec::metric::MetricKind;
use rollout_store::BlobStore;
use rollout_store::fs::FsStore;
use rollout_store::testing::{FaultyStore, StoreCall, StoreFault};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::*;
use crate::results::testing::{
    ended, error, event, failed, passed, settled, settlement, started, trial, with_record,
};

/// Time between two looks at a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Standard output for tests.
#[derive(Clone, Default)]
struct SharedOutput {
    bytes: Arc<Mutex<Vec<u8>>>,
    broken: bool,
}

impl Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.bytes.lock().expect("not poisoned").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SharedOutput {
    fn lines(&self) -> Vec<Value> {
        let bytes = self.bytes.lock().expect("not poisoned");
        let text = std::str::from_utf8(&bytes).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

fn facts(dir: &Path, materialize: MaterializeMode) -> JobFacts {
    let run_dir = dir.join("run");
    fs::create_dir_all(&run_dir).expect("a directory");
    let agents = [("a", 2), ("b", 3)];
    JobFacts {
        run_dir,
        agents: agents.map(|(name, total)| AgentTotal { name: name.into(), total }).to_vec(),
        metrics: vec![MetricKind::Mean],
        guardrails: vec![Guardrail { metric_id: "cost_usd".to_owned(), max: Some(2.5) }],
        materialize,
        config: json!({"name": "a job"}),
        store: Some(dir.join("store").into()),
        datasets: vec![DatasetFacts { dataset_name: "data".into(), ..DatasetFacts::default() }],
        tasks: Arc::default(),
        invocation: None,
        stopped_at_once: never_stopped(),
    }
}

async fn run_reporter(
    dir: &Path,
    materialize: MaterializeMode,
    out: &SharedOutput,
    batches: Vec<Vec<RunEvent>>,
) -> Result<RunReport, ReportError> {
    let facts = facts(dir, materialize);
    let store = FsStore::open(dir.join("store")).await.expect("a store");
    let sinks = vec![sinks::json(Box::new(out.clone()))];
    report_to_sinks(facts, Arc::new(store), sinks, batches).await
}

async fn report_to_sinks(
    facts: JobFacts,
    store: Arc<dyn BlobStore>,
    sinks: Vec<SinkStarter>,
    batches: Vec<Vec<RunEvent>>,
) -> Result<RunReport, ReportError> {
    let (events, reporter) = Reporter::start(facts, store, sinks).expect("started");
    for batch in batches {
        events.send(batch).await.expect("the reporter listens");
    }
    drop(events);
    reporter.finish().await
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

/// The dataset of the run, in its result.
fn dataset() -> Value {
    json!({"dataset_name": "data", "version": null, "description": null, "tasks": 0, "formats": {},
        "guessed": 0, "unsupported": []})
}

/// A run of five trials that was stopped with one trial pending; settlements in this order.
fn batches(order: [usize; 4]) -> Vec<Vec<RunEvent>> {
    let cause = error(ErrorType::VerifierFailed, ErrorClass::Verifier, "exit code 1");
    let all = [
        settlement(trial("a", "one", 1), 1, passed(0.1)),
        settlement(trial("a", "two", 1), 2, passed(0.2)),
        settlement(trial("b", "one", 1), 3, passed(1.0)),
        settlement(trial("b", "two", 1), 4, failed(cause)),
    ];
    let settled = order.map(|at| settled(at as u64, all[at].clone()));
    let opened = event(0, EventKind::RunOpened);
    vec![vec![started(5), opened], settled.to_vec(), vec![ended(60, 1)]]
}

#[tokio::test]
async fn run_events_are_written_to_files_and_json_lines() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = SharedOutput::default();
    let report = run_reporter(dir.path(), MaterializeMode::Full, &out, batches([3, 1, 2, 0])).await;
    let report = report.expect("told");
    let run_dir = dir.path().join("run");
    assert_eq!(read(&run_dir.join("config.json")), json!({"name": "a job"}));
    assert!(run_dir.join("b/data/two__1/error.txt").exists());
    assert!(!run_dir.join(".tmp").exists());
    let job = read(&run_dir.join("result.json"));
    let summary =
        |task: &str, agent: &str, reward: Option<f64>, outcome, error_type: Option<&str>| {
            let failure = error_type.map(|_| "verifier");
            json!({"task_name": task, "dataset_name": "data", "agent_name": agent, "attempt": 1,
            "passed": reward == Some(1.0), "reward": reward, "outcome": outcome,
            "error_type": error_type, "failure": failure})
        };
    let failures = |verifier| json!({"infrastructure": 0, "agent": 0, "verifier": verifier, "task": 0, "unsupported": 0});
    let scored = |trials: u64, passed: u64, mean: f64| {
        let rate = passed as f64 / trials as f64;
        json!({"trials": trials, "passed": passed, "pass_rate": rate, "pass_rate_low": rate,
            "pass_rate_high": rate, "mean_reward": mean})
    };
    let agent = |total, completed, failed, skipped, passed: u64, mean: f64, scored| {
        json!({"total_trials": total, "completed_trials": completed, "failed_trials": failed,
            "skipped_trials": skipped, "cancelled_trials": 0, "unverified_trials": 0,
            "completed_with_error_trials": 0, "completed_with_unverified_step_trials": 0,
            "pass_rate": passed as f64, "mean_reward": mean, "passed_trials": passed,
            "failures": failures(failed), "task_failures_before_agent": 0, "scored": scored,
            "total_cost": 0.0})
    };
    let mean = (0.1 + 0.2 + 1.0) / 3.0;
    let expected = json!({
        "job_name": "a job", "run": "07".repeat(16), "cancelled": true,
        "total_trials": 5, "completed_trials": 3, "failed_trials": 1, "skipped_trials": 1,
        "cancelled_trials": 0, "unverified_trials": 0, "completed_with_error_trials": 0,
        "pass_rate": 1.0 / 3.0, "mean_reward": mean, "passed_trials": 1,
        "completed_with_unverified_step_trials": 0, "failures": failures(1),
        "task_failures_before_agent": 0,
        "scored": scored(4, 1, (0.1 + 0.2 + 1.0) / 4.0),
        "total_cost": 0.0, "total_duration_sec": 60.0,
        "started_at": "2025-06-15T15:06:40Z", "ended_at": "2025-06-15T15:07:40Z",
        "retries": 0, "lost_executions": 0, "errors": {"verifier_failed": 1},
        "metrics": {"overall": {"mean": mean},
            "agents": {"a": {"mean": (0.1 + 0.2) / 2.0}, "b": {"mean": 1.0}}},
        "agents": {"a": agent(2, 2, 0, 0, 0, (0.1 + 0.2) / 2.0, scored(2, 0, (0.1 + 0.2) / 2.0)),
            "b": agent(3, 1, 1, 1, 1, 1.0, scored(2, 1, 0.5))},
        "datasets": [dataset()], "guardrails": [{"metric_id": "cost_usd", "max": 2.5}],
        "results": [
            summary("one", "a", Some(0.1), "completed", None),
            summary("two", "a", Some(0.2), "completed", None),
            summary("one", "b", Some(1.0), "completed", None),
            summary("two", "b", None, "failed", Some("verifier_failed")),
        ],
    });
    assert_eq!(job, expected);
    assert_eq!(report.failures[0].count, 1);
    let lines = out.lines();
    let events: Vec<&str> = lines.iter().map(|l| l["event"].as_str().expect("an event")).collect();
    assert_eq!(events[..2], ["run_started", "run_opened"]);
    assert_eq!(events[2..6], ["trial_settled"; 4]);
    assert_eq!(events[6..], ["run_ended", "result"]);
    assert_eq!(lines[7]["results"], job["results"]);
}

#[tokio::test]
async fn result_file_does_not_depend_on_settlement_order() {
    let mut results = Vec::new();
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let dir = tempfile::tempdir().expect("a directory");
        let told = run_reporter(
            dir.path(),
            MaterializeMode::None,
            &SharedOutput::default(),
            batches(order),
        )
        .await;
        told.expect("told");
        results.push(fs::read(dir.path().join("run/result.json")).expect("a file"));
        let mut names: Vec<_> = fs::read_dir(dir.path().join("run"))
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["config.json", "result.json", "store.json"]);
    }
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

#[tokio::test]
async fn replayed_trials_are_written_only_if_missing_or_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let of = |task: &str| dir.path().join(format!("run/a/data/{task}__1"));
    let told = |replayed| {
        let settle = move |ordinal, task| {
            let settlement = Arc::new(settlement(trial("a", task, 1), 1, passed(1.0)));
            event(1, EventKind::TrialSettled { ordinal, replayed, settlement })
        };
        let trials = [settle(0, "one"), settle(1, "two"), settle(2, "three")];
        let batch = [vec![started(5)], Vec::from(trials), vec![ended(9, 3)]].concat();
        let path = dir.path();
        async move {
            run_reporter(path, MaterializeMode::Full, &SharedOutput::default(), vec![batch]).await
        }
    };
    told(false).await.expect("told");
    fs::write(of("one").join("note"), "mine").expect("written");
    fs::remove_dir_all(of("two")).expect("removed");
    fs::write(of("three").join("result.json"), "{").expect("damaged");
    told(true).await.expect("told");
    assert_eq!(fs::read_to_string(of("one").join("note")).expect("still there"), "mine");
    assert_eq!(read(&of("two").join("result.json"))["reward"], 1.0);
    assert_eq!(read(&of("three").join("result.json"))["reward"], 1.0);
}

#[tokio::test]
async fn trial_with_missing_record_keeps_result_and_warns() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = SharedOutput::default();
    let absent = BlobRef { digest: Digest::sha256(b"?"), size_bytes: 1, media_type: None };
    let lost = with_record(settlement(trial("a", "one", 1), 1, passed(1.0)), absent);
    let batches = vec![vec![started(5), settled(0, lost), ended(9, 4)]];
    let report =
        run_reporter(dir.path(), MaterializeMode::Full, &out, batches).await.expect("told");
    assert_eq!(report.unwritten.count, 1);
    assert_eq!(read(&dir.path().join("run/result.json"))["mean_reward"], 1.0);
    let lines = out.lines();
    let warning = lines.iter().find(|line| line["event"] == "warning").expect("a warning");
    let message = warning["message"].as_str().expect("a message");
    assert!(message.contains("a/data/one__1") && message.contains("not in the store"), "{message}");
}

#[tokio::test]
async fn session_that_ends_at_once_waits_for_no_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = FsStore::open(dir.path().join("store")).await.expect("a store");
    let record = store.put_bytes(Bytes::from_static(b"{}"), MediaType::Json).await.expect("stored");
    let faulty = Arc::new(FaultyStore::new(Arc::new(store)));
    for call in [StoreCall::Get, StoreCall::GetBytes] {
        faulty.inject_always(call, Some(StoreFault::Fail));
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped_at_once = stopped.map(drop).boxed().shared();
    let facts = JobFacts { stopped_at_once, ..facts(dir.path(), MaterializeMode::Full) };
    let lost = with_record(settlement(trial("a", "one", 1), 1, passed(1.0)), record);
    let batches = vec![vec![started(5), settled(0, lost), ended(9, 4)]];
    let reported = report_to_sinks(facts, Arc::clone(&faulty) as _, Vec::new(), batches);
    let mut reported = std::pin::pin!(reported);
    while faulty.reads() < 2 {
        let poll = tokio::time::timeout(POLL_INTERVAL, reported.as_mut()).await;
        assert!(poll.is_err(), "the store is waited for");
    }
    drop(stop);
    let report = reported.await.expect("reported");
    assert_eq!(report.unwritten.count, 1);
}

#[tokio::test]
async fn result_files_of_run_without_start_or_end_are_not_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let report = run_reporter(dir.path(), MaterializeMode::Full, &SharedOutput::default(), vec![])
        .await
        .expect("told");
    assert!(report.result.is_none());
    assert_eq!(fs::read_dir(dir.path().join("run")).expect("a directory").count(), 0);
    let refused = vec![vec![started(5)]];
    run_reporter(dir.path(), MaterializeMode::Full, &SharedOutput::default(), refused)
        .await
        .expect("told");
    assert_eq!(fs::read_dir(dir.path().join("run")).expect("a directory").count(), 0);
}

#[tokio::test]
async fn resume_of_complete_run_writes_same_result() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut results = Vec::new();
    for (replayed, end) in [(false, 60), (true, 900)] {
        let all = (0..5).map(|ordinal| {
            let settlement = Arc::new(settlement(trial("b", "t", ordinal + 1), 1, passed(1.0)));
            let ordinal = u64::from(ordinal);
            event(5, EventKind::TrialSettled { ordinal, replayed, settlement })
        });
        let batch = std::iter::once(started(5)).chain(all).chain([ended(end, 0)]).collect();
        run_reporter(dir.path(), MaterializeMode::None, &SharedOutput::default(), vec![batch])
            .await
            .expect("told");
        results.push(fs::read(dir.path().join("run/result.json")).expect("a file"));
    }
    assert_eq!(results[0], results[1]);
    let result = read(&dir.path().join("run/result.json"));
    assert_eq!((&result["total_duration_sec"], &result["cancelled"]), (&json!(9.0), &json!(false)));
}

#[tokio::test]
async fn tables_of_incomplete_run_are_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let tables = dir.path().join("run/tables");
    fs::create_dir_all(&tables).expect("a directory");
    fs::write(tables.join("trials.jsonl"), "old").expect("written");
    let refused = vec![vec![started(5)]];
    for (batches, kept) in [(refused, true), (batches([0, 1, 2, 3]), false)] {
        run_reporter(dir.path(), MaterializeMode::None, &SharedOutput::default(), batches)
            .await
            .expect("told");
        assert_eq!(tables.exists(), kept);
    }
}

#[tokio::test]
async fn json_output_closed_by_reader_does_not_stop_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = SharedOutput { broken: true, ..SharedOutput::default() };
    run_reporter(dir.path(), MaterializeMode::None, &out, batches([0, 1, 2, 3]))
        .await
        .expect("told");
    assert!(dir.path().join("run/result.json").exists());
}

#[tokio::test]
async fn metrics_of_several_rewards_are_kept_per_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let several = |reward: Option<f64>, numbers: &[(&str, f64)]| {
        let rewards = numbers.iter().map(|(key, number)| ((*key).to_owned(), *number)).collect();
        Verdict { reward, rewards, ..Verdict::completed(0.0) }
    };
    let late = error(ErrorType::AgentExecutionTimeout, ErrorClass::Agent, "too slow");
    let with_error = Verdict { error: Some(late), ..several(None, &[("a", 1.0), ("b", 0.5)]) };
    let cause = error(ErrorType::VerifierFailed, ErrorClass::Verifier, "exit code 1");
    let verdicts = [
        ("a", several(None, &[("a", 0.0), ("b", 0.25)])),
        ("a", with_error),
        ("b", several(Some(1.0), &[("a", 1.0), ("reward", 1.0)])),
        ("b", passed(0.0)),
        ("b", failed(cause)),
    ];
    let settled = verdicts.into_iter().enumerate().map(|(at, (agent, verdict))| {
        let task = trial(agent, "t", at as u32 + 1);
        settled(at as u64, settlement(task, at as u8, verdict))
    });
    let batches = vec![vec![started(5)], settled.collect(), vec![ended(9, 0)]];
    run_reporter(dir.path(), MaterializeMode::None, &SharedOutput::default(), batches)
        .await
        .expect("told");
    let job = read(&dir.path().join("run/result.json"));
    let figures = |trials: u64, mean: Option<f64>| json!({"trials": trials, "mean": mean});
    assert_eq!(
        job["metrics"]["rewards"],
        json!({
            "a": {"overall": figures(3, Some(2.0 / 3.0)),
                "agents": {"a": figures(2, Some(0.5)), "b": figures(1, Some(1.0))}},
            "b": {"overall": figures(2, Some(0.375)),
                "agents": {"a": figures(2, Some(0.375)), "b": figures(0, None)}},
            "reward": {"overall": figures(2, Some(0.5)),
                "agents": {"a": figures(0, None), "b": figures(2, Some(0.5))}},
        })
    );
    assert_eq!(job["mean_reward"], 0.5);
    assert_eq!(job["completed_trials"], 4);
    assert_eq!(job["completed_with_error_trials"], 1);
    assert_eq!(job["errors"], json!({"agent_execution_timeout": 1, "verifier_failed": 1}));
    assert_eq!(job["results"][1]["rewards"], json!({"a": 1.0, "b": 0.5}));
    assert_eq!(job["results"][3].get("rewards"), None);
}

/// Records the calls of a sink, in order.
#[derive(Debug, Clone, Default)]
struct RecordingSink {
    calls: Arc<Mutex<Vec<String>>>,
    fails: bool,
}

impl RecordingSink {
    fn start(&self) -> SinkStarter {
        let sink = self.clone();
        Box::new(move |_| Ok(Box::new(sink)))
    }

    fn record_call(&self, told: impl Into<String>) {
        self.calls.lock().expect("not poisoned").push(told.into());
    }
}

#[async_trait::async_trait]
impl EventSink for RecordingSink {
    async fn accept(&mut self, batch: &EventBatch) {
        self.record_call(format!("batch of {}", batch.len()));
    }

    async fn warn(&mut self, warnings: &EventBatch) {
        self.record_call(format!("{} warnings", warnings.len()));
    }

    async fn drain(&mut self) {
        self.record_call("drain");
    }

    async fn finish(self: Box<Self>, result: Option<RunResult>) -> Result<SinkReport, ReportError> {
        self.record_call(if result.is_some() { "result" } else { "no result" });
        if self.fails {
            return Err(ReportError::Json(io::Error::other("full")));
        }
        Ok(SinkReport::default())
    }
}

#[tokio::test]
async fn sinks_receive_batches_warnings_and_result_in_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let store: Arc<dyn BlobStore> =
        Arc::new(FsStore::open(dir.path().join("store")).await.expect("a store"));
    let absent = BlobRef { digest: Digest::sha256(b"?"), size_bytes: 1, media_type: None };
    let lost = with_record(settlement(trial("a", "one", 1), 1, passed(1.0)), absent);
    let batches = vec![vec![started(5), settled(0, lost)], vec![ended(9, 4)]];
    let (failing, last) =
        (RecordingSink { fails: true, ..RecordingSink::default() }, RecordingSink::default());
    let sinks = vec![failing.start(), last.start()];
    let told =
        report_to_sinks(facts(dir.path(), MaterializeMode::Full), store, sinks, batches).await;
    assert!(matches!(told, Err(ReportError::Json(_))), "{told:?}");
    for recorder in [failing, last] {
        let mut told = recorder.calls.lock().expect("not poisoned").clone();
        // The files sink warns at the latest before the result.
        let warning = told.iter().position(|told| told == "1 warnings").expect("a warning");
        told.remove(warning);
        assert_eq!(told, ["batch of 2", "batch of 1", "drain", "result"]);
    }
}
