//! One task or agent per kind of failure: its error type and message, and no effect on other
//! trials.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::engine_proxy::EngineProxy;
use rollout_tests::expected::{ExpectedTrial, ExpectedTrials};
use rollout_tests::ignored::or_ignored_part;
use rollout_tests::leak_check::directory_entries;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use rollout_tests::results::{Results, TrialDirectory};
use rollout_tests::wait;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

#[test]
fn task_errors_have_expected_type_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    let registry = or_ignored_part(DockerEngine::registry(), "a missing image of a registry");
    assert_task_errors("docker", registry.as_deref());
}

#[test]
fn task_errors_have_expected_type_in_sandbox() {
    assert_task_errors("process", None);
}

#[test]
fn agent_errors_have_expected_type_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_agent_errors("docker");
}

#[test]
fn agent_errors_have_expected_type_in_sandbox() {
    assert_agent_errors("process");
}

fn assert_task_errors(provider: &str, registry: Option<&str>) {
    let table = ExpectedTrials::read();
    let needs_registry = |outcome: &ExpectedTrial| {
        outcome.error.as_deref() == Some("environment_image_pull_failed") && registry.is_none()
    };
    let cases: Vec<_> = ExpectedTrials::for_provider(&table.faults, provider)
        .into_iter()
        .filter(|(_, outcome)| !needs_registry(outcome))
        .collect();
    let names: Vec<_> = cases.iter().map(|(name, _)| format!("faults/{name}")).collect();
    let values = [("REGISTRY", registry.unwrap_or_default())];
    let project = project()
        .tasks(names.iter().map(String::as_str), &values)
        .job("faults.yaml", &[("PROVIDER", provider)]);
    let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);

    let results = project.results("faults");
    let trials: Vec<_> =
        cases.iter().map(|(name, outcome)| (results.trial("note", name), *outcome)).collect();
    assert_as_expected(&trials);
    for (trial, _) in &trials {
        // A trial whose agent ran has the agent's note.
        let note = trial.text("logs/agent/note.txt");
        let ran = !trial.result["durations"]["agent_execution_sec"].is_null();
        assert_eq!(note.as_deref(), ran.then_some("was here\n"), "{}", trial.name);
    }
    assert_exit_code_matches(&ended, &results);
    assert_adds_up(&results, cases.len() as u64);
    assert_eq!(results.count("completed_trials"), 1);
    assert_nothing_left(&project);
}

fn assert_agent_errors(provider: &str) {
    let table = ExpectedTrials::read();
    let project =
        project().tasks(["agents/impatient"], &[]).job("agents.yaml", &[("PROVIDER", provider)]);
    let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);

    let results = project.results("agents");
    let cases = ExpectedTrials::for_provider(&table.agents, provider);
    let trials: Vec<_> = cases
        .iter()
        .map(|(agent, outcome)| (results.trial(agent, "impatient"), *outcome))
        .collect();
    assert_as_expected(&trials);
    for (trial, _) in &trials {
        assert_eq!(
            trial.text("logs/agent/note.txt").as_deref(),
            Some("was here\n"),
            "{}",
            trial.name
        );
        assert_eq!(trial.text("logs/agent/execute.txt"), None, "{}", trial.name);
    }
    let failed = results.trial("install-fails", "impatient");
    assert_eq!(failed.text("setup/stderr.txt").as_deref(), Some("installing\n"));
    assert_eq!(results.trial("works", "impatient").reward(), Some(1.0));
    assert_exit_code_matches(&ended, &results);
    assert_nothing_left(&project);
}

#[test]
fn container_not_removable_keeps_reward() {
    let Some(engine) = DockerEngine::available() else { return };
    let project =
        project().tasks(["faults/passes"], &[]).job("faults.yaml", &[("PROVIDER", "docker")]);
    let proxy = EngineProxy::refusing("DELETE ", &project.path().join("docker.sock"));
    let mut command = project.command(&["run", "job.yaml"]);
    command.env("DOCKER_HOST", proxy.host());
    let _ended = project.start(command).wait(DEADLINE);

    let results = project.results("faults");
    let trial = results.trial("note", "passes");
    assert_eq!((trial.reward(), trial.error()), (Some(1.0), Some("environment_teardown_failed")));
    assert!(trial.text("error.txt").is_some());
    assert_eq!((results.count("completed_trials"), results.count("failed_trials")), (1, 0));
    let path = project.path().to_string_lossy().into_owned();
    assert_eq!(engine.containers(&path).len(), 1, "the proxy has refused");

    let _ended =
        project.rollout(&["gc", "--containers"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_nothing_left(&project);
}

#[test]
fn task_deleted_after_planning_still_runs() {
    // Planning stores a task's files, so that later changes do not affect the run.
    let project = project()
        .tasks(["slow/second"], &[])
        .tasks(["faults/passes"], &[])
        .job("faults.yaml", &[("PROVIDER", "process")]);
    // Trials start in the order of the plan: the task that stays comes first.
    let (stays, goes) = (project.path().join("tasks/a"), project.path().join("tasks/b"));
    fs::rename(project.path().join("tasks/second"), &stays).expect("renamed");
    fs::rename(project.path().join("tasks/passes"), &goes).expect("renamed");
    let job = fs::read_to_string(project.path().join("job.yaml")).expect("the job");
    let job = job
        .replace("n_concurrent_trials: 4", "n_concurrent_trials: 1")
        .replace("echo \"was here\"", "sleep 2; echo \"was here\"");
    let project = project.write("job.yaml", &job);

    let run = project.rollout(&["run", "job.yaml"]);
    let results = project.results("faults");
    wait::until(DEADLINE, "the run to begin", || results.path().join("manifest.json").exists());
    fs::remove_dir_all(goes).expect("removed");
    let _ended = run.wait(DEADLINE);
    assert_eq!(results.trial("note", "a").reward(), Some(0.5));
    assert_eq!(results.trial("note", "b").reward(), Some(1.0));
    assert_nothing_left(&project);
}

#[test]
fn agent_whose_sandbox_is_removed_has_no_verdict() {
    // It fails as soon as its files go away.
    let agent =
        "touch /logs/agent/began; while [ -e /logs/agent/began ]; do sleep 0.1; done; exit 3";
    let job = format!(
        "name: removed\nretry: {{max_attempts: 1}}\nenvironment: {{type: process}}\nagents:\n  \
         - name: waits\n    execute: {agent:?}\ndatasets:\n  - path: tasks\n"
    );
    let project = project().tasks(["faults/passes"], &[]).write("job.yaml", &job);
    let run = project.rollout(&["run", "job.yaml"]);
    let sandboxes = project.path().join("jobs/removed/.work/sandboxes");
    let begun = || {
        let mut all = directory_entries(&sandboxes).into_iter();
        all.find(|sandbox| sandbox.join("root/logs/agent/began").exists())
    };
    wait::until(DEADLINE, "the agent to begin", || begun().is_some());
    // Gone at once: a removal of its parts could take longer than the agent lives after the first.
    let gone = project.path().join("gone");
    fs::rename(begun().expect("it waits"), &gone).expect("renamed");
    fs::remove_dir_all(gone).expect("removed");
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Infrastructure);
    let results = project.results("removed");
    let trial = results.trial("waits", "passes");
    let error = &trial.result["error"];
    assert_eq!(error["code"], "environment_lost", "{error:#}");
    assert_eq!((&error["class"], trial.reward()), (&"infrastructure".into(), None), "{error:#}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("the sandbox was removed"), "{error:#}");
    assert_adds_up(&results, 1);
    assert_nothing_left(&project);
}

#[track_caller]
fn assert_as_expected(trials: &[(TrialDirectory, &ExpectedTrial)]) {
    let differences: Vec<_> =
        trials.iter().flat_map(|(trial, outcome)| outcome.differences(trial)).collect();
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Fails unless the exit code is that of infrastructure errors exactly when a trial has one.
#[track_caller]
fn assert_exit_code_matches(ended: &ProgramExit, results: &Results) {
    let is_infrastructure =
        |trial: &TrialDirectory| trial.result["error"]["class"] == "infrastructure";
    let infrastructure = results.trials().iter().any(is_infrastructure);
    let code = if infrastructure { ExitCode::Infrastructure } else { ExitCode::Success };
    assert_eq!(ended.status.code(), Some(i32::from(code.code())), "{}", ended.stderr);
}

/// A project's trials as (name, reward), for comparing runs.
pub(crate) fn rewards(project: &Project, job: &str) -> Vec<(String, Option<f64>)> {
    let trials = project.results(job).trials();
    trials.into_iter().map(|trial| (trial.name.clone(), trial.reward())).collect()
}
