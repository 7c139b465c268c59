//! Ctrl-C (SIGINT), once and twice.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::{self, DockerEngine};
use rollout_tests::ignored::or_ignored;
use rollout_tests::journal_replay::assert_follows_from_journal;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

#[test]
fn first_interrupt_drains_and_run_resumes_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_first_interrupt_drains("docker");
}

#[test]
fn first_interrupt_drains_and_run_resumes_in_sandbox() {
    assert_first_interrupt_drains("process");
}

#[test]
fn second_interrupt_kills_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_second_interrupt_kills("docker");
}

#[test]
fn second_interrupt_kills_in_sandbox() {
    assert_second_interrupt_kills("process");
}

fn assert_first_interrupt_drains(provider: &str) {
    let values = [("PROVIDER", provider), ("ATTEMPTS", "10")];
    let project = project().tasks(["slow/second"], &[]).job("slow.yaml", &values);
    let results = project.results("slow");
    let mut run = project.rollout(&["run", "job.yaml"]);
    wait::until(DEADLINE, "two results", || results.trial_count() >= 2);
    run.signal(Signal::INT);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Cancelled);
    assert_nothing_left(&project);
    assert_adds_up(&results, 10);
    assert_eq!(results.job()["cancelled"], true);
    assert!(results.count("skipped_trials") > 0, "{:#}", results.job());
    assert_follows_from_journal(results.path());
    let before = results.trials();

    let _ended =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(&results, 10);
    assert_eq!(results.job()["cancelled"], false);
    assert_eq!(results.count("completed_trials"), 10);
    let after = results.trials();
    for trial in before.iter().filter(|trial| trial.reward().is_some()) {
        let same = after.iter().any(|t| t.name == trial.name && t.result == trial.result);
        assert!(same, "{} was settled and has changed", trial.name);
    }
    assert_follows_from_journal(results.path());
    assert_nothing_left(&project);
}

fn assert_second_interrupt_kills(provider: &str) {
    let project = project().tasks(["faults/passes"], &[]);
    let mark = project.mark();
    let job = format!(
        "name: hangs\nenvironment: {{type: {provider}}}\nagents:\n  - name: hangs\n    execute: |\n      \
         echo {mark} >/logs/agent/started\n      exec -a {mark} sleep 86400\ndatasets:\n  - path: tasks\n"
    );
    let project = project.write("job.yaml", &job);
    interrupt_twice(&project, &["run", "job.yaml"]);
    assert_adds_up(&project.results("hangs"), 1);
}

#[test]
fn second_interrupt_ends_build_of_service_image_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    if or_ignored(docker::find_compose_program()).is_none() {
        return;
    }
    let project = project();
    let mark = project.mark();
    project.write_small_task("echo 1 > /logs/verifier/reward.txt\n");
    let compose = "services:\n  main: {}\n  side: {build: ./side, command: sleep infinity}\n";
    project.write_file("tasks/t/environment/docker-compose.yaml", compose);
    let slow = format!(
        "FROM debian:bookworm-slim\nRUN [\"bash\", \"-c\", \"exec -a {mark} sleep 600\"]\n"
    );
    project.write_file("tasks/t/environment/side/Dockerfile", &slow);
    interrupt_twice(&project, &["run", "-p", "tasks", "-a", "nop", "--name", "builds"]);
    assert_adds_up(&project.results("builds"), 1);
}

/// Interrupts a run once a process with the project's mark runs, and again when it drains. Fails unless
/// the second interrupt ends the run soon, with all processes.
fn interrupt_twice(project: &Project, arguments: &[&str]) {
    let mark = project.mark();
    let mut run = project.rollout(arguments);
    let hangs = || !rollout_tests::processes::with_mark(&mark).is_empty();
    wait::until(DEADLINE, "the process with the mark", hangs);
    run.signal(Signal::INT);
    // A run that drains prints a message; only after it does a signal count as the second.
    let reacts = || run.stderr().contains("stopping: running ");
    wait::until(DEADLINE, "the program to react", reacts);
    assert!(!wait::holds_within(Duration::from_secs(1), || run.has_ended()), "it did not drain");
    run.signal(Signal::INT);
    let _ended = run.wait(Duration::from_secs(30)).expect_code(ExitCode::Cancelled);
    assert_nothing_left(project);
}
