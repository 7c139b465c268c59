//! A run read on a host that has only the address of its server.

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::project::Project;
use rollout_tests::wait;
use serde_json::Value;

use crate::cluster::{DEADLINE, LEASE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn live_run_is_read_from_its_coordinator_on_another_host() {
    let Some(cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let load = Load { at_once: 4, ..Load::new("shown", 60, (0.5, 1.0)) };
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 3).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("shown");
    wait::until(DEADLINE, "some results", || results.trial_count() >= 4);

    let host = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let url = cluster.server.url();
    let run = |arguments: &[&str]| {
        let mut command = host.command(arguments);
        command.env("ROLLOUT_LEASE", LEASE.as_secs().to_string());
        host.start(command).wait(DEADLINE)
    };
    let read = |arguments: &[&str]| -> Value {
        let ended = run(&[arguments, &["--json"]].concat()).expect_code(ExitCode::Success);
        serde_json::from_str(&ended.stdout).expect("a JSON document")
    };
    let listed = read(&["list", &url]);
    let address = listed["runs"][0]["path"].as_str().expect("an address").to_owned();
    assert_eq!(listed["runs"][0]["name"], "shown", "{listed}");
    let known = results.trials();
    let status = read(&["status", &address]);
    assert_eq!((&status["job"], &status["counts"]["total"]), (&"shown".into(), &60.into()));
    assert!(status["counts"]["settled"].as_u64() >= Some(known.len() as u64), "{status}");
    let shown = read(&["show", &format!("{url}#shown"), &known[0].name]);
    assert_eq!(shown["reward"], known[0].result["reward"], "{shown}");
    let _logs = read(&["logs", &address, &known[0].name]);
    let events = run(&["events", &address]).expect_code(ExitCode::Success).stdout;
    assert!(events.matches("trial_settled").count() >= known.len(), "{events}");
    let unknown = run(&["status", &format!("{url}#other")]).expect_code(ExitCode::Config);
    assert!(unknown.stderr.contains("no such run"), "{}", unknown.stderr);

    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    let over = run(&["status", &address]).expect_code(ExitCode::Config);
    assert!(over.stderr.contains("does not run"), "{}", over.stderr);
    let listed = read(&["list", &url]);
    assert_eq!(listed["runs"][0]["state"], "completed", "{listed}");
    assert_no_leaks(&cluster, &["shown"], [worker]);
}
