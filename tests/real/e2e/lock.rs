//! The lock of a run directory: a second process, and takeovers.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::journal_replay::assert_follows_from_journal;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

fn slow_project() -> Project {
    let values = [("PROVIDER", "process"), ("ATTEMPTS", "24")];
    project().tasks(["slow/second"], &[]).job("slow.yaml", &values)
}

#[test]
fn lock_held_refuses_second_process() {
    let project = slow_project();
    let results = project.results("slow");
    let first = project.rollout(&["run", "job.yaml"]);
    wait::until(DEADLINE, "a result", || !results.trials().is_empty());
    for arguments in [&["run", "job.yaml"][..], &["run", "job.yaml", "--lock-stale-seconds", "60"]]
    {
        let second = project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::LockHeld);
        let _said = second.expect_stderr(&format!("process {} on ", first.pid()));
    }
    let _ended = first.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(&results, 24);
    assert!(!results.path().join("run.lock.json").exists());
    assert_nothing_left(&project);
}

#[test]
fn lock_forced_takeover_stops_resumed_owner() {
    assert_takeover(&["run", "job.yaml", "--force"], &["(--force)"]);
}

#[test]
fn lock_stale_takeover_stops_resumed_owner() {
    let arguments = ["run", "job.yaml", "--lock-stale-seconds", "6"];
    let told = ["waiting for the owner of the run, process ", "which stopped sending heartbeats"];
    assert_takeover(&arguments, &told);
}

fn assert_takeover(arguments: &[&str], told: &[&str]) {
    let project = slow_project();
    let results = project.results("slow");
    let mut first = project.rollout(&["run", "job.yaml"]);
    wait::until(DEADLINE, "a result", || !results.trials().is_empty());
    first.signal(Signal::STOP);
    let mut second = project.rollout(arguments);
    let took_over = || second.stderr().contains("took over the run");
    wait::until(DEADLINE, "the takeover", took_over);
    first.signal(Signal::CONT);
    let woken = first.wait(Duration::from_secs(60)).expect_code(ExitCode::LockLost);
    let _said = woken.expect_stderr(&format!("process {} on ", second.pid()));
    assert!(!second.has_ended(), "{}", second.stderr());
    let ended = second.wait(DEADLINE).expect_code(ExitCode::Success);
    for text in told {
        assert!(ended.stderr.contains(text), "{text}: {}", ended.stderr);
    }
    assert_adds_up(&results, 24);
    assert_eq!(results.count("completed_trials"), 24);
    assert_follows_from_journal(results.path());
    for left in [".work", ".tmp", "run.lock.json"] {
        assert!(!results.path().join(left).exists(), "{left} is left");
    }
    assert_nothing_left(&project);
}
