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

/// Files of the client's tests that need a server, below `clients/python/tests`. Each group is a test
/// here, so that their servers wait side by side.
mod groups {
    pub(super) const FARMS: &[&str] = &["test_farms.py"];
    pub(super) const EXECUTORS: &[&str] = &["test_executors.py"];
    pub(super) const JOBS: &[&str] = &["test_jobs.py"];
    pub(super) const NETWORK: &[&str] = &["test_network.py"];
    pub(super) const CONTENT: &[&str] = &["test_datasets.py", "test_items.py", "test_results.py"];
    pub(super) const PACKAGE: &[&str] = &["test_package.py"];
    pub(super) const ALL: [&[&str]; 6] = [FARMS, EXECUTORS, JOBS, NETWORK, CONTENT, PACKAGE];
}

/// Runs files of the client's tests.
fn run_group(files: &[&str]) {
    let Some(interpreter) = python::with_client_tools() else { return };
    let files: Vec<_> = files.iter().map(|file| format!("tests/{file}")).collect();
    let mut arguments = vec!["pytest"];
    arguments.extend(files.iter().map(String::as_str));
    run_module(&project(), &interpreter, &arguments);
}

#[test]
fn python_client_of_farms_passes_its_tests_against_the_program() {
    run_group(groups::FARMS);
}

#[test]
fn python_client_of_executors_passes_its_tests_against_the_program() {
    run_group(groups::EXECUTORS);
}

#[test]
fn python_client_of_jobs_passes_its_tests_against_the_program() {
    run_group(groups::JOBS);
}

#[test]
fn python_client_over_failing_networks_passes_its_tests_against_the_program() {
    run_group(groups::NETWORK);
}

#[test]
fn python_client_of_files_and_results_passes_its_tests_against_the_program() {
    run_group(groups::CONTENT);
}

#[test]
fn python_client_package_and_readme_pass_their_tests_against_the_program() {
    run_group(groups::PACKAGE);
}

/// Every other file, new ones included.
#[test]
fn python_client_passes_its_tests_without_server() {
    let Some(interpreter) = python::with_client_tools() else { return };
    let tests = repository().join("clients/python/tests");
    let mut arguments = vec!["pytest".to_owned()];
    for file in groups::ALL.concat() {
        assert!(tests.join(file).exists(), "a group names {file}");
        arguments.push(format!("--ignore=tests/{file}"));
    }
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    run_module(&project(), &interpreter, &arguments);
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
