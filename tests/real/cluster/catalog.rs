//! Runs in a catalog: read and continued by hosts that have nothing of them.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::audit;
use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::leak_check::directory_entries;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::processes;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use rollout_tests::s3_server::S3Server;
use rollout_tests::tcp_proxy::TcpProxy;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::s3::with_store;
use crate::cluster::{DEADLINE, LEASE, assert_no_leaks, cluster};

/// A host that has only the program, the address of a catalog, and the server.
struct OtherHost {
    project: Project,
}

impl OtherHost {
    fn new() -> Self {
        Self { project: Project::new(env!("CARGO_BIN_EXE_rollout-under-test")) }
    }

    fn run(&self, arguments: &[&str]) -> ProgramExit {
        let mut command = self.project.command(arguments);
        command.envs(S3Server::environment());
        command.env("ROLLOUT_LEASE", LEASE.as_secs().to_string());
        self.project.start(command).wait(DEADLINE)
    }

    /// The JSON document that a command prints.
    fn read(&self, arguments: &[&str]) -> Value {
        let ended = self.run(&[arguments, &["--json"]].concat()).expect_code(ExitCode::Success);
        serde_json::from_str(&ended.stdout).expect("a JSON document")
    }
}

/// Removes everything that the first host has, except what its workers use.
fn remove_run_of(cluster: &Cluster) {
    let jobs = cluster.project.path().join("jobs");
    assert!(!directory_entries(&jobs).is_empty(), "the run had a directory");
    fs::remove_dir_all(jobs).expect("removable");
}

#[test]
fn run_of_lost_host_is_read_and_resumed_from_catalog() {
    let (Some(cluster), server) = (cluster(), S3Server::start()) else { return };
    let counter = LiveCounter::start();
    let load = Load { at_once: 4, ..Load::new("moved", 24, (0.8, 1.4)) };
    load.write(&cluster.project, &counter);
    let url = server.store_url("runs");
    let workers = ["a", "b"].map(|name| with_store(cluster.worker(name, 2), &url).started());
    let coordinator = cluster.coordinator(&load.file()).with_option("--sink", "hybrid");
    let mut coordinator = with_store(coordinator, &url).started();
    let results = cluster.project.results("moved");
    wait::until(DEADLINE, "half of the results", || results.trial_count() >= 12);

    let host = OtherHost::new();
    let live = host.read(&["status", &url]);
    assert_eq!((&live["job"], &live["state"]), (&"moved".into(), &"running".into()));
    let ended = coordinator.kill().expect("it ran");
    assert_eq!(ended.status.code(), None, "killed by the test: {}", ended.stderr);
    let settled = results.trials();
    remove_run_of(&cluster);

    let listed = host.read(&["list", &url]);
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1), "{listed}");
    let run = listed["runs"][0]["path"].as_str().expect("an address").to_owned();
    let status = host.read(&["status", &run]);
    let count = |status: &Value, key| status["counts"][key].as_u64().expect("a count");
    assert!(count(&status, "settled") >= settled.len() as u64, "{status}");
    let first = &settled[0];
    let shown = host.read(&["show", &run, &first.name]);
    assert_eq!(shown["reward"], first.result["reward"], "{shown}");
    let _logs = host.read(&["logs", &run, &first.name]);
    let events = host.run(&["events", &run]).expect_code(ExitCode::Success).stdout;
    assert!(events.contains("trial_settled"), "{events}");
    let refused = host.run(&["resume", &run]).expect_code(ExitCode::Config);
    assert!(refused.stderr.contains("--nats"), "{}", refused.stderr);

    let nats = cluster.server.url();
    let resumed = host.run(&["resume", &run, "--nats", &nats]).expect_code(ExitCode::Success);
    assert!(resumed.stdout.contains("24"), "{}", resumed.stdout);
    let moved = host.project.results("moved");
    assert_eq!(audit::differences(&load, &moved), Vec::<String>::new());
    assert_eq!(counter.repeated(), 0, "{:?}", counter.executions());
    for trial in settled {
        let now = moved.trials().into_iter().find(|now| now.name == trial.name);
        assert_eq!(now.map(|now| now.result), Some(trial.result), "{} was settled", trial.name);
    }
    let completed = OtherHost::new().read(&["status", &run]);
    assert_eq!((&completed["state"], count(&completed, "settled")), (&"completed".into(), 24));
    for mut worker in workers {
        let _ended = worker.terminate(DEADLINE);
    }
}

/// A run that is half done when its coordinator loses the store of its catalog.
struct CutOffRun {
    counter: LiveCounter,
    load: Load,
    worker: ClusterMember,
    coordinator: ClusterMember,
    proxy: TcpProxy,
    _server: S3Server,
}

impl CutOffRun {
    fn start(cluster: &Cluster, job: &str, sink: &str) -> Self {
        let (server, counter) = (S3Server::start(), LiveCounter::start());
        let load = Load { at_once: 4, ..Load::new(job, 16, (0.3, 0.6)) };
        load.write(&cluster.project, &counter);
        let proxy = TcpProxy::for_port(server.port());
        let cut = server.store_url_at(proxy.port(), "runs");
        let worker = with_store(cluster.worker("a", 4), &server.store_url("runs")).started();
        let coordinator = cluster.coordinator(&load.file()).with_option("--sink", sink);
        let coordinator = with_store(coordinator, &cut).started();
        wait::until(DEADLINE, "some results", || counter.observed().len() >= 8);
        proxy.cut();
        Self { counter, load, worker, coordinator, proxy, _server: server }
    }
}

#[test]
fn catalog_that_is_out_of_reach_holds_new_work_back() {
    let Some(cluster) = cluster() else { return };
    let mut run = CutOffRun::start(&cluster, "held", "catalog");
    // Running trials go on, and no other begins. One that began just before may not have its agent
    // yet.
    let pid = run.worker.process().pid();
    let is_idle = || processes::descendants(pid).is_empty() && run.counter.running() == 0;
    wait::until(DEADLINE, "the running trials to end", is_idle);
    let seen = run.counter.observed().len();
    run.coordinator.wait_for_stderr("writing to the catalog", DEADLINE);
    assert_eq!(run.counter.observed().len(), seen);
    assert!(seen < 16, "{seen}");
    run.proxy.restore();
    let _ended = run.coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(run.counter.repeated(), 0, "{:?}", run.counter.executions());
    crate::cluster::assert_undisturbed(&cluster, &run.load);
    assert_no_leaks(&cluster, &["held"], [run.worker]);
}

#[test]
fn second_signal_ends_a_session_whose_catalog_is_out_of_reach() {
    let Some(cluster) = cluster() else { return };
    let mut run = CutOffRun::start(&cluster, "ended", "hybrid");
    run.coordinator.wait_for_stderr("writing to the catalog", DEADLINE);
    run.coordinator.process().signal(Signal::TERM);
    run.coordinator.wait_for_stderr("stopping: ", DEADLINE);
    run.coordinator.process().signal(Signal::TERM);
    run.coordinator.wait_for_stderr("stopping at once", DEADLINE);
    let ended = run.coordinator.wait(DEADLINE).expect_code(ExitCode::OutOfReach);
    assert!(ended.stderr.contains("catalog"), "{}", ended.stderr);
    run.proxy.restore();
    run.coordinator.start();
    let _ended = run.coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    crate::cluster::assert_undisturbed(&cluster, &run.load);
    assert_no_leaks(&cluster, &["ended"], [run.worker]);
}
