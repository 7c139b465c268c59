//! `--fail-under`: exit code and headline of runs with failed trials, and with errors beside a reward.

use rollout_protocol::exit::ExitCode;
use serde_json::json;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

#[test]
fn exit_code_of_fail_under_counts_failed_trials() {
    let project = project()
        .tasks(["faults/passes", "faults/verifier-failed", "faults/reward-missing"], &[])
        .job("faults.yaml", &[("PROVIDER", "process")]);
    for (least, code) in
        [("0.33", ExitCode::Success), ("0.34", ExitCode::FailUnder), ("1.0", ExitCode::FailUnder)]
    {
        let run = project.rollout(&["run", "job.yaml", "--fail-under", least]);
        let ended = run.wait(DEADLINE).expect_code(code);
        let shown = ended.stdout.contains("passed 1 of 3 (33.3%), mean reward 0.3333\n")
            && ended.stdout.contains("of the 1 completed: 100% passed, mean reward 1\n");
        assert!(shown, "{}", ended.stdout);
    }
    let results = project.results("faults");
    assert_adds_up(&results, 3);
    let job = results.job();
    assert_eq!((&job["pass_rate"], &job["scored"]["trials"]), (&1.0.into(), &3.into()), "{job:#}");
    assert_nothing_left(&project);
}

#[test]
fn fail_under_that_failed_task_could_change_is_undecided() {
    let project = project()
        .tasks(["faults/passes", "faults/no-tests"], &[])
        .job("faults.yaml", &[("PROVIDER", "process")]);
    for (least, code) in [("0.5", ExitCode::Success), ("0.51", ExitCode::Infrastructure)] {
        let run = project.rollout(&["run", "job.yaml", "--fail-under", least]);
        let _ended = run.wait(DEADLINE).expect_code(code);
    }
    let results = project.results("faults");
    assert_adds_up(&results, 2);
    let job = results.job();
    assert_eq!(
        (&job["failures"]["task"], &job["task_failures_before_agent"]),
        (&1.into(), &1.into())
    );
    let scored = json!({
        "trials": 1, "passed": 1, "pass_rate": 1.0, "pass_rate_low": 0.5, "pass_rate_high": 1.0,
        "mean_reward": 1.0,
    });
    assert_eq!(job["scored"], scored);
}

#[test]
fn run_without_scored_trial_reaches_no_minimum() {
    let project = project().tasks(["faults/passes"], &[]);
    let project = project.job("faults.yaml", &[("PROVIDER", "process")]);
    let job = std::fs::read_to_string(project.path().join("job.yaml")).expect("the job");
    let project = project.write("job.yaml", &format!("{job}verifier: {{disable: true}}\n"));
    for (options, code) in
        [(&["--fail-under", "0"][..], ExitCode::NothingMeasured), (&[], ExitCode::Success)]
    {
        let words = [&["run", "job.yaml"], options].concat();
        let _ended = project.rollout(&words).wait(DEADLINE).expect_code(code);
    }
    assert_eq!(project.results("faults").count("unverified_trials"), 1);
}

#[test]
fn collect_hook_that_agent_breaks_is_named_beside_a_reward_that_counts() {
    let project = project();
    project.write_small_task("#!/bin/bash\necho 1 >/logs/verifier/reward.txt\n");
    project.write_file(
        "tasks/t/task.toml",
        "version = '1.0'\nformat = 'harbor'\n[[verifier.collect]]\n\
         command = 'test ! -e /logs/agent/broken'\n",
    );
    project.write_file(
        "job.yaml",
        "name: hooks\n\
         environment: {type: process, provider_config: {ignore_dockerfile: true}}\n\
         agents:\n  - {name: careful, execute: 'true'}\n  \
         - {name: breaker, execute: 'touch /logs/agent/broken'}\n\
         datasets: [{path: tasks}]\n",
    );
    let run = project.rollout(&["run", "job.yaml", "--fail-under", "1"]);
    let ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(ended.stdout.contains("2 completed (1 with an error)"), "{}", ended.stdout);
    let results = project.results("hooks");
    assert_adds_up(&results, 2);
    let job = results.job();
    assert_eq!(job["completed_with_error_trials"], 1, "{job:#}");
    assert_eq!((&job["scored"]["trials"], &job["scored"]["passed"]), (&2.into(), &2.into()));
    let trial = results.trial("breaker", "t");
    let error = &trial.result["error"];
    assert_eq!((&error["code"], &error["class"]), (&"collection_failed".into(), &"task".into()));
    let status = project.rollout(&["status", "jobs/hooks"]);
    let shown = status.wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    assert!(shown.contains("1 verifier_failed"), "{shown}");
}
