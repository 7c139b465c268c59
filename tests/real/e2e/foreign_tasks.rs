//! Unchanged tasks of other benchmarks: their format is guessed, and those that cannot run here do
//! not block the others.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::{self, DockerEngine};
use rollout_tests::ignored::or_ignored;
use rollout_tests::project::{Project, copy, fixtures};
use rollout_tests::results::json;
use serde_json::{Value, json as value};

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// A project with tasks of `tests/fixtures/foreign`.
fn foreign_project(tasks: &[&str]) -> Project {
    let project = project();
    for task in tasks {
        let from = fixtures().join("foreign").join(task);
        copy(&from, &project.path().join("tasks").join(task), &[]);
    }
    project
}

fn datasets(result: &Value) -> &Value {
    &result["datasets"][0]
}

#[test]
fn foreign_task_runs_unchanged_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    if or_ignored(docker::find_compose_program()).is_none() {
        return;
    }
    let project = foreign_project(&["isolated", "plain", "allowlist", "windows"]);
    let arguments = ["run", "-p", "tasks", "-a", "oracle", "--name", "j", "-n", "2"];
    let ended = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    let _said = ended
        .expect_stderr("dataset tasks: 4 tasks, format 3 harbor and 1 rollout (2 guessed; ")
        .expect_stderr("; 1 unsupported by the environment: windows");
    let results = project.results("j");
    assert_adds_up(&results, 4);
    let isolated = results.trial("oracle", "isolated");
    assert_eq!(isolated.reward(), Some(1.0), "{:#}", isolated.result);
    assert_eq!(isolated.result["rewards"], value!({"reward": 1.0, "isolated": 1.0}));
    assert_eq!(isolated.result["task"]["format"], "harbor");
    assert_eq!(isolated.result["task"]["metadata"]["difficulty"], "hard");
    assert_eq!(results.trial("oracle", "plain").reward(), Some(1.0));
    assert_eq!(results.trial("oracle", "allowlist").reward(), Some(1.0));
    let unsupported = results.trial("oracle", "windows");
    assert_eq!(unsupported.result["error"]["code"], "unsupported_by_environment");
    assert_eq!(unsupported.result["task"]["name"], "tests/windows");
    let job = results.job();
    assert_eq!(datasets(&job)["formats"], value!({"harbor": 3, "rollout": 1}));
    assert_nothing_left(&project);
}

#[test]
fn foreign_task_unsupported_settles_and_others_run() {
    let project = foreign_project(&["isolated", "plain", "windows"]);
    let arguments = ["run", "-p", "tasks", "-a", "oracle", "--name", "j", "-e", "process"];
    let strict = [&arguments[..], &["--strict"]].concat();
    let refused = project.rollout(&strict).wait(DEADLINE).expect_code(ExitCode::Config);
    let _said =
        refused.expect_stderr("environment.os").expect_stderr("services beside the environment");
    assert!(!project.path().join("jobs").exists(), "something was started");

    let ended = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    let _said = ended.expect_stderr("; 2 unsupported by the environment: isolated, windows");
    let results = project.results("j");
    assert_adds_up(&results, 3);
    assert_eq!(results.trial("oracle", "plain").reward(), Some(1.0));
    for (task, reason) in [("windows", "Windows, which"), ("isolated", "services beside")] {
        let trial = results.trial("oracle", task);
        assert_eq!(trial.error(), Some("task_invalid"));
        let error = &trial.result["error"];
        let found = (&error["code"], &error["class"]);
        assert_eq!(found, (&value!("unsupported_by_environment"), &value!("task")));
        assert!(trial.message().contains(reason), "{}", trial.message());
    }
    assert_nothing_left(&project);
}

#[test]
fn resume_reads_tasks_in_planned_formats() {
    let project = foreign_project(&["plain"]);
    let arguments = ["run", "-p", "tasks", "-a", "oracle", "--name", "j", "-e", "process"];
    let _first = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    let plan = project.path().join("jobs/j/plan.json");
    let format = |plan: &Value| plan["tasks"][0]["format"].clone();
    assert_eq!(format(&json(&plan).expect("a plan")), "rollout");
    // Guessed again, the task would have the other format.
    fs::write(project.path().join("tasks/plain/.harborignore"), "# nothing\n").expect("written");
    let more = [&arguments[..], &["-k", "2"]].concat();
    let resumed = project.rollout(&more).wait(DEADLINE).expect_code(ExitCode::Success);
    let _said = resumed.expect_stderr("format rollout");
    assert_adds_up(&project.results("j"), 2);

    // A plan of a version that recorded no format: keys alone decided.
    let mut document = json(&plan).expect("a plan");
    assert!(document["tasks"][0].as_object_mut().expect("a task").remove("format").is_some());
    assert!(document.as_object_mut().expect("a plan").remove("content").is_some());
    fs::write(&plan, document.to_string()).expect("written");
    let more = [&arguments[..], &["-k", "3"]].concat();
    let _resumed = project.rollout(&more).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(&project.results("j"), 3);

    let other = [&arguments[..], &["-k", "3", "--format", "harbor"]].concat();
    let refused = project.rollout(&other).wait(DEADLINE).expect_code(ExitCode::PlanMismatch);
    let _said = refused.expect_stderr("rules changed");
    assert_nothing_left(&project);
}

#[test]
fn env_file_variables_reach_tasks_that_ask() {
    let project = foreign_project(&["plain"])
        .write("vars.env", "# of the test\nexport WORD='from the file'\n")
        .write(
            "tasks/plain/tests/test.sh",
            "[ \"$GIVEN\" = 'from the file' ] && echo 1 > /logs/verifier/reward.txt\n",
        );
    let file = project.path().join("tasks/plain/task.toml");
    let text = fs::read_to_string(&file).expect("a task");
    fs::write(&file, format!("{text}env = {{ GIVEN = \"${{WORD}}\" }}\n")).expect("written");
    let arguments = ["run", "-p", "tasks", "-a", "oracle", "--name", "j", "-e", "process"];
    let refused = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Config);
    let _said = refused.expect_stderr("or pass `-y`");
    let trusting = [&arguments[..], &["-y"]].concat();
    let refused = project.rollout(&trusting).wait(DEADLINE).expect_code(ExitCode::Config);
    let _said = refused.expect_stderr("which is not set in the environment");
    let given = [&arguments[..], &["--env-file", "vars.env"]].concat();
    let _ended = project.rollout(&given).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(project.results("j").trial("oracle", "plain").reward(), Some(1.0));
    let words = ["run", "-p", "tasks", "-a", "oracle", "--name", "k", "-e", "process", "-y"];
    let mut exported = project.command(&words);
    exported.env("WORD", "from the file");
    let _ended = project.start(exported).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(project.results("k").trial("oracle", "plain").reward(), Some(1.0));
    let kept = fs::read_to_string(project.path().join("jobs/j/plan.json")).expect("a plan");
    assert!(!kept.contains("from the file"));
    assert_nothing_left(&project);
}
