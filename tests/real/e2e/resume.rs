//! Resume after `kill -9` of the whole program.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::journal_replay::assert_follows_from_journal;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::e2e::faults::rewards;
use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// Time from each start to the kill: before the first trial, during it, after some trials.
const KILL_DELAYS_MS: &[u64] = &[40, 900, 2300, 400, 1500];

#[test]
fn resume_after_kill_reruns_nothing_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_resumes_after_kills("docker");
}

#[test]
fn resume_after_kill_reruns_nothing_in_sandbox() {
    assert_resumes_after_kills("process");
}

fn assert_resumes_after_kills(provider: &str) {
    let values = [("PROVIDER", provider), ("ATTEMPTS", "8")];
    let project = project().tasks(["slow/second"], &[]).job("slow.yaml", &values);
    let results = project.results("slow");
    for moment in KILL_DELAYS_MS {
        let mut run = project.rollout(&["run", "job.yaml"]);
        let settled = results.trials();
        if wait::holds_within(Duration::from_millis(*moment), || run.has_ended()) {
            break;
        }
        run.signal(Signal::KILL);
        let ended = run.wait(DEADLINE);
        assert_eq!(ended.status.code(), None, "killed by the test, not ended: {}", ended.stderr);
        for trial in settled {
            let now = results.trials().into_iter().find(|now| now.name == trial.name);
            assert_eq!(now.map(|now| now.result), Some(trial.result), "{} was settled", trial.name);
        }
    }
    let _ended =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(&results, 8);
    assert_eq!(results.count("completed_trials"), 8);
    let rewards = rewards(&project, "slow");
    assert!(rewards.len() == 8 && rewards.iter().all(|(_, r)| *r == Some(0.5)), "{rewards:?}");
    assert_nothing_left(&project);
    assert_follows_from_journal(results.path());
}
