//! The Python client, `clients/python`: its types and style, and its tests, which start the program
//! under test as a server. Adapters are tested with the packages of trainers, under
//! `tests/run --extended`.

mod example;

use std::path::Path;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::{Project, repository};
use rollout_tests::python;

/// Longest duration of all tests of the client on a busy machine with two processors.
const DEADLINE: Duration = Duration::from_secs(1200);

/// Runs a module of Python in the directory of the client, and expects success.
fn run_module(project: &Project, interpreter: &Path, arguments: &[&str]) {
    run_module_with(project, interpreter, arguments, &[]);
}

fn run_module_with(
    project: &Project,
    interpreter: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) {
    let mut command = project.command_of(interpreter, &["-m"]);
    command.args(arguments).current_dir(repository().join("clients/python"));
    command.envs(variables.iter().copied());
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

/// Runs the tests of an adapter with the trainer's own package.
fn test_adapter(adapter: &str) {
    let Some(interpreter) = python::with_trainer(adapter) else { return };
    let file = format!("tests/adapters/test_{adapter}.py");
    let variables = [("ROLLOUT_TEST_ADAPTER", adapter)];
    run_module_with(&project(), &interpreter, &["pytest", &file], &variables);
}

#[test]
fn python_adapter_of_verifiers_works_with_its_package() {
    test_adapter("verifiers");
}

#[test]
fn python_adapter_of_trl_works_with_its_package() {
    test_adapter("trl");
}

#[test]
fn python_adapter_of_agent_lightning_works_with_its_package() {
    test_adapter("agent_lightning");
}
