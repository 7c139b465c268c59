//! The Python client, `clients/python`: its types and style, and its tests, which start the program
//! under test as a server.

use std::path::Path;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::{Project, repository};
use rollout_tests::python;

/// Longest duration of all tests of the client on a busy machine with two processors.
const DEADLINE: Duration = Duration::from_secs(1200);

/// Runs a module of Python in the directory of the client, and expects success.
fn run_module(project: &Project, interpreter: &Path, arguments: &[&str]) {
    let mut command = project.command_of(interpreter, &["-m"]);
    command.args(arguments).current_dir(repository().join("clients/python"));
    // Nothing is written beside the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("ROLLOUT_PROGRAM", env!("CARGO_BIN_EXE_rollout-under-test"));
    let ended = project.start(command).wait(DEADLINE);
    let _passed = ended.expect_code(ExitCode::Success);
}

fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}

#[test]
fn python_client_has_checked_types_and_style() {
    let Some(interpreter) = python::with_client_tools() else { return };
    let project = project();
    let cache = project.path().join("mypy").display().to_string();
    run_module(&project, &interpreter, &["mypy", "--cache-dir", &cache, "src", "tests"]);
    run_module(&project, &interpreter, &["ruff", "check", "--no-cache"]);
    run_module(&project, &interpreter, &["ruff", "format", "--check", "--no-cache"]);
}

#[test]
fn python_client_passes_its_tests_against_the_program() {
    let Some(interpreter) = python::with_client_tools() else { return };
    run_module(&project(), &interpreter, &["pytest"]);
}
