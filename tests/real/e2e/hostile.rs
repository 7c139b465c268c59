//! Agents that ignore signals, leave processes, print without end, or replace their log directory.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_protocol::limits::{CAPTURE_HEAD_BYTES, CAPTURE_TAIL_BYTES};
use rollout_tests::docker::DockerEngine;
use rollout_tests::processes;
use rollout_tests::wait;

use crate::e2e::{DEADLINE, assert_nothing_left, project};

#[test]
fn agent_timeout_kills_stubborn_agent_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_stubborn_agent_killed("docker");
}

#[test]
fn agent_timeout_kills_stubborn_agent_in_sandbox() {
    assert_stubborn_agent_killed("process");
}

#[test]
fn background_service_lives_until_trial_ends_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_service_lifetime("docker");
}

#[test]
fn background_service_lives_until_trial_ends_in_sandbox() {
    assert_service_lifetime("process");
}

#[test]
fn output_flood_is_truncated_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_flood_bounded("docker");
}

#[test]
fn output_flood_is_truncated_in_sandbox() {
    assert_flood_bounded("process");
}

#[test]
fn logs_directory_removed_is_recreated_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_logs_recreated("docker");
}

#[test]
fn logs_directory_removed_is_recreated_in_sandbox() {
    assert_logs_recreated("process");
}

fn assert_logs_recreated(provider: &str) {
    let values = [("PROVIDER", provider)];
    let project = project().tasks(["faults/passes"], &[]).job("logs.yaml", &values);
    let _ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let results = project.results("logs");
    for agent in ["removed", "dangling", "linked", "circle", "file", "pipe", "closed"] {
        let trial = results.trial(agent, "passes");
        assert_eq!(trial.reward(), Some(1.0), "{agent}: {:#}", trial.result);
    }
    // An error of the agent, although it had ended before the storage was measured.
    let greedy = results.trial("greedy", "passes");
    let error = &greedy.result["error"];
    let found = ["type", "code", "class"].map(|key| error[key].as_str().unwrap_or_default());
    assert_eq!(
        found,
        ["agent_execution_failed", "storage_exceeded", "agent"],
        "{:#}",
        greedy.result
    );
    assert_nothing_left(&project);
}

fn assert_stubborn_agent_killed(provider: &str) {
    let project = project().tasks(["agents/impatient"], &[]);
    let mark = project.mark();
    let project = project.job("stubborn.yaml", &[("PROVIDER", provider), ("MARK", &mark)]);
    let run = project.rollout(&["run", "job.yaml"]);
    let tickers =
        || processes::with_mark(&mark).iter().filter(|p| p.arguments.contains("ticker")).count();
    wait::until(DEADLINE, "all five tickers", || tickers() >= 5);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_nothing_left(&project);

    let trial = project.results("stubborn").trial("stubborn", "impatient");
    assert_eq!(trial.error(), Some("agent_execution_timeout"), "{:#}", trial.result);
    // Collected after the last of them had ended: the log ends with a complete line.
    let ticks = trial.text("logs/agent/ticks").expect("collected");
    assert!(ticks.lines().count() > 10 && ticks.ends_with('\n'), "{ticks}");
}

fn assert_service_lifetime(provider: &str) {
    let project = project().tasks(["agents/service"], &[]);
    let mark = project.mark();
    let project = project.job("service.yaml", &[("PROVIDER", provider), ("MARK", &mark)]);
    let _ended =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("service").trial("starter", "service");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    assert_nothing_left(&project);
}

fn assert_flood_bounded(provider: &str) {
    let values = [("PROVIDER", provider), ("BYTES", "1000000000")];
    let project = project().tasks(["faults/passes"], &[]).job("flood.yaml", &values);
    let _ended =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("flood").trial("flood", "passes");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    let file = trial.directory.join("command/stdout.txt");
    let kept = fs::metadata(&file).expect("captured").len();
    let bound = CAPTURE_HEAD_BYTES + CAPTURE_TAIL_BYTES + 1024;
    assert!(kept <= bound, "{kept} bytes of {}", file.display());
    let text = trial.text("command/stdout.txt").expect("captured");
    assert!(text.starts_with("the beginning\n") && text.ends_with("\nthe end\n"));
    assert_nothing_left(&project);
}
