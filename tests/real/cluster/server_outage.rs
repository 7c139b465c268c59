//! Outages of the NATS server: longer than a lease, over the end of trials, and with a lost store.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::nats::{self, NatsServer};
use rollout_tests::wait;
use serde_json::Value;

use crate::cluster::{
    DEADLINE, DRAIN_DEADLINE, LEASE, assert_no_leaks, assert_undisturbed, cluster,
};
use crate::queue::authentication::{authority, certificate};

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

#[test]
fn status_says_why_a_server_with_a_certificate_of_others_is_not_reached() {
    let Some(mut cluster) = cluster() else { return };
    let Some(program) = nats::programs().into_iter().next() else { return };
    let files = cluster.project.path().join("tls");
    fs::create_dir(&files).expect("a directory");
    let at = |name: &str| files.join(name);
    let (known, unknown) = (authority("known"), authority("unknown"));
    fs::write(at("ca.pem"), known.pem()).expect("written");
    certificate(&known, &["127.0.0.1"], &files, "known");
    certificate(&unknown, &["127.0.0.1"], &files, "unknown");
    let use_certificate = |name: &str| {
        for ending in ["pem", "key"] {
            let (from, to) = (format!("{name}.{ending}"), format!("server.{ending}"));
            fs::copy(at(&from), at(&to)).expect("copied");
        }
    };
    use_certificate("known");
    let (server, key) = (at("server.pem"), at("server.key"));
    let settings = format!("tls {{ cert_file: {server:?}, key_file: {key:?} }}\n");
    cluster.server.kill();
    let directory = cluster.project.path().join("nats-tls");
    cluster.server = NatsServer::start_with(&program, &directory, &settings);

    let (counter, load) = (LiveCounter::start(), Load::new("distrustful", 4, (3.0, 5.0)));
    load.write(&cluster.project, &counter);
    let ca = at("ca.pem").display().to_string();
    let mut worker = cluster.worker("a", 2).with_arguments(&["--nats-ca", &ca]).started();
    let coordinator = cluster.coordinator(&load.file());
    let mut coordinator = coordinator.with_arguments(&["--nats-ca", &ca]).started();
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    let project = Arc::clone(&cluster.project);
    let status = |format: &[&str]| {
        let command = [&["status", "jobs/distrustful"], format].concat();
        project.rollout(&command).wait(DEADLINE).expect_code(ExitCode::Success).stdout
    };
    assert!(!status(&[]).contains("no connection"));

    cluster.server.kill();
    use_certificate("unknown");
    cluster.server.ensure_started();
    wait::until(DEADLINE, "the reason", || {
        let text = status(&[]);
        text.contains("no connection since") && text.contains("invalid peer certificate")
    });
    let document: Value = serde_json::from_str(&status(&["--json"])).expect("JSON");
    let outage = &document["queue_outage"];
    let reason = outage["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("invalid peer certificate"), "{document}");
    assert!(outage["since"].is_string() && document["state"] == "running", "{document}");
    let listed = project.rollout(&["list", "jobs"]).wait(DEADLINE);
    let listed = listed.expect_code(ExitCode::Success).stdout;
    let line = listed.lines().find(|line| line.starts_with("distrustful: no connection since"));
    assert!(line.is_some_and(|line| line.contains("invalid peer certificate")), "{listed}");

    cluster.server.kill();
    use_certificate("known");
    cluster.server.ensure_started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(!status(&[]).contains("no connection"));
    assert!(!project.path().join("jobs/distrustful/outage.json").exists());
    assert_undisturbed(&cluster, &load);
    let ended = worker.terminate(DRAIN_DEADLINE);
    assert!(ended.status.success(), "{}", ended.stderr);
}
