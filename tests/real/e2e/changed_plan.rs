//! Runs whose next session has other agents, tasks or attempts.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// A project with a task, and a run of it with one attempt of `oracle`.
fn project_with_run(attempts: &str) -> Project {
    let project = project().tasks(["slow/second"], &[]);
    let words = [&words("oracle")[..], &["-k", attempts]].concat();
    let _ended = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
    project
}

fn words(agent: &str) -> [&str; 9] {
    ["run", "-p", "tasks", "-a", agent, "-e", "process", "--name", "x"]
}

/// The results that the status of the run counts as no longer planned.
fn unplanned(project: &Project) -> Value {
    let status = project.rollout(&["status", "jobs/x", "--json"]).wait(DEADLINE);
    let status: Value =
        serde_json::from_str(&status.expect_code(ExitCode::Success).stdout).expect("a document");
    status["counts"]["unplanned"].clone()
}

#[test]
fn agent_without_its_results_in_the_plan_is_refused_until_it_is_accepted() {
    let project = project_with_run("1");
    let results = project.results("x");
    let oracle = || fs::read(results.trial("oracle", "second").directory.join("result.json"));
    let before = oracle().expect("a result");

    let refused = project.rollout(&words("nop")).wait(DEADLINE);
    let refused = refused.expect_code(ExitCode::PlanMismatch);
    for text in [
        "the plan lacks 1 settled trial of jobs/x: oracle/tasks/second__1",
        "agent oracle: no longer planned",
        "agent nop: added",
    ] {
        assert!(refused.stderr.contains(text), "no {text:?} in {}", refused.stderr);
    }
    assert_eq!(unplanned(&project), 0, "nothing was changed");

    let accepted = project.paste(&refused.hinted_command()).wait(DEADLINE);
    let accepted = accepted.expect_code(ExitCode::Success);
    assert!(accepted.stderr.contains("agent oracle: no longer planned"), "{}", accepted.stderr);
    // The directories of trials that are no longer planned stay.
    assert_eq!((results.count("total_trials"), results.trial_count()), (1, 2));
    assert_eq!(unplanned(&project), 1);
    let shown = project.rollout(&["show", "jobs/x"]).wait(DEADLINE).stdout;
    assert!(shown.contains("1 results are kept"), "{shown}");

    // An accepted change is not asked for again, neither by the same words nor by their directory.
    for again in [&words("nop")[..], &["resume", "jobs/x"]] {
        let ended = project.rollout(again).wait(DEADLINE).expect_code(ExitCode::Success);
        assert!(!ended.stderr.contains("the plan has changed"), "{}", ended.stderr);
        assert_eq!(unplanned(&project), 1);
    }

    let both = [&words("nop")[..], &["-a", "oracle"]].concat();
    let ended = project.rollout(&both).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(ended.stderr.contains("agent oracle: added"), "{}", ended.stderr);
    assert_adds_up(&results, 2);
    assert_eq!((unplanned(&project), oracle().expect("a result")), (0.into(), before));
    assert_nothing_left(&project);
}

#[test]
fn hint_of_a_plan_changed_by_an_option_gives_the_option() {
    let project = project_with_run("1");
    let further = ["--timeout-multiplier", "2"];
    let changed = [&words("oracle")[..], &["-k", "1"], &further].concat();
    let refused = project.rollout(&changed).wait(DEADLINE).expect_code(ExitCode::PlanMismatch);
    let hinted = "`rollout retry jobs/x --failed -- --timeout-multiplier 2`";
    assert!(refused.stderr.contains(hinted), "{}", refused.stderr);
    // Other options than those of the run are no further ones.
    let other = [&words("oracle")[..7], &further, &["--name=x", "-k=1"]].concat();
    let refused = project.rollout(&other).wait(DEADLINE).expect_code(ExitCode::PlanMismatch);
    assert!(!refused.stderr.contains("rollout retry"), "{}", refused.stderr);
    // The next session needs the consent of one that did not begin.
    let again = ["resume", "jobs/x", "--", "--accept-changed", further[0], further[1]];
    let refused = project.rollout(&again).wait(DEADLINE).expect_code(ExitCode::PlanMismatch);
    let hinted = "-- --timeout-multiplier 2 --accept-changed`";
    assert!(refused.stderr.contains(hinted), "{}", refused.stderr);
}

#[test]
fn attempts_and_tasks_with_results_are_not_removed_silently() {
    let project = project_with_run("2");
    let fewer = project.rollout(&words("oracle")).wait(DEADLINE);
    let fewer = fewer.expect_code(ExitCode::PlanMismatch);
    assert!(fewer.stderr.contains("attempts 2 to 2: no longer planned"), "{}", fewer.stderr);

    fs::rename(project.path().join("tasks/second"), project.path().join("tasks/renamed"))
        .expect("movable");
    let renamed = [&words("oracle")[..], &["-k", "2"]].concat();
    let refused = project.rollout(&renamed).wait(DEADLINE).expect_code(ExitCode::PlanMismatch);
    assert!(refused.stderr.contains("task tasks/second: no longer planned"), "{}", refused.stderr);
    let accepted = [&renamed[..], &["--accept-changed"]].concat();
    let _ended = project.rollout(&accepted).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(unplanned(&project), 2);
    let results = project.results("x");
    assert_eq!((results.count("total_trials"), results.trial_count()), (2, 4));
}
