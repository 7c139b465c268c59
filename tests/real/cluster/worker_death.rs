//! Killed workers: why their trials run again, and which trial is poisoned. When they do after a lease
//! ends is tested in virtual time (`tests/model`).

use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::print_notice;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, LEASE, assert_no_leaks, assert_undisturbed, cluster};

/// A lease that does not end while a run is waited for.
const LONG_LEASE: Duration = Duration::from_secs(600);

/// Environment variable with the task whose trials kill their worker; only the program under test
/// reads it.
const DEADLY_TASK_VARIABLE: &str = "ROLLOUT_TEST_DEADLY_TASK";

/// Starts a worker and a run, and waits until its two trials run.
fn start_two_trials(
    cluster: &Cluster,
    counter: &LiveCounter,
    load: &Load,
) -> (ClusterMember, ClusterMember) {
    load.write(&cluster.project, counter);
    let worker = cluster.worker("a", 2).started();
    let coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    (worker, coordinator)
}

/// Waits until both trials run again.
fn wait_until_rerun(counter: &LiveCounter) -> Instant {
    wait::until(DEADLINE, "both to run again", || counter.repeated() == 2);
    Instant::now()
}

#[test]
fn worker_kill_moves_trials_to_another_worker() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("elsewhere", 2, (9.0, 9.0)));
    let (mut dead, mut coordinator) = start_two_trials(&cluster, &counter, &load);
    let other = cluster.worker("b", 2).started();
    wait::until(DEADLINE, "the other worker", || has_worker_count(&cluster, 2));
    let killed = Instant::now();
    dead.kill();
    let took = wait_until_rerun(&counter) - killed;
    print_notice(&format!("ran on the other worker after {took:?} with a lease of {LEASE:?}"));
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    // No worker started since then that could have removed the files of the killed one.
    let next = cluster.worker("c", 1).started();
    let cleaned = || next.own_dir().is_some() && cluster.host_files().len() == 2;
    wait::until(DEADLINE, "the cleanup", cleaned);
    assert_no_leaks(&cluster, &["elsewhere"], [other, next]);
}

#[test]
fn worker_restart_reports_lost_trials_at_once() {
    let Some(cluster) = cluster() else { return };
    // It outlasts every wait of this test: both run again because their worker says that they are lost.
    let cluster = cluster.with_lease(LONG_LEASE);
    let (counter, load) = (LiveCounter::start(), Load::new("restarted", 2, (6.0, 6.0)));
    let (mut worker, mut coordinator) = start_two_trials(&cluster, &counter, &load);
    worker.kill();
    let started = Instant::now();
    worker.start();
    let took = wait_until_rerun(&counter) - started;
    print_notice(&format!("ran again after {took:?} with a lease of {LONG_LEASE:?}"));
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["restarted"], [worker]);
}

#[test]
fn trial_that_kills_worker_is_poisoned_alone() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("poison", 8, (2.0, 3.0)));
    load.write(&cluster.project, &counter);
    let poisonous = load.task(5);
    let mut worker =
        cluster.worker("a", 8).with_variable(DEADLY_TASK_VARIABLE, &poisonous).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let mut deaths = 0;
    wait::until(2 * DEADLINE, "the run to end", || {
        if !worker.is_running() {
            worker.kill();
            worker.start();
            deaths += 1;
        }
        !coordinator.is_running()
    });
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Infrastructure);
    print_notice(&format!("{deaths} deaths, {} executions", counter.observed().len()));
    assert!((3..=6).contains(&deaths), "{deaths} deaths");
    let results = cluster.project.results("poison");
    assert_eq!((results.count("completed_trials"), results.count("failed_trials")), (7, 1));
    for number in (1..=8).filter(|number| *number != 5) {
        let trial = results.trial("busy", &load.task(number));
        assert_eq!((trial.reward(), trial.error()), (Some(Load::reward(number)), None));
    }
    let poisoned = results.trial("busy", &poisonous);
    assert_eq!(poisoned.result["error"]["code"], "poisoned", "{:#}", poisoned.result);
    assert_no_leaks(&cluster, &["poison"], [worker]);
}

/// Whether `rollout workers` lists `count` workers.
fn has_worker_count(cluster: &Cluster, count: usize) -> bool {
    let ended = cluster.command(&["workers", "--json"]).wait(DEADLINE);
    let lines = ended.stdout.matches("\"slots\"").count();
    lines == count
}
