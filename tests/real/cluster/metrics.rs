//! Health checks and metrics of a coordinator and its workers.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::metrics::{self, Samples};
use rollout_tests::net::free_port;
use rollout_tests::project;
use rollout_tests::wait;
use serde_json::Value;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

/// Trials of the run.
const TRIALS: u32 = 24;

/// The value of `--listen` for a port.
fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn states(samples: &Samples, state: &str) -> f64 {
    samples.sum("rollout_trials", &format!("state=\"{state}\""))
}

fn ended(samples: &Samples, outcome: &str) -> f64 {
    samples.sum("rollout_worker_executions_ended_total", &format!("outcome=\"{outcome}\""))
}

/// Waits for a quarter of the results. Every answer before has all trials.
fn wait_for_a_quarter(port: u16) {
    wait::until(DEADLINE, "a quarter of the results", || {
        let Some(samples) = metrics::scrape(port) else { return false };
        let is_open = samples.sum("rollout_run_info", "") == 1.0;
        let total = samples.sum("rollout_trials", "");
        assert!(!is_open || total == f64::from(TRIALS), "{samples:?}");
        states(&samples, "completed") >= f64::from(TRIALS) / 4.0
    });
}

/// Fails unless each metric is in the table of the documentation, and returns their number.
#[track_caller]
fn assert_documented(samples: &Samples) {
    let document = project::repository().join("docs/operations.md");
    let document = fs::read_to_string(document).expect("readable");
    assert!(samples.families.len() >= 10, "{:?}", samples.families);
    for family in &samples.families {
        let names = [format!("`{family}`"), format!("`{family}_total`")];
        assert!(names.iter().any(|name| document.contains(name)), "{family} is not documented");
    }
}

#[test]
fn metrics_add_up_with_the_result_of_the_run() {
    let Some(cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let load = Load { at_once: 6, ..Load::new("metered", TRIALS, (0.4, 0.8)) };
    load.write(&cluster.project, &counter);
    let (port, worker_ports) = (free_port(), [free_port(), free_port()]);
    let mut names = ["a", "b"].into_iter();
    let workers = worker_ports.map(|port| {
        let worker = cluster.worker(names.next().expect("a name"), 3);
        worker.with_option("--listen", &address(port)).started()
    });
    let of_workers = || worker_ports.map(|port| metrics::scrape(port).expect("a worker"));
    let sum = |value: &dyn Fn(&Samples) -> f64| of_workers().iter().map(value).sum::<f64>();
    for port in worker_ports {
        let is_ready = || metrics::get(port, "/readyz").is_some_and(|(status, _)| status == 200);
        wait::until(DEADLINE, "a ready worker", is_ready);
    }
    let coordinator = cluster.coordinator(&load.file());
    let mut coordinator = coordinator.with_option("--listen", &address(port)).started();
    let run = cluster.project.results("metered");
    wait_for_a_quarter(port);
    assert_eq!(metrics::get(port, "/readyz").expect("it runs").0, 200);

    let pause = cluster.command(&["pause", "jobs/metered"]).wait(DEADLINE);
    let _paused = pause.expect_code(ExitCode::Success);
    let counts = || {
        let status = cluster.project.rollout(&["status", "jobs/metered", "--json"]).wait(DEADLINE);
        let status: Value = serde_json::from_str(&status.stdout).expect("a document");
        status["counts"].clone()
    };
    // Those that a worker had taken before the pause still begin.
    wait::until(DEADLINE, "equal counts of an idle run", || {
        let (counts, samples) = (counts(), metrics::scrape(port).expect("it runs"));
        let is_equal = |state: &str| counts[state].as_f64() == Some(states(&samples, state));
        counts["running"] == 0
            && ["completed", "failed", "running", "queued"].into_iter().all(is_equal)
            && sum(&|of| ended(of, "completed")) == states(&samples, "completed")
    });
    let paused = metrics::scrape(port).expect("it runs");
    assert_documented(&paused);
    of_workers().iter().for_each(assert_documented);
    assert_eq!(paused.sum("rollout_run_paused", ""), 1.0);
    assert!(paused.sum("rollout_oldest_queued_seconds", "") > 0.0, "{paused:?}");
    let settled = paused.sum("rollout_executions_ended_total", "outcome=\"completed\"");
    let durations = paused.sum("rollout_trial_duration_seconds_count", "phase=\"total\"");
    assert_eq!((settled, durations), (states(&paused, "completed"), settled));

    let resumed = cluster.command(&["resume", "jobs/metered"]).wait(DEADLINE);
    let _resumed = resumed.expect_code(ExitCode::Success);
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    let completed = run.count("completed_trials") as f64;
    assert_eq!(sum(&|of| ended(of, "completed")), completed);
    assert_eq!(sum(&|of| of.sum("rollout_worker_executions_ended_total", "")), completed);
    let phase = "phase=\"agent_execution\"";
    let counted = sum(&|of| of.sum("rollout_worker_phase_duration_seconds_count", phase));
    assert_eq!(counted, completed);
    assert!(sum(&|of| of.sum("rollout_worker_stored_bytes_total", "")) > 0.0);
    assert_eq!(sum(&|of| of.sum("rollout_worker_executions", "")), 0.0);
    assert_eq!(sum(&|of| of.sum("rollout_worker_slots_free", "")), 6.0);
    assert_no_leaks(&cluster, &["metered"], workers);
}

#[test]
fn worker_without_server_is_alive_and_not_ready() {
    let Some(mut cluster) = cluster() else { return };
    let port = free_port();
    let worker = cluster.worker("a", 1).with_option("--listen", &address(port)).started();
    let status = |path| metrics::get(port, path).map(|(status, _)| status);
    wait::until(DEADLINE, "a ready worker", || status("/readyz") == Some(200));
    cluster.server.kill();
    wait::until(DEADLINE, "the worker to notice the outage", || status("/readyz") == Some(503));
    let (_, reason) = metrics::get(port, "/readyz").expect("a worker");
    assert_eq!(reason, "not ready: no connection to the server\n");
    assert_eq!(status("/healthz"), Some(200));
    let samples = metrics::scrape(port).expect("a worker");
    assert_eq!(samples.sum("rollout_worker_connected", ""), 0.0);
    cluster.server.ensure_started();
    wait::until(DEADLINE, "a ready worker", || status("/readyz") == Some(200));
    assert_no_leaks(&cluster, &[], [worker]);
}
