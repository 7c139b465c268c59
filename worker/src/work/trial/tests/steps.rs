//! Tasks of several steps.

use std::collections::BTreeMap;

use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::blob::MediaType;
use rollout_protocol::error::ErrorType;
use rollout_protocol::record::{ItemOutcome, Rewards, TrialRecord};
use rollout_protocol::spec::task::{AfterAgentError, Healthcheck, StepStrategy};
use rollout_protocol::wire::control::StopLevel;

use super::super::testing::TrialFixture;
use super::artifacts::{artifact, kept};
use super::{archive, error, error_summary, log_names, output, outputs, run};
use crate::executor::{FileRole, Finished};

fn reward(number: f64) -> String {
    format!("echo {number} > /logs/verifier/reward.txt")
}

/// Steps whose tests give these rewards.
async fn rig(rewards: &[f64]) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    let names = ["one", "two", "three"];
    let tests: Vec<String> = rewards.iter().map(|number| reward(*number)).collect();
    let steps: Vec<_> =
        names.iter().zip(&tests).map(|(n, t)| (*n, "echo did", t.as_str())).collect();
    rig.set_steps(&steps).await;
    rig
}

fn step_logs(finished: &Finished<TrialRecord>, index: usize) -> Vec<String> {
    let wanted =
        |role: &FileRole| matches!(role, FileRole::StepLogs { step, .. } if *step == index);
    let found = archive(finished, wanted).expect("logs");
    found.into_iter().map(|(name, _)| name).collect()
}

#[tokio::test]
async fn agent_is_told_to_continue_from_second_step_on() {
    for resume in [false, true] {
        let mut rig = rig(&[1.0, 1.0, 1.0]).await;
        rig.agent = super::super::testing::agent(None, Some("echo did"));
        rig.agent.task_options.resume_trajectory = resume;
        assert!(run(&rig).await.record.verdict.passed());
        let commands = rig.provider.commands();
        let agents = commands.iter().filter(|c| c.argv.iter().any(|a| a.ends_with("execute.sh")));
        let told: Vec<_> = agents.map(|c| c.env.contains_key("ROLLOUT_RESUME")).collect();
        assert_eq!(told, [false, resume, resume]);
    }
}

#[tokio::test]
async fn steps_run_in_order_in_one_environment() {
    let mut rig = TrialFixture::new().await;
    let first = "cat $ROLLOUT_TASK_INSTRUCTION; echo 1 > /app/first";
    let second = "cat $ROLLOUT_TASK_INSTRUCTION; cat /app/first; test -s /tests/test.sh; exit 5";
    let tests = format!("echo x > /logs/verifier/x; {}", reward(0.5));
    let again = format!("cat /logs/verifier/x; {}", reward(1.0));
    rig.set_steps(&[("one", first, &tests), ("two", second, &again)]).await;
    rig.task.steps[0].artifacts = vec![artifact("/app/first")];
    let finished = run(&rig).await;
    let record = &finished.record;
    // The second step sees no logs or tests of the first, so that its tests and its agent fail.
    assert_eq!(
        (record.verdict.outcome, record.verdict.reward),
        (ItemOutcome::Completed, Some(0.5))
    );
    let kinds: Vec<_> = record.steps.iter().map(|s| s.error.as_ref().map(error_summary)).collect();
    let failed = "agent_execution_failed non_zero_exit agent permanent".to_owned();
    assert_eq!(kinds, [None, Some(failed)]);
    assert_eq!(record.steps[0].reward, Some(0.5));
    assert_eq!(error(&finished).kind, ErrorType::AgentExecutionFailed);
    assert!(
        error(&finished).message.contains("code 1"),
        "the tests are gone: {:?}",
        error(&finished)
    );
    assert_eq!(super::secondary_codes(record), ["reward_missing"]);
    assert_eq!(output(&finished, "steps/one/command/stdout.txt"), "one");
    assert_eq!(output(&finished, "steps/two/command/stdout.txt"), "two1\n");
    assert!(
        outputs(&finished).iter().all(|path| path.starts_with("steps/")),
        "{:?}",
        outputs(&finished)
    );
    assert!(step_logs(&finished, 0).contains(&"verifier/x".to_owned()));
    assert_eq!(log_names(&finished), ["agent/", "artifacts/"]);
    assert_eq!(record.artifacts[0].path, "steps/one/artifacts/app/first");
    assert_eq!(kept(&finished, "/app/first"), [("first".to_owned(), "1\n".to_owned())]);
    assert_eq!(rig.provider.requests().len(), 1);
    let times = &record.steps;
    assert!(times[0].verifier_ended_at <= times[1].agent_execution_started_at);
    let all = &record.timestamps;
    assert_eq!(all.agent_execution_started_at, times[0].agent_execution_started_at);
    assert_eq!(all.verifier_ended_at, times[1].verifier_ended_at);
}

#[tokio::test]
async fn environment_files_are_in_working_directory_before_anything_runs() {
    for workdir in [Some("/srv/made"), None] {
        let mut rig = TrialFixture::new().await;
        rig.task.environment.workdir = workdir.map(str::to_owned);
        rig.task.environment.workdir_files = Some(rig.store_archive("input.txt", "42").await);
        let dir = workdir.unwrap_or("/app");
        let check = format!("cat {dir}/input.txt");
        rig.task.environment.healthcheck = Some(Healthcheck {
            command: check.clone(),
            interval_sec: 1.0,
            timeout_sec: 1.0,
            start_period_sec: 0.0,
            start_interval_sec: 1.0,
            retries: 1,
        });
        rig.set_scripts(None, Some(&check));
        let finished = run(&rig).await;
        assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
        assert_eq!(output(&finished, "command/stdout.txt"), "42");
    }
}

#[tokio::test]
async fn environment_files_unplaceable_fail_setup_with_reason() {
    let mut rig = TrialFixture::new().await;
    rig.task.environment.workdir_files = Some(rig.store_archive("input.txt", "42").await);
    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::CopyTo, 0), FaultEffect::Fail(FailureKind::Gone));
    let finished = run(&rig).await;
    assert_eq!(error(&finished).kind, ErrorType::EnvironmentStartFailed);
    let message = &error(&finished).message;
    assert!(message.starts_with("cannot place the environment's files: "), "{message}");
}

#[tokio::test]
async fn step_rewards_combine_by_strategy_and_min_reward() {
    use StepStrategy::{Final, Mean};
    let least = |value: f64| BTreeMap::from([("reward".to_owned(), value)]);
    for (rewards, strategy, min, expected, ran) in [
        (&[1.0, 0.0, 0.5][..], Mean, None, 0.5, 3),
        (&[1.0, 0.0, 0.5], Final, None, 0.5, 3),
        (&[0.9, 1.0, 1.0], Mean, Some(1.0), 0.9, 1),
        (&[0.75, 1.0], Final, Some(1.0), 0.75, 1),
        (&[1.0, 1.0], Mean, Some(1.0), 1.0, 2),
    ] {
        let mut rig = rig(rewards).await;
        rig.task.strategy = strategy;
        rig.task.steps[0].min_reward = min.map(least).unwrap_or_default();
        let finished = run(&rig).await;
        let verdict = &finished.record.verdict;
        assert!((verdict.reward.expect("a reward") - expected).abs() < 1e-9, "{verdict:?}");
        assert_eq!((verdict.outcome, &verdict.error), (ItemOutcome::Completed, &None));
        assert_eq!((verdict.passed(), verdict.unverified_steps.len()), (expected == 1.0, 0));
        assert_eq!((&verdict.rewards, finished.record.steps.len()), (&Rewards::new(), ran));
    }
}

#[tokio::test]
async fn step_not_verified_ends_trial() {
    for (fault, rule, expected) in [
        ("tests", AfterAgentError::Verify, Some(1.0)),
        ("tests", AfterAgentError::EndTrial, None),
        ("environment", AfterAgentError::Verify, None),
    ] {
        let mut rig = rig(&[1.0, 1.0, 1.0]).await;
        rig.task.rules.after_agent_error = rule;
        if fault == "tests" {
            rig.task.steps[1].files.tests =
                Some(rig.store_archive("test.sh", "echo nothing").await);
        } else {
            rig.provider
                .fault(FaultTrigger::Nth(FakeCall::Exec, 3), FaultEffect::Fail(FailureKind::Gone));
        }
        let finished = run(&rig).await;
        let verdict = &finished.record.verdict;
        assert_eq!(verdict.reward, expected, "{fault} {rule:?}");
        assert!(verdict.error.is_some() && finished.record.steps.len() == 2);
        assert_eq!(finished.record.steps[1].error, verdict.error);
        // The reward is that of the first step: the trial does not pass.
        assert!(!verdict.passed());
        let unverified: &[&str] = if expected.is_some() { &["two"] } else { &[] };
        assert_eq!(verdict.unverified_steps, unverified);
        assert_eq!(error(&finished).is_retryable(), fault == "environment");
    }
}

#[tokio::test]
async fn step_setup_script_runs_in_workdir_and_is_removed() {
    let mut rig = TrialFixture::new().await;
    let solution = "test -e setup.sh";
    rig.set_steps(&[
        ("one", "cat data.txt; cat made.txt", &reward(1.0)),
        ("two", solution, "echo"),
    ])
    .await;
    let files = [("setup.sh", "echo m > made.txt; echo setting up"), ("data.txt", "d\n")];
    rig.task.steps[0].files.workdir = Some(rig.store_archive_of(&files).await);
    rig.task.environment.workdir = Some("/srv".into());
    rig.task.steps[0].healthcheck = Some(Healthcheck {
        command: "test -e /srv/made.txt".into(),
        interval_sec: 1.0,
        timeout_sec: 1.0,
        start_period_sec: 0.0,
        start_interval_sec: 1.0,
        retries: 1,
    });
    let finished = run(&rig).await;
    assert_eq!(output(&finished, "steps/one/command/stdout.txt"), "d\nm\n");
    assert_eq!(output(&finished, "steps/one/setup/stdout.txt"), "setting up\n");
    assert_eq!(finished.record.steps[0].error, None);
    let seen = finished.record.steps[1].error.as_ref().expect("an error");
    assert_eq!(seen.code.as_str(), "non_zero_exit", "the setup script is gone");

    let broken = [("setup.sh", "exit 9")];
    rig.task.steps[0].files.workdir = Some(rig.store_archive_of(&broken).await);
    let finished = run(&rig).await;
    assert_eq!(
        error_summary(error(&finished)),
        "environment_start_failed non_zero_exit task permanent"
    );
    assert!(error(&finished).message.contains("setup script ended with code 9"));
}

#[tokio::test]
async fn step_files_unreadable_end_trial_before_they_are_placed() {
    let mut rig = rig(&[1.0]).await;
    let invalid = rig.store.put_bytes(vec![b'x'; 600].into(), MediaType::Tar).await;
    rig.task.steps[0].files.workdir = Some(invalid.expect("stored"));
    let finished = run(&rig).await;
    assert_eq!(error_summary(error(&finished)), "internal_error bug infrastructure permanent");
    let message = &error(&finished).message;
    assert!(message.contains("cannot unpack the step's files"), "{message}");
}

#[tokio::test]
async fn steps_with_separate_verifier_get_one_each() {
    let mut rig = TrialFixture::new().await;
    let check = |n: u32| format!("cat /app/{n}; background left; {}", reward(f64::from(n)));
    let (one, two) = (check(1), check(2));
    rig.set_steps(&[
        ("one", "echo 1 > /app/1; background server", &one),
        ("two", "alive server; echo 2 > /app/2", &two),
    ])
    .await;
    rig.verify_separately();
    for (step, path) in rig.task.steps.iter_mut().zip(["/app/1", "/app/2"]) {
        step.artifacts = vec![artifact(path)];
    }
    let finished = run(&rig).await;
    assert_eq!(
        (finished.record.verdict.reward, &finished.record.verdict.error),
        (Some(1.5), &None)
    );
    assert_eq!(output(&finished, "steps/two/logs/verifier/stdout.txt"), "2\n");
    assert!(step_logs(&finished, 1).contains(&"verifier/reward.txt".to_owned()));
    assert_eq!(rig.provider.requests().len(), 3);
    let last = finished.record.verifier_environment.expect("one");
    assert_eq!(last.id, "fake-3");
}

#[tokio::test]
async fn drain_during_first_step_cancels_trial() {
    let rig = rig(&[1.0, 1.0]).await;
    rig.stop_in(rollout_protocol::phase::Phase::Verification, StopLevel::Drain);
    let Finished { record, stopped, .. } = rig.run().await;
    assert!(stopped.is_some() && record.environment.is_some());
    assert_eq!((record.verdict.outcome, record.verdict.reward), (ItemOutcome::Cancelled, None));
    assert_eq!(record.steps.len(), 2, "the second began");
    assert_eq!(rig.provider.existing(), Vec::<String>::new());
}

#[tokio::test]
async fn step_that_the_oracle_has_no_solution_for_is_verified() {
    let mut rig = rig(&[1.0, 0.5]).await;
    rig.task.steps[1].files.solution = None;
    let finished = run(&rig).await;
    let rewards: Vec<_> = finished.record.steps.iter().map(|step| step.reward).collect();
    assert_eq!(rewards, [Some(1.0), Some(0.5)]);
    assert_eq!(output(&finished, "steps/one/command/stdout.txt"), "did\n");
    let of_the_second = |path: &&str| path.starts_with("steps/two/command");
    assert!(!outputs(&finished).iter().any(of_the_second), "{:?}", outputs(&finished));
}

#[tokio::test]
async fn step_without_tests_gets_no_environment() {
    let mut rig = rig(&[1.0, 1.0]).await;
    rig.task.steps[1].files.tests = None;
    let finished = run(&rig).await;
    assert_eq!(error(&finished).kind, ErrorType::TaskInvalid);
    assert!(error(&finished).message.contains("`two`"), "{:?}", error(&finished));
    assert_eq!(rig.provider.calls(), []);
}
