//! Outages of the NATS server: longer than a lease, over the end of trials, and with a lost store.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, LEASE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn server_outage_longer_than_lease_repeats_nothing() {
    let Some(mut cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let load = Load::new("outage", 8, (14.0, 16.0));
    load.write(&cluster.project, &counter);
    let workers = ["a", "b"].map(|name| cluster.worker(name, 3).started());
    let mut coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "six agents", || counter.running() == 6);
    cluster.server.kill();
    let ended = || counter.running() < 6;
    assert!(
        !wait::holds_within(2 * LEASE, ended),
        "the outage ended a trial: {:?}",
        counter.observed()
    );
    cluster.server.ensure_started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((counter.killed(), counter.repeated()), (0, 0), "{:?}", counter.observed());
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["outage"], workers);
}

#[test]
fn setup_waits_for_a_server_that_starts_later() {
    let Some(mut cluster) = cluster() else { return };
    cluster.server.kill();
    let setup = |wait: &str| cluster.command(&["setup", "--wait", wait]);
    let ended = setup("0").wait(DEADLINE).expect_code(ExitCode::OutOfReach);
    assert!(ended.stderr.contains("cannot reach the NATS server"), "{}", ended.stderr);
    let mut waiting = setup("60s");
    assert!(!wait::holds_within(Duration::from_secs(2), || waiting.has_ended()), "it waits");
    cluster.server.ensure_started();
    let _ended = waiting.wait(DEADLINE).expect_code(ExitCode::Success);
}

#[test]
fn server_outage_results_are_merged_afterwards() {
    let Some(mut cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let load = Load::new("spooled", 9, (3.0, 5.0));
    load.write(&cluster.project, &counter);
    let workers = ["a", "b"].map(|name| cluster.worker(name, 3).started());
    let mut coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "six agents", || counter.running() == 6);
    cluster.server.kill();
    wait::until(DEADLINE, "the end of six agents", || counter.running() == 0);
    cluster.server.ensure_started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((counter.killed(), counter.repeated()), (0, 0), "{:?}", counter.observed());
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["spooled"], workers);
}

#[test]
fn server_store_lost_repeatedly_loses_no_result() {
    let Some(mut cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let load = Load::new("again", 40, (1.0, 3.0));
    load.write(&cluster.project, &counter);
    let workers = ["a", "b"].map(|name| cluster.worker(name, 3).started());
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("again");
    for (number, settled) in [4, 12, 20, 28].into_iter().enumerate() {
        wait::until(DEADLINE, "more results", || results.trial_count() >= settled);
        if number == 2 {
            cluster.server.wipe();
        } else {
            cluster.server.kill();
        }
        cluster.server.ensure_started();
    }
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((counter.killed(), counter.repeated()), (0, 0), "{:?}", counter.executions());
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["again"], workers);
}
