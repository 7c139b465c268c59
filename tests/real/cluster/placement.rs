//! Trials that fit on no worker.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;

use crate::{DEADLINE, assert_no_leaks, cluster};

#[test]
fn unplaceable_trial_fails_and_blocks_no_other() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("large", 5, (0.5, 1.0)));
    load.write(&cluster.project, &counter);
    let toml = cluster.project.path().join("tasks-large").join(load.task(2)).join("task.toml");
    fs::write(toml, "version = \"1.0\"\n[environment]\ncpus = 64\n").expect("a file");
    let worker = cluster.worker("a", 2).with_arguments(&["--cpus", "2"]).started();
    let coordinator =
        cluster.coordinator(&load.file()).with_arguments(&["--unplaceable-timeout", "5s"]);
    let ended = coordinator.started().wait(DEADLINE).expect_code(ExitCode::Infrastructure);
    let output = format!("{}{}", ended.stdout, ended.stderr);
    assert!(output.contains("64") && output.contains("cpu"), "the reason is missing: {output}");
    let results = cluster.project.results("large");
    assert_eq!((results.count("completed_trials"), results.count("failed_trials")), (4, 1));
    let large = results.trial("busy", &load.task(2));
    assert_eq!(large.error(), Some("environment_resource_allocation_failed"));
    assert_eq!(large.result["error"]["code"], "unplaceable");
    assert!(large.message().contains("64"), "{}", large.message());
    assert_eq!(counter.executions().get(&load.task(2)), None);
    assert_no_leaks(&cluster, &["large"], [worker]);
}
