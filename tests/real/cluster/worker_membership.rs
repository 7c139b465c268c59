//! Workers that join, drain and are refused.

use std::path::PathBuf;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::print_notice;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, DRAIN_DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn worker_join_and_drain_repeat_nothing() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("moving", 24, (1.0, 2.0)));
    load.write(&cluster.project, &counter);
    let mut first = cluster.worker("a", 3).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("moving");
    wait::until(DEADLINE, "five results", || results.trial_count() >= 5);
    let second = cluster.worker("b", 3).started();
    wait::until(DEADLINE, "both to work", || counter.running() > 3);
    let ended = first.terminate(DRAIN_DEADLINE).expect_code(ExitCode::Success);
    print_notice(&format!("drained after SIGTERM:\n{}", ended.stderr));
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((counter.killed(), counter.repeated()), (0, 0), "a drain lets trials end");
    assert_undisturbed(&cluster, &load);
    let workers = results.trials().into_iter().map(|trial| trial.result["worker"].to_string());
    let workers: std::collections::BTreeSet<_> = workers.collect();
    assert_eq!(workers.len(), 2, "{workers:?}");
    assert_no_leaks(&cluster, &["moving"], [second]);
}

#[test]
fn drain_timeout_moves_trials_to_other_worker() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("drained", 2, (20.0, 20.0)));
    load.write(&cluster.project, &counter);
    let mut first = cluster.worker("a", 2).with_arguments(&["--drain-timeout", "1s"]).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    let second = cluster.worker("b", 2).started();
    let _ended = first.terminate(DRAIN_DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(counter.killed(), 2, "they were killed: {:?}", counter.observed());
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(counter.repeated(), 2);
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["drained"], [second]);
}

#[test]
fn worker_with_other_store_is_refused() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("stores", 3, (0.5, 1.0)));
    load.write(&cluster.project, &counter);
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let other_store = cluster.project.path().join("another-store");
    let stranger = cluster.worker("stranger", 2);
    let mut stranger =
        stranger.with_option("--store", other_store.to_str().expect("plain")).started();
    // Either side may refuse.
    let stderr_of_both =
        || format!("{}{}", stranger.process().stderr(), coordinator.process().stderr());
    let mut told = stderr_of_both;
    wait::until(DEADLINE, "the refusal", || told().contains("store"));
    assert_eq!(counter.observed(), [], "it got no trial");
    let worker = cluster.worker("a", 2).started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    // It waits, or has refused the pool.
    let ended = stranger.terminate(DRAIN_DEADLINE);
    let codes = [ExitCode::Success, ExitCode::OtherStore].map(|code| Some(i32::from(code.code())));
    assert!(codes.contains(&ended.status.code()), "{}: {}", ended.status, ended.stderr);
    assert_no_leaks(&cluster, &["stores"], [worker]);
}

#[test]
fn worker_with_other_store_of_bound_pool_exits_with_its_code() {
    let Some(cluster) = cluster() else { return };
    let path = |path: PathBuf| path.to_str().expect("plain").to_owned();
    let store = path(cluster.store());
    let setup = cluster.command(&["setup", "--pool", "default", "--store", &store]);
    let _bound = setup.wait(DEADLINE).expect_code(ExitCode::Success);
    let elsewhere = path(cluster.project.path().join("another-store"));
    let mut worker = cluster.worker("a", 1).with_option("--store", &elsewhere).started();
    let refused = worker.wait(DEADLINE).expect_code(ExitCode::OtherStore);
    assert!(refused.stderr.contains("--store"), "{}", refused.stderr);
    assert_no_leaks(&cluster, &[], []);
}

#[test]
fn worker_without_server_exits_with_its_code() {
    let Some(mut cluster) = cluster() else { return };
    let worker = |cluster: &Cluster| cluster.worker("a", 1).with_option("--max-offline", "2s");
    let mut connected = worker(&cluster).started();
    wait::until(DEADLINE, "connected", || connected.process().stderr().contains("connected"));
    cluster.server.kill();
    let _ended = connected.wait(DEADLINE).expect_code(ExitCode::OutOfReach);
    let _ended = worker(&cluster).started().wait(DEADLINE).expect_code(ExitCode::OutOfReach);
    assert_no_leaks(&cluster, &[], []);
}
