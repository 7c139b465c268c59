//! A closed terminal stops a run like SIGTERM; `nohup` keeps it running.

use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::Project;
use rollout_tests::terminal::Terminal;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// A job with trials of about a second.
fn slow_project(provider: &str) -> Project {
    let values = [("PROVIDER", provider), ("ATTEMPTS", "6")];
    project().tasks(["slow/second"], &[]).job("slow.yaml", &values)
}

/// A command of the project as the last argument of `program`, after `arguments`.
fn command_below(
    project: &Project,
    program: &str,
    arguments: &[&str],
    of_program: &Command,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(of_program.get_program()).args(of_program.get_args());
    command.current_dir(project.path()).env_clear();
    command.envs(of_program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// The command with the default action for SIGHUP: the program that starts the tests may ignore it.
fn with_default_sighup(project: &Project, of_program: &Command) -> Command {
    command_below(project, "env", &["--default-signal=HUP"], of_program)
}

fn assert_hangup_drains(provider: &str) {
    let project = slow_project(provider);
    let results = project.results("slow");
    let mut run =
        project.start(with_default_sighup(&project, &project.command(&["run", "job.yaml"])));
    wait::until(DEADLINE, "a result", || !results.trials().is_empty());
    // A shell that ends and the kernel both send SIGHUP: the second must not kill.
    run.signal(Signal::HUP);
    run.signal(Signal::HUP);
    let ended = run.wait(DEADLINE).expect_code(ExitCode::Cancelled);
    assert!(ended.stderr.contains("SIGHUP"), "{}", ended.stderr);
    assert_nothing_left(&project);
    assert_adds_up(&results, 6);
    let _ended =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(results.count("completed_trials"), 6);
    assert_nothing_left(&project);
}

#[test]
fn hangup_drains_run_in_sandbox() {
    assert_hangup_drains("process");
}

#[test]
fn hangup_drains_run_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_hangup_drains("docker");
}

#[test]
fn hangup_ignored_at_start_stays_ignored() {
    let project = slow_project("process");
    let results = project.results("slow");
    let of_program = project.command(&["run", "job.yaml"]);
    let mut run = project.start(command_below(&project, "nohup", &[], &of_program));
    wait::until(DEADLINE, "a result", || !results.trials().is_empty());
    run.signal(Signal::HUP);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(results.count("completed_trials"), 6);
    assert_nothing_left(&project);
}

#[test]
fn terminal_closed_stops_run() {
    let project = slow_project("process");
    let results = project.results("slow");
    let mut terminal = Terminal::start(&project.command(&["run", "job.yaml"]));
    let mut shown = Vec::new();
    wait::until(DEADLINE, "a result", || {
        shown.extend(terminal.shown());
        !results.trials().is_empty()
    });
    // Progress is drawn in place: the cursor moves.
    assert!(shown.contains(&0x1b), "{}", String::from_utf8_lossy(&shown));
    terminal.close();
    assert_eq!(terminal.wait(DEADLINE), Some(ExitCode::Cancelled.code().into()));
    assert_eq!(results.job()["cancelled"], true);
    assert_adds_up(&results, 6);
    let _ended =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(results.count("completed_trials"), 6);
    assert_nothing_left(&project);
}
