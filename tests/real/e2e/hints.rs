//! Hints that name a command: run as printed, each does what it says.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::net::free_port;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use rollout_tests::results::Results;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::e2e::retry::with_two_tasks;
use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// Number of trials.
const TRIALS: u64 = 4;

/// Command lines of runs that come from the clock, from the job file, and from the command line.
const STARTS: [&[&str]; 3] = [
    &["run", "unnamed.yaml"],
    &["run", "named.yaml"],
    &["run", "unnamed.yaml", "--name", "chosen"],
];

/// A project whose agent needs a second, and in half of the trials a listener on a port.
fn project_with_jobs(port: u16) -> Project {
    let job = format!(
        "n_attempts: 2\nn_concurrent_trials: 1\nenvironment: {{type: process}}\nagents:\n  - name: \
         a\n    execute: |\n      sleep 1\n      grep -q alone \"$ROLLOUT_TASK_INSTRUCTION\" && exit \
         0\n      exec 3<>/dev/tcp/127.0.0.1/{port}\ndatasets:\n  - path: tasks\n"
    );
    let project = with_two_tasks(project());
    project.write("unnamed.yaml", &job).write("named.yaml", &format!("name: named\n{job}"))
}

/// The results of the only run.
#[track_caller]
fn only_run(project: &Project) -> Results {
    match project.runs("jobs").as_slice() {
        [run] => project.results(run),
        others => panic!("expected one run, found {others:?}"),
    }
}

/// Sends a signal to a run when it has a result.
fn ended_early(project: &Project, words: &[&str], signal: Signal) -> ProgramExit {
    let mut running = project.rollout(words);
    let has_result = || {
        project.runs("jobs").first().is_some_and(|run| !project.results(run).trials().is_empty())
    };
    wait::until(DEADLINE, "a result", has_result);
    running.signal(signal);
    running.wait(DEADLINE)
}

/// The command in the row `resume` of the status of a run, printed in a directory.
#[track_caller]
fn resume_in_status(project: &Project, run: &Results, current: &Path) -> String {
    let run_dir = run.path().to_str().expect("text");
    let mut command = project.command(&["status", run_dir]);
    command.current_dir(current);
    let status = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    let row = status.lines().find_map(|line| line.strip_prefix("resume "));
    row.unwrap_or_else(|| panic!("no way to resume in:\n{status}")).trim().to_owned()
}

#[test]
fn hint_of_stopped_run_resumes_that_run() {
    for words in STARTS {
        let port = free_port();
        let project = project_with_jobs(port);
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
        let stopped = ended_early(&project, words, Signal::INT).expect_code(ExitCode::Cancelled);
        let run = only_run(&project);
        let _ended =
            project.paste(&stopped.hinted_command()).wait(DEADLINE).expect_code(ExitCode::Success);
        assert_eq!(only_run(&project).path(), run.path(), "{words:?}");
        assert_adds_up(&run, TRIALS);
        assert_eq!(run.count("completed_trials"), TRIALS, "{words:?}");
        assert_nothing_left(&project);
    }
}

#[test]
fn hint_of_stopped_run_without_job_file_resumes_that_run() {
    let project = project().tasks(["slow/second"], &[]);
    let words = ["run", "-p", "tasks", "-a", "oracle", "-e", "process", "-k", "6", "-n", "1"];
    let stopped = ended_early(&project, &words, Signal::INT).expect_code(ExitCode::Cancelled);
    let run = only_run(&project);
    let _ended =
        project.paste(&stopped.hinted_command()).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(only_run(&project).path(), run.path());
    assert_adds_up(&run, 6);
    assert_eq!(run.count("completed_trials"), 6);
    assert_nothing_left(&project);
}

#[test]
fn hint_of_run_with_variable_takes_its_value_from_the_shell() {
    let job = "n_attempts: 2\nn_concurrent_trials: 1\nenvironment: {type: process}\nagents:\n  - \
               name: a\n    execute: |\n      sleep 1\n      test \"$A\" = 'x y'\ndatasets:\n  - \
               path: tasks\n";
    let project = with_two_tasks(project()).write("variable.yaml", job);
    let words = ["run", "variable.yaml", "--agent-env", "A=x y"];
    let stopped = ended_early(&project, &words, Signal::INT).expect_code(ExitCode::Cancelled);
    let stopped = stopped.expect_stderr("set A in the shell first");
    let (run, hinted) = (only_run(&project), stopped.hinted_command());
    let in_status = resume_in_status(&project, &run, project.path());
    for command in [&hinted, &in_status] {
        assert!(command.ends_with(r#" -- --agent-env "A=${A:?}""#), "{command}");
    }
    // Without the variable, the shell says which one it is, and nothing runs.
    let settled = run.trials().len();
    let unset = project.paste(&hinted).wait(DEADLINE);
    assert!(unset.stderr.contains("A: parameter"), "{}", unset.stderr);
    assert_eq!(run.trials().len(), settled);
    let set = format!("export A='x y'\n{in_status}");
    let _ended = project.paste(&set).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(only_run(&project).path(), run.path());
    assert_adds_up(&run, TRIALS);
    assert_eq!(run.count("completed_trials"), TRIALS);
    assert_nothing_left(&project);
}

#[test]
fn status_of_killed_run_names_command_that_resumes_it_from_any_directory() {
    for (words, elsewhere) in STARTS.into_iter().zip([true, false, true]) {
        let port = free_port();
        let project = project_with_jobs(port);
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
        let _killed = ended_early(&project, words, Signal::KILL);
        let run = only_run(&project);
        let home = project.path().join("home");
        let current = if elsewhere { home.as_path() } else { project.path() };
        let command = resume_in_status(&project, &run, current);
        assert_eq!(command.starts_with("cd "), elsewhere, "{command}");
        // In another directory the program says where to run it.
        let mut misplaced = project.command(&["resume", run.path().to_str().expect("text")]);
        misplaced.current_dir(&home);
        let misplaced = project.start(misplaced).wait(DEADLINE).expect_code(ExitCode::Usage);
        let hinted = misplaced.hinted_command();
        assert!(hinted.starts_with("cd "), "{hinted}");
        let _ended = project.paste(&command).wait(DEADLINE).expect_code(ExitCode::Success);
        assert_eq!(only_run(&project).path(), run.path(), "{words:?}");
        assert_eq!(run.count("completed_trials"), TRIALS, "{words:?}");
        let _again = project.paste(&hinted).wait(DEADLINE).expect_code(ExitCode::Success);
        assert_eq!(only_run(&project).path(), run.path(), "{words:?}");
        assert_nothing_left(&project);
    }
}

#[test]
fn hint_of_run_with_failures_retries_them_in_that_run() {
    for words in STARTS {
        let port = free_port();
        let project = project_with_jobs(port);
        let failed = project.rollout(words).wait(DEADLINE);
        let run = only_run(&project);
        assert_eq!(run.count("failed_trials"), TRIALS / 2, "{words:?}");
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
        let retry = failed.hinted_command();
        assert!(retry.contains("--failed"), "{retry}");
        let _ended = project.paste(&retry).wait(DEADLINE).expect_code(ExitCode::Success);
        assert_eq!(only_run(&project).path(), run.path(), "{words:?}");
        assert_eq!(run.count("completed_trials"), TRIALS, "{words:?}");
        assert_nothing_left(&project);
    }
}

#[test]
fn resume_of_moved_run_continues_it_where_it_is() {
    let port = free_port();
    let project = project_with_jobs(port);
    let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
    let _killed = ended_early(&project, STARTS[1], Signal::KILL);
    let moved = project.path().join("jobs/renamed");
    std::fs::rename(project.results("named").path(), &moved).expect("movable");
    let _ended =
        project.rollout(&["resume", "jobs/renamed"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(project.runs("jobs"), ["renamed"]);
    assert_eq!(project.results("renamed").count("completed_trials"), TRIALS);
    assert_nothing_left(&project);
}

#[test]
fn option_of_session_replaces_that_of_the_run_and_is_not_kept() {
    let port = free_port();
    let project = project_with_jobs(port);
    let words = ["run", "unnamed.yaml", "--fail-under", "1", "-n", "2"];
    let _failed = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::FailUnder);
    let run = only_run(&project);
    let run_dir = run.path().to_str().expect("text");
    let lower = ["resume", run_dir, "--", "--fail-under", "0.5", "-n", "1"];
    let _ended = project.rollout(&lower).wait(DEADLINE).expect_code(ExitCode::Success);
    let same = project.rollout(&["resume", run_dir]).wait(DEADLINE);
    let _failed = same.expect_code(ExitCode::FailUnder);
    assert_eq!(only_run(&project).path(), run.path());
}
