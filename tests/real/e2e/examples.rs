//! The examples, run as the README says.

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::{Project, copy, repository};

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// A git repository with a copy of the examples.
pub(crate) fn with_examples() -> Project {
    let project = project();
    copy(&repository().join("examples"), &project.path().join("examples"), &[]);
    project.commit()
}

#[test]
fn quickstart_example_runs_in_sandbox() {
    let project = with_examples();
    let job = "examples/quickstart/job.yaml";
    let ended = project.rollout(&["run", job]).wait(DEADLINE).expect_code(ExitCode::Success);
    let results = project.results("quickstart");
    assert_adds_up(&results, 4);
    let got = results.job();
    assert_eq!((&got["mean_reward"], &got["pass_rate"]), (&1.0.into(), &1.0.into()), "{got:#}");
    assert!(results.path().join("config.json").exists());
    for text in ["oracle", "tidy-names"] {
        assert!(format!("{}{}", ended.stdout, ended.stderr).contains(text), "{ended:?}");
    }
    let trial = results.trial("oracle", "count-errors");
    assert_eq!(trial.text("logs/verifier/reward.txt").as_deref(), Some("1\n"));
    // The README's first look at an output shows one.
    let logs = project.rollout(&["logs", "jobs/quickstart", "merge-config"]).wait(DEADLINE);
    let said = "==> logs/verifier/stdout.txt <==\nthe merged file is the expected one\n";
    assert_eq!(logs.expect_code(ExitCode::Success).stdout, said);

    // The short form means the same; every trial has settled already.
    let _ended = project.rollout(&[job]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(results.job()["results"], got["results"]);
    assert_nothing_left(&project);
}

#[test]
fn docker_example_runs_in_containers() {
    let Some(_engine) = DockerEngine::available() else { return };
    let project = with_examples();
    let job = "examples/docker/job.yaml";
    for name in ["docker", "again"] {
        let run = project.rollout(&["run", job, "--name", name]);
        let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
        let results = project.results(name);
        assert_adds_up(&results, 4);
        let reward = |agent, task| results.trial(agent, task).reward();
        for task in ["greeting", "prime-sum"] {
            assert_eq!(reward("oracle", task), Some(1.0), "{task}");
        }
        assert_eq!(reward("hasty", "greeting"), Some(1.0));
        assert_eq!(reward("hasty", "prime-sum"), Some(0.0));
        assert_eq!(results.job()["agents"]["hasty"]["mean_reward"], 0.5);
        let thoughts = results.trial("hasty", "greeting").text("logs/agent/thoughts.txt");
        assert!(thoughts.expect("collected").contains("Hello, world!"));
        assert_nothing_left(&project);
    }
}

#[test]
fn dry_run_starts_nothing() {
    let project = with_examples();
    let arguments = ["run", "examples/quickstart/job.yaml", "--dry-run", "--json"];
    let ended = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    let plan: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one JSON document");
    assert!(plan.to_string().contains("merge-config"), "{plan:#}");
    assert!(!project.path().join("jobs").exists());
}

#[test]
fn verifier_disabled_leaves_trials_unverified() {
    let project = with_examples();
    let job = std::fs::read_to_string(project.path().join("examples/quickstart/job.yaml"));
    let job = job.expect("the job") + "verifier:\n  disable: true\n";
    let project = project.write("examples/quickstart/job.yaml", &job);
    let run = project.rollout(&["run", "examples/quickstart/job.yaml"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let results = project.results("quickstart");
    assert_adds_up(&results, 4);
    assert_eq!(results.count("unverified_trials"), 4);
    assert!(results.job()["mean_reward"].is_null());
}

#[test]
fn install_only_runs_no_attempt_and_no_test() {
    let project = with_examples();
    let run = project.rollout(&["run", "examples/quickstart/job.yaml", "--install-only"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let results = project.results("quickstart");
    assert_adds_up(&results, 4);
    assert_eq!(results.count("unverified_trials"), 4);
    for trial in results.trials() {
        let outputs = trial.result["outputs"].as_array().into_iter().flatten();
        let mut paths = outputs.filter_map(|output| output["path"].as_str());
        let attempted = paths.find(|path| path.starts_with("command/"));
        assert_eq!(attempted, None, "{}: an attempt ran", trial.name);
        assert_eq!(trial.text("logs/verifier/reward.txt"), None, "{}: a test ran", trial.name);
    }
    let config = std::fs::read_to_string(project.path().join("jobs/quickstart/config.json"));
    assert!(config.expect("a document").contains("\"install_only\""));
}
