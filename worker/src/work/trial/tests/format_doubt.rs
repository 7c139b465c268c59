//! Trials whose verdict depends on a guessed format.

use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::record::{FormatDoubt, ItemOutcome, Verdict};
use rollout_protocol::spec::task::{ScriptRules, TaskFormat};

use super::super::testing::TrialFixture;
use super::run;

/// A task whose format is a guess.
async fn rig(format: TaskFormat) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    rig.task.format = format;
    rig.task.rules = ScriptRules::for_format(format);
    rig.task.other_rules = Some(ScriptRules::for_format(format.other()));
    rig
}

async fn verdict(format: TaskFormat, tests: &str) -> Verdict {
    let mut rig = rig(format).await;
    rig.set_tests(tests).await;
    run(&rig).await.record.verdict
}

#[tokio::test]
async fn reward_of_failed_test_script_makes_guessed_format_doubtful() {
    for (reward, doubt) in [("1", Some(FormatDoubt::TestExit)), ("0", None)] {
        let tests = format!("echo {reward} > /logs/verifier/reward.txt; exit 1");
        let own = verdict(TaskFormat::Rollout, &tests).await;
        assert_eq!((own.outcome, own.format_doubt), (ItemOutcome::Failed, doubt), "{reward}");
        assert_eq!(own.error.expect("an error").kind.as_str(), "verifier_failed");
        let harbor = verdict(TaskFormat::Harbor, &tests).await;
        assert_eq!((harbor.outcome, harbor.format_doubt), (ItemOutcome::Completed, doubt));
    }
    for format in [TaskFormat::Rollout, TaskFormat::Harbor] {
        assert_eq!(verdict(format, "exit 1").await.format_doubt, None, "no reward in either");
        let whole = verdict(format, "echo 1 > /logs/verifier/reward.txt").await;
        assert_eq!((whole.passed(), whole.format_doubt), (true, None));
    }
}

#[tokio::test]
async fn verdict_of_stated_format_is_never_doubtful() {
    let mut rig = rig(TaskFormat::Rollout).await;
    rig.task.other_rules = None;
    rig.set_tests("echo 1 > /logs/verifier/reward.txt; exit 1").await;
    assert_eq!(run(&rig).await.record.verdict.format_doubt, None);
}

#[tokio::test]
async fn rule_that_job_sets_makes_no_doubt() {
    let mut rig = rig(TaskFormat::Rollout).await;
    rig.task.other_rules = Some(rig.task.rules);
    rig.set_tests("echo 1 > /logs/verifier/reward.txt; exit 1").await;
    assert_eq!(run(&rig).await.record.verdict.format_doubt, None);
}

#[tokio::test]
async fn different_rewards_in_both_files_make_guessed_format_doubtful() {
    for (json, doubt) in [("0.5", Some(FormatDoubt::RewardFiles)), ("1", None)] {
        let json = format!("echo '{{\"reward\": {json}}}' > /logs/verifier/reward.json");
        let tests = format!("{json}; echo 1 > /logs/verifier/reward.txt");
        for format in [TaskFormat::Rollout, TaskFormat::Harbor] {
            assert_eq!(verdict(format, &tests).await.format_doubt, doubt, "{tests}");
        }
    }
}

#[tokio::test]
async fn failed_agent_makes_guessed_format_doubtful() {
    for (format, reward, doubt) in [
        (TaskFormat::Rollout, "0", Some(FormatDoubt::AgentError)),
        (TaskFormat::Harbor, "1", Some(FormatDoubt::AgentError)),
        (TaskFormat::Harbor, "0", None),
    ] {
        let mut rig = rig(format).await;
        rig.set_scripts(None, Some("exit 4"));
        rig.set_tests(&format!("echo {reward} > /logs/verifier/reward.txt")).await;
        let verdict = run(&rig).await.record.verdict;
        assert_eq!(verdict.format_doubt, doubt, "{format} {reward}");
    }
}

#[tokio::test(start_paused = true)]
async fn infrastructure_failure_is_no_doubt_about_format() {
    let rig = rig(TaskFormat::Rollout).await;
    let gone = FaultEffect::Fail(FailureKind::Gone);
    rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, 2), gone);
    assert_eq!(run(&rig).await.record.verdict.format_doubt, None);
}
