//! The remote executor: trials on a server, started one by one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use rollout_base::supervise;
use rollout_coordinator::executor::{
    ExecutorError, RemoteExecutor, RemoteExecutorOptions, RemoteSubmission, TokenSource,
    TrialExecutor as _,
};
use rollout_protocol::error::RetryClass;
use rollout_protocol::executor::StartTrial;
use rollout_protocol::record::ItemOutcome;
use rollout_store::MemoryStore;
use rollout_tests::executor::{self, WAITS, WRITES, contract};
use rollout_tests::journal_replay::assert_follows_from_journal;
use rollout_tests::leak_check::assert_no_leaks;
use rollout_tests::project::Project;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::runtime::Runtime;

use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

const OPTIONS: [&str; 1] = ["--allow-provider-settings"];

fn executor_project() -> Project {
    executor::write_job(project())
}

/// The job of the contract suite, as another host submits it.
fn document(project: &Project) -> Value {
    let text = std::fs::read_to_string(project.path().join("job.yaml")).expect("a job");
    let jobs = format!("jobs_dir: {}\n", project.path().join("jobs").display());
    let tasks = format!("path: {}", project.path().join("tasks").display());
    assert!(text.contains(&jobs) && text.contains("path: tasks"), "{text}");
    json!(text.replace(&jobs, "").replace("path: tasks", &tasks))
}

fn submission_of(project: &Project, key: &str) -> RemoteSubmission {
    let (document, key) = (document(project), key.to_owned());
    RemoteSubmission { document, key, name: None, priority: 0 }
}

/// A client of the server of a project, with the token that the server made.
fn options(project: &Project, port: u16) -> RemoteExecutorOptions {
    let token = Some(TokenSource::File(project.path().join("state/token")));
    RemoteExecutorOptions { token, ..without_token(port) }
}

fn without_token(port: u16) -> RemoteExecutorOptions {
    RemoteExecutorOptions::new(format!("http://127.0.0.1:{port}"))
}

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

async fn planned(executor: &RemoteExecutor, agent: &str) -> StartTrial {
    let trials = executor.planned().await.expect("a plan");
    trials.into_iter().find(|start| start.trial.agent == agent).expect("a planned trial")
}

#[test]
fn remote_executor_passes_contract() {
    let project = executor_project();
    let mut daemon = DaemonProcess::start(&project, &OPTIONS);
    runtime().block_on(async {
        // This process has no store of the server: the plan is made from the job alone.
        let plan = executor::plan(&project, Arc::new(MemoryStore::default())).await;
        let submission = submission_of(&project, "contract");
        let executor =
            RemoteExecutor::submit(&options(&project, daemon.port()), submission.clone()).await;
        let executor = executor.expect("submitted");
        let again = RemoteExecutor::submit(&options(&project, daemon.port()), submission)
            .await
            .expect("known");
        assert_eq!(again.id(), executor.id());
        contract::run_all(&executor, &plan).await;
        let id = executor.id().to_owned();
        let end = executor.finish().await.expect("finished");
        assert_eq!((end.state.as_str(), end.code), ("completed", Some(0)), "{end:?}");
        let directory = project.path().join("state/jobs").join(&id);
        assert_follows_from_journal(&directory);
    });
    daemon.process.signal(Signal::TERM);
    let _ended = daemon.process.wait(DEADLINE);
    assert_no_leaks(&project);
}

#[test]
fn started_trial_is_started_once_though_the_daemon_is_killed() {
    let project = executor_project();
    let mut daemon = DaemonProcess::start(&project, &OPTIONS);
    let (port, runtime) = (daemon.port(), runtime());
    let executor = runtime.block_on(async {
        let submission = submission_of(&project, "killed");
        let executor = RemoteExecutor::submit(&options(&project, daemon.port()), submission).await;
        let executor = executor.expect("submitted");
        for agent in [WRITES, WAITS] {
            let start = planned(&executor, agent).await;
            executor.start_trial(start).await.expect("started");
        }
        executor
    });
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    let mut daemon = DaemonProcess::start_on(&project, port, &OPTIONS);
    runtime.block_on(async {
        let (writes, waits) = (planned(&executor, WRITES).await, planned(&executor, WAITS).await);
        // Both are known without another start.
        let mut end = executor.trial_events(writes.item(), u64::MAX);
        assert!(end.try_next().await.expect("an end").is_none());
        executor.start_trial(writes.clone()).await.expect("it was started");
        let status = executor.trial_status(writes.item()).await.expect("started");
        let settlement = status.settlement().expect("settled");
        assert_eq!(settlement.verdict.outcome, ItemOutcome::Completed, "{settlement:#?}");
        executor.trial_status(waits.item()).await.expect("started");
        executor.cancel_trial(waits.item()).await.expect("cancelled");
        let output = executor.trial_output(writes.item()).await.expect("settled");
        let blob = output.expect("a record").blob;
        let id = executor.id().to_owned();
        let end = executor.finish().await.expect("finished");
        assert_eq!(end.state, "completed", "{end:?}");

        // Blobs of results can be read after the end, by any client, and calls have ended.
        let later = RemoteExecutor::attach(&options(&project, daemon.port()), &id).expect("an id");
        let mut content = Vec::new();
        let mut reader = later.read_artifact(&blob).await.expect("stored");
        reader.read_to_end(&mut content).await.expect("read");
        assert_eq!(content.len() as u64, blob.size_bytes);
        let ended = later.trial_status(writes.item()).await.expect_err("its run has ended");
        assert!(matches!(ended, ExecutorError::Ended), "{ended}");

        let items = daemon.client.get(&format!("/v1/runs/{id}/items")).expect(200).json();
        let settled = |item: &&Value| item["state"] == "completed" || item["state"] == "cancelled";
        let items = items["items"].as_array().expect("items").clone();
        assert_eq!(items.iter().filter(settled).count(), 2, "{items:#?}");
        assert_follows_from_journal(&project.path().join("state/jobs").join(&id));
    });
    daemon.process.signal(Signal::TERM);
    let _ended = daemon.process.wait(DEADLINE);
    assert_no_leaks(&project);
}

#[test]
fn call_outlives_a_restart_and_an_unreachable_server_is_a_passing_error() {
    let project = executor_project();
    let mut daemon = DaemonProcess::start(&project, &OPTIONS);
    let (port, runtime) = (daemon.port(), runtime());
    let executor = runtime.block_on(async {
        let submission = submission_of(&project, "restart");
        RemoteExecutor::submit(&options(&project, daemon.port()), submission)
            .await
            .expect("submitted")
    });
    let start = runtime.block_on(planned(&executor, WRITES));
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    let impatient = RemoteExecutorOptions { patience: Duration::ZERO, ..options(&project, port) };
    let impatient = RemoteExecutor::attach(&impatient, executor.id()).expect("an id");
    let refused = runtime.block_on(impatient.trial_status(start.item())).expect_err("no server");
    assert!(matches!(refused, ExecutorError::Unreachable { .. }), "{refused}");
    assert_eq!(refused.retry_class(), RetryClass::Transient);

    let calling = {
        let (executor, start) = (executor.clone(), start.clone());
        let _inside = runtime.enter();
        supervise::spawn("start of a trial", async move { executor.start_trial(start).await })
    };
    let daemon = DaemonProcess::start_on(&project, port, &OPTIONS);
    runtime.block_on(async {
        let handle = calling.await.expect("no panic").expect("started");
        assert_eq!(handle.item, start.item());
        let end = executor.cancel().await.expect("cancelled");
        assert_eq!(end.state, "cancelled", "{end:?}");
    });
    daemon.stop();
}

#[test]
fn token_and_owner_decide_who_may_use_an_executor() {
    let project = executor_project();
    let users = [("ada", "submit", "ada-token"), ("bob", "submit", "bob-token")];
    let project = project.write("tokens.toml", &crate::serve::tokens::tokens(&users));
    let daemon =
        DaemonProcess::start(&project, &[&OPTIONS[..], &["--tokens", "tokens.toml"]].concat());
    let ada = daemon.client.with_token("ada-token");
    let document = json!({ "kind": "executor", "document": document(&project) });
    let id = submitted(&ada, &document);
    let trials = format!("/v1/runs/{id}/trials");
    let _hidden = daemon.client.with_token("bob-token").get(&trials).expect(404);
    let missing = runtime().block_on(async {
        let attached = RemoteExecutor::attach(&without_token(daemon.port()), &id).expect("an id");
        attached.planned().await.expect_err("no token")
    });
    assert!(matches!(missing, ExecutorError::Server { status: 401, .. }), "{missing}");
    assert_eq!(missing.retry_class(), RetryClass::Permanent);
    let named = RemoteExecutorOptions {
        token: Some(TokenSource::Variable("ROLLOUT_TEST_NO_SUCH_TOKEN".to_owned())),
        ..without_token(daemon.port())
    };
    let unset = RemoteExecutor::attach(&named, &id).expect_err("the variable is not set");
    assert!(unset.to_string().contains("ROLLOUT_TEST_NO_SUCH_TOKEN"), "{unset}");

    // A blob of the store that is of no result of the run is none that a user of it may read.
    let blob = format!("/v1/runs/{id}/blobs/sha256:{}", "0".repeat(64));
    let _missing = ada.get(&blob).expect(404);
    let _finished = ada.post(&format!("/v1/runs/{id}/finish"), &[], &Value::Null).expect(202);
    let of_job = submitted(&ada, &submission(&project, 1));
    let refused = ada.get(&format!("/v1/runs/{of_job}/trials")).expect(409).json();
    assert_eq!(refused["type"], json!("urn:rollout:problem:conflict"));
    daemon.stop();
}
