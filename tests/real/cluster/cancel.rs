//! `rollout cancel` of a run or a task: running, waiting, or not yet started.

use std::time::Instant;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::print_notice;
use rollout_tests::program::ProgramExit;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

fn cancel(cluster: &Cluster, more: &[&str]) -> ProgramExit {
    let address = format!("{}#cancelled", cluster.server.url());
    cluster.command(&[&["cancel", address.as_str()], more].concat()).wait(DEADLINE)
}

#[test]
fn cancel_of_running_and_waiting_task_settles_both() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("cancelled", 4, (6.0, 6.0)));
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 2).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    let running: Vec<_> = counter.executions().into_keys().collect();
    let waiting: Vec<_> =
        (1..=4).map(|n| load.task(n)).filter(|task| !running.contains(task)).collect();

    let asked = Instant::now();
    // The waiting one first: the other leaves a free slot.
    for task in [&waiting[0], &running[0]] {
        let receipt = cancel(&cluster, &["--task", task]).expect_code(ExitCode::Success);
        print_notice(&format!("receipt: {}{}", receipt.stdout, receipt.stderr));
    }
    // Before the six seconds after which it ends by itself, and is not killed.
    wait::until(DEADLINE, "the agent's end", || counter.killed() == 1);
    print_notice(&format!("the environment was removed after {:?}", asked.elapsed()));

    let _ended = coordinator.wait(DEADLINE);
    let results = cluster.project.results("cancelled");
    assert_eq!((results.count("completed_trials"), results.count("cancelled_trials")), (2, 2));
    assert_eq!(counter.executions().get(&waiting[0]), None, "it never began");
    assert_eq!(counter.repeated(), 0);
    assert_no_leaks(&cluster, &["cancelled"], [worker]);
}

#[test]
fn cancel_of_run_settles_every_trial() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("cancelled", 6, (60.0, 60.0)));
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 2).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    let receipt = cancel(&cluster, &[]).expect_code(ExitCode::Success);
    print_notice(&format!("receipt: {}{}", receipt.stdout, receipt.stderr));
    wait::until(DEADLINE, "the agents' ends", || counter.running() == 0);
    assert_eq!(counter.killed(), 2, "none has ended by itself");
    let _ended = coordinator.wait(DEADLINE);
    let results = cluster.project.results("cancelled");
    let cancelled = results.count("cancelled_trials") + results.count("skipped_trials");
    assert_eq!((cancelled, results.count("total_trials")), (6, 6), "{:#}", results.job());
    assert_no_leaks(&cluster, &["cancelled"], [worker]);
}

#[test]
fn cancel_before_start_runs_nothing() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("cancelled", 3, (0.5, 0.5)));
    load.write(&cluster.project, &counter);
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("cancelled");
    wait::until(DEADLINE, "the run", || results.path().join("manifest.json").exists());
    let receipt = cancel(&cluster, &["--task", &load.task(2)]).expect_code(ExitCode::Success);
    print_notice(&format!("receipt: {}{}", receipt.stdout, receipt.stderr));
    let worker = cluster.worker("a", 2).started();
    let _ended = coordinator.wait(DEADLINE);
    assert_eq!((results.count("completed_trials"), results.count("cancelled_trials")), (2, 1));
    assert_eq!(counter.executions().get(&load.task(2)), None, "it never began");
    assert_no_leaks(&cluster, &["cancelled"], [worker]);
}
