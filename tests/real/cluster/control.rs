//! `rollout control` of harnesses that heed, ignore or cannot read controls.

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::executor::HEEDING;
use rollout_tests::program::ProgramExit;
use rollout_tests::wait;
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

const JOB: &str = r#"
name: controlled
n_concurrent_trials: 3
environment: {type: process, provider_config: {ignore_dockerfile: true}}
agents:
  - name: heeds
    harness: {command: @HEEDING@, integration_level: cli_events, events_path: /logs/agent/e.jsonl}
  - name: ignores
    harness: {command: sleep 86400, integration_level: cli_events, events_path: /logs/agent/e.jsonl}
  - name: basic
    harness: {command: sleep 86400}
datasets: [{path: tasks}]
"#;

fn control(cluster: &Cluster, trial: &str, more: &[&str]) -> ProgramExit {
    let directory = cluster.project.results("controlled").path().display().to_string();
    let words = [&["control", directory.as_str(), trial], more].concat();
    cluster.command(&words).wait(DEADLINE)
}

#[test]
fn control_is_acknowledged_ignored_or_unsupported_over_nats() {
    let Some(cluster) = cluster() else { return };
    let heeding = json!(HEEDING).to_string();
    let job = JOB.replace("@HEEDING@", &heeding);
    std::fs::write(cluster.project.path().join("job.yaml"), job).expect("written");
    let files = [
        ("task.toml", "version = '1.0'\n"),
        ("instruction.md", "Write the answer.\n"),
        ("environment/Dockerfile", "FROM debian:bookworm-slim\n"),
        ("tests/test.sh", "test -s answer.txt; echo $((1 - $?)) >/logs/verifier/reward.txt\n"),
    ];
    for (name, text) in files {
        let path = cluster.project.path().join("tasks/t").join(name);
        std::fs::create_dir_all(path.parent().expect("below the task")).expect("a directory");
        std::fs::write(path, text).expect("written");
    }
    let worker = cluster.worker("a", 3).started();
    let mut coordinator = cluster.coordinator("job.yaml").started();
    let manifest = cluster.project.results("controlled").path().join("manifest.json");
    wait::until(DEADLINE, "the run", || manifest.exists());
    wait::until(DEADLINE, "an acknowledged checkpoint", || {
        let exit = control(&cluster, "heeds", &["checkpoint", "--label", "first"]);
        exit.status.code() == Some(i32::from(ExitCode::Success.code()))
    });
    let stopped = control(&cluster, "heeds", &["stop", "--json"]).expect_code(ExitCode::Success);
    let receipt: Value = serde_json::from_str(&stopped.stdout).expect("JSON");
    assert_eq!(receipt["result"], "acknowledged", "{receipt:#}");
    assert_eq!(receipt["control"]["acknowledgement"]["action_taken"], "stop", "{receipt:#}");

    wait::until(DEADLINE, "an unsupported control", || {
        control(&cluster, "basic", &["stop"]).stderr.contains("unsupported_for_integration_level")
    });
    wait::until(DEADLINE, "an unacknowledged stop", || {
        let exit = control(&cluster, "ignores", &["stop", "--timeout", "2s", "--grace", "1s"]);
        exit.stdout.contains("unacknowledged")
    });
    let directory = cluster.project.results("controlled").path().display().to_string();
    wait::until(DEADLINE, "the ends of two trials", || {
        let status = cluster.project.rollout(&["show", &directory]).wait(DEADLINE).stdout;
        !["heeds", "ignores"].iter().any(|agent| {
            status.lines().any(|line| line.contains(agent) && line.contains("running"))
        })
    });
    let late = control(&cluster, "heeds", &["stop"]).expect_code(ExitCode::Config);
    assert!(late.stderr.contains("its state is completed"), "{}", late.stderr);
    cluster.command(&["cancel", &directory, "--agent", "basic"]).wait(DEADLINE);
    let _ended = coordinator.wait(DEADLINE);

    let results = cluster.project.results("controlled");
    let heeded = results.trial("heeds", "t");
    assert_eq!((heeded.reward(), heeded.error()), (Some(1.0), None), "{:#}", heeded.result);
    let harness = &heeded.result["harness"];
    assert_eq!(harness["events"]["violations"]["total"], 0, "{harness:#}");
    assert_eq!(harness["controls"][0]["label"], "first", "{harness:#}");
    let ignored = results.trial("ignores", "t");
    assert_eq!(ignored.error(), Some("agent_execution_timeout"), "{:#}", ignored.result);
    assert_eq!(ignored.result["harness"]["controls"][0]["ended_command"], true);
    assert_no_leaks(&cluster, &["controlled"], [worker]);
}
