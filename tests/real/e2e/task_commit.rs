//! The git commit of a task in its results.

use std::process::Command;

use crate::e2e::{DEADLINE, assert_adds_up, project};

#[test]
fn task_commit_is_in_every_result() {
    let project = project()
        .tasks(["faults/passes", "faults/no-tests", "faults/verifier-failed"], &[])
        .job("faults.yaml", &[("PROVIDER", "process")])
        .commit();
    let mut git = Command::new("git");
    let head = git.args(["rev-parse", "HEAD"]).current_dir(project.path()).output();
    let head = String::from_utf8(head.expect("git runs").stdout).expect("text");
    let _ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let results = project.results("faults");
    assert_adds_up(&results, 3);
    for trial in results.trials() {
        assert_eq!(trial.result["task_git_commit_id"], head.trim(), "{}", trial.name);
    }
    let untested = results.trial("note", "no-tests");
    assert!(untested.result["record"].is_null(), "it never had an environment");
}
