//! Analysis tables of real runs, also read from Python.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::{Project, repository};
use rollout_tests::python;
use rollout_tests::results::Results;
use rustix::process::Signal;

use crate::e2e::examples::with_examples;
use crate::e2e::{DEADLINE, assert_nothing_left, project};

/// Two agents on four tasks, twice: the second agent solves nothing, and fails at one task.
const JOB: &str = r#"
name: two
n_attempts: 2
n_concurrent_trials: 4
environment:
  type: process
agents:
  - name: oracle
  - name: idle
    execute: |
      ! grep -qi slug "$ROLLOUT_TASK_INSTRUCTION"
datasets:
  - path: tasks
"#;

const FILE: &str = "examples/quickstart/two.yaml";

/// A project whose job has run without trial directories.
fn finished_project() -> Project {
    let project = with_examples().write(FILE, JOB);
    let run = project.rollout(&["run", FILE, "--materialize", "none"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    project
}

/// The content of every file of a directory.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries =
        fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let content = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, fs::read(entry.path()).expect("a file"))
    };
    entries.map(|entry| content(entry.expect("an entry"))).collect()
}

#[test]
fn tables_do_not_depend_on_materialization_or_blobs() {
    let project = finished_project();
    let tables = project.results("two").path().join("tables");
    let written = contents(&tables);
    assert_eq!(written.len(), 16, "{:?}", written.keys());
    let lines = |name: &str| String::from_utf8_lossy(&written[name]).lines().count();
    assert_eq!((lines("trials.jsonl"), lines("tries.jsonl")), (16, 16));
    assert_eq!((lines("agent_summary.jsonl"), lines("comparisons.jsonl")), (2, 1));

    // The same run, now with a directory for each trial.
    fs::write(tables.join("trials.jsonl"), "damaged").expect("written");
    let run = project.rollout(&["run", FILE, "--materialize", "full"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(project.results("two").trial_count(), 16);
    assert_eq!(contents(&tables), written);

    fs::rename(project.path().join("jobs/.rollout/blobs"), project.path().join("away"))
        .expect("movable");
    let export = ["export", "jobs/two", "--format", "tables", "--out", "new/tables"];
    let ended = project.rollout(&export).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(ended.stdout, "new/tables\n");
    assert_eq!(contents(&project.path().join("new/tables")), written);
    assert_nothing_left(&project);
}

#[test]
fn export_of_tables_over_files_or_from_store_is_refused() {
    let project = finished_project().write("full/mine", "mine");
    let export = ["export", "jobs/two", "--format", "tables"];
    let refused = |more: &[&str]| {
        let arguments = [&export[..], more].concat();
        project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Usage)
    };
    let _ended = refused(&["--out", "full"]).expect_stderr("full already exists");
    let _ended = refused(&["--out", "new", "--store", "jobs/.rollout/blobs"])
        .expect_stderr("`--store` cannot be used");
    let _ended = refused(&[]).expect_stderr("--out");
    assert_eq!(contents(&project.path().join("full")).len(), 1);
    assert!(!project.path().join("new").exists());
}

#[test]
fn tables_of_interrupted_run_are_written_when_it_is_complete() {
    let values = [("PROVIDER", "process"), ("ATTEMPTS", "10")];
    let project = project().tasks(["slow/second"], &[]).job("slow.yaml", &values);
    let results = project.results("slow");
    let mut run = project.rollout(&["run", "job.yaml"]);
    rollout_tests::wait::until(DEADLINE, "a result", || !results.trials().is_empty());
    run.signal(Signal::INT);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Cancelled);
    assert!(!results.path().join("tables").exists());
    let settled = results.trial_count();
    let export = ["export", "jobs/slow", "--format", "tables", "--out", "part"];
    let _ended = project.rollout(&export).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(lines(&project.path().join("part/trials.jsonl")), settled);

    let run = project.rollout(&["run", "job.yaml"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(lines(&results.path().join("tables/trials.jsonl")), 10);
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).expect("a file").lines().count()
}

/// Runs Python in the project.
fn python(project: &Project, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(python::with_polars()?);
    command.args(arguments).current_dir(project.path());
    let output = command.output().expect("Python runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn polars_reads_tables_with_figures_of_result() {
    let project = finished_project();
    let script = repository().join("tests/real/e2e/tables.py");
    let script = script.to_str().expect("text");
    let Some(printed) = python(&project, &[script, "jobs/two"]) else { return };
    assert_eq!(printed, "2 agents, 16 trials\n");
}

/// The blocks of a document in a language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join(document)).expect("the document");
    let start = format!("```{language}\n");
    let rest = text.split(&start).skip(1);
    rest.map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn python_lines_of_documents_print_agents() {
    let project = with_examples();
    let run = project.rollout(&["run", "examples/quickstart/job.yaml"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    for document in ["README.md", "docs/results.md"] {
        // Lines with the Python client are run by the tests of the client.
        let mut blocks = blocks(document, "python");
        blocks.retain(|block| block.contains("polars"));
        assert!(!blocks.is_empty(), "{document}");
        for block in blocks {
            let Some(printed) = python(&project, &["-c", &block]) else { return };
            assert!(printed.contains("oracle"), "{document}: {block}\n{printed}");
        }
    }
    let results = Results::new(project.path().join("jobs/quickstart"));
    assert_eq!(results.count("completed_trials"), 4);
}
