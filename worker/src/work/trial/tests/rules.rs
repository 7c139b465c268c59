//! Ends of scripts by the rules of the formats.

use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::error::{ErrorType, TrialError};
use rollout_protocol::record::{ItemOutcome, Rewards, Verdict};
use rollout_protocol::spec::task::{AfterAgentError, TestExit};

use super::super::testing::TrialFixture;
use super::{error, error_summary, outputs, run, secondary_codes};

fn rewards(pairs: &[(&str, f64)]) -> Rewards {
    pairs.iter().map(|(key, number)| ((*key).to_owned(), *number)).collect()
}

/// Runs a task of Harbor's format whose tests write these files.
async fn verdict(json: Option<&str>, text: Option<&str>, key: Option<&str>) -> Verdict {
    let mut rig = TrialFixture::new().await;
    rig.use_harbor_format();
    rig.settings.verifier.reward_key = key.map(str::to_owned);
    let write = |text: &str, name: &str| format!("echo '{text}' > /logs/verifier/{name}\n");
    let json = json.map_or_else(String::new, |json| write(json, "reward.json"));
    let text = text.map_or_else(String::new, |text| write(text, "reward.txt"));
    rig.set_tests(&(json + &text)).await;
    run(&rig).await.record.verdict
}

#[tokio::test]
async fn oracle_without_solution_is_verified_by_the_rules_of_harbor() {
    for (harbor, expected) in [(true, Some(0.5)), (false, None)] {
        let mut rig = TrialFixture::new().await;
        if harbor {
            rig.use_harbor_format();
        }
        rig.use_oracle("echo").await;
        rig.task.steps[0].files.solution = None;
        rig.set_tests("echo 0.5 > /logs/verifier/reward.txt").await;
        let finished = run(&rig).await;
        let verdict = &finished.record.verdict;
        assert_eq!(verdict.reward, expected, "{verdict:?}");
        assert_eq!(verdict.outcome == ItemOutcome::Completed, harbor);
        let error = error(&finished);
        assert_eq!(error.kind, ErrorType::TaskInvalid);
        assert!(error.message.contains("no solution/solve.sh"), "{error}");
        rig.settings.verifier.disable = true;
        assert_eq!(run(&rig).await.record.verdict.outcome, ItemOutcome::Failed);
    }
}

#[tokio::test]
async fn reward_json_takes_precedence_over_reward_text() {
    let two = "{\"reward\": 0.5, \"a\": 1}";
    let other = "{\"a\": 1, \"b\": 0}";
    for (json, text, key, reward, expected) in [
        (Some(two), None, None, Some(0.5), rewards(&[("reward", 0.5), ("a", 1.0)])),
        (Some(two), Some("0"), Some("a"), Some(1.0), rewards(&[("reward", 0.5), ("a", 1.0)])),
        (Some("{\"x\": 3}"), Some("nan"), None, Some(3.0), rewards(&[("x", 3.0)])),
        (Some(other), None, None, None, rewards(&[("a", 1.0), ("b", 0.0)])),
        (Some(other), None, Some("c"), None, rewards(&[("a", 1.0), ("b", 0.0)])),
        (None, Some("0.25"), None, Some(0.25), Rewards::new()),
        (None, Some("0.25"), Some("c"), Some(0.25), Rewards::new()),
    ] {
        let verdict = verdict(json, text, key).await;
        assert_eq!((verdict.outcome, &verdict.error), (ItemOutcome::Completed, &None), "{json:?}");
        assert_eq!((verdict.reward, verdict.rewards), (reward, expected), "{json:?} {text:?}");
    }
    let big = format!("{{\"{}\": 1}}", "x".repeat(20_000));
    for (json, text, kind) in [
        (Some("{\"a\": true}"), Some("1"), ErrorType::VerifierRewardInvalid),
        (Some("{\"a\": 1, \"a\": 1}"), Some("1"), ErrorType::VerifierRewardInvalid),
        (Some(""), Some("1"), ErrorType::VerifierRewardInvalid),
        (Some(&*big), Some("1"), ErrorType::VerifierRewardInvalid),
        (None, Some("x"), ErrorType::VerifierRewardInvalid),
        (None, None, ErrorType::VerifierRewardMissing),
    ] {
        let verdict = verdict(json, text, None).await;
        assert_eq!((verdict.outcome, verdict.reward), (ItemOutcome::Failed, None));
        assert_eq!(verdict.error.expect("an error").kind, kind, "{json:?} {text:?}");
    }
}

#[tokio::test]
async fn reward_file_order_follows_task_format() {
    let (json, text) =
        ("echo '{\"a\": 0.5}' > /logs/verifier/reward.json", "echo 1 > /logs/verifier/reward.txt");
    for (harbor, tests, reward, keyed) in [
        (false, json.to_owned(), 0.5, true),
        (false, text.to_owned(), 1.0, false),
        (false, format!("{json}; {text}"), 1.0, false),
        (true, format!("{json}; {text}"), 0.5, true),
    ] {
        let mut rig = TrialFixture::new().await;
        if harbor {
            rig.use_harbor_format();
        }
        rig.set_tests(&tests).await;
        let verdict = run(&rig).await.record.verdict;
        assert_eq!((verdict.reward, verdict.rewards.is_empty()), (Some(reward), !keyed), "{tests}");
    }
    let mut rig = TrialFixture::new().await;
    rig.set_tests("echo").await;
    let message = &error(&run(&rig).await).message.clone();
    let both = "left no /logs/verifier/reward.txt or reward.json";
    assert!(message.contains(both), "{message}");
}

#[tokio::test]
async fn reward_missing_or_invalid_quotes_standard_error_of_tests() {
    for (tests, expected) in [
        ("echo oops >&2", "or reward.json; the test script's standard error ends with: oops"),
        (
            "echo no > /logs/verifier/reward.txt; echo oops >&2",
            "`no` is not one number; the test script's standard error ends with: oops",
        ),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.set_tests(tests).await;
        let message = error(&run(&rig).await).message.clone();
        assert!(message.ends_with(expected), "{message}");
    }
}

#[tokio::test]
async fn solution_fault_fails_only_trials_of_oracle() {
    let fault = super::super::failure::task_invalid("solution/solve.sh has another fault");
    let mut rig = TrialFixture::new().await;
    rig.task.solution_fault = Some(fault.clone());
    assert!(run(&rig).await.record.verdict.passed());
    rig.use_oracle("echo did").await;
    assert_eq!(error(&run(&rig).await).message, fault.message);
}

#[tokio::test]
async fn solution_path_follows_task_format() {
    for (harbor, own) in [(false, "/oracle"), (true, "/solution")] {
        let mut rig = TrialFixture::new().await;
        if harbor {
            rig.use_harbor_format();
        }
        rig.use_oracle("cat /oracle/solve.sh; cat /solution/solve.sh").await;
        let finished = run(&rig).await;
        assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
        let command = rig.provider.commands().remove(0);
        assert_eq!(command.argv, ["bash".to_owned(), format!("{own}/solve.sh")]);
    }
}

#[tokio::test]
async fn task_with_fault_for_models_is_run_only_by_oracle() {
    let fault = TrialError::unsupported("a conversation to begin with");
    let mut rig = TrialFixture::new().await;
    rig.task.model_fault = Some(fault.clone());
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.error, Some(fault));
    assert!(rig.provider.calls().is_empty(), "no environment was made");
    rig.use_oracle("echo").await;
    assert!(run(&rig).await.record.verdict.passed());
}

#[tokio::test(start_paused = true)]
async fn exit_code_of_tests_ignored_but_timeout_fails() {
    let reward = "echo 1 > /logs/verifier/reward.txt;";
    for (tests, expected) in [
        (format!("{reward} exit 3"), None),
        (format!("{reward} oom"), None),
        (format!("{reward} sleep 1000"), Some("verifier_timeout timed_out verifier permanent")),
        (
            format!("{reward} vanish"),
            Some("verifier_failed environment_lost infrastructure transient"),
        ),
        ("exit 3".to_owned(), Some("verifier_reward_missing reward_missing verifier permanent")),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.task.rules.test_exit = TestExit::Ignored;
        rig.set_tests(&tests).await;
        let finished = run(&rig).await;
        let verdict = &finished.record.verdict;
        assert_eq!(verdict.error.as_ref().map(error_summary).as_deref(), expected, "{tests}");
        assert_eq!(verdict.passed(), expected.is_none(), "{tests}");
        if tests == "exit 3" {
            assert!(
                error(&finished).message.contains("ended with code 3"),
                "{:?}",
                error(&finished)
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn agent_failure_with_verify_rule_is_verified() {
    for (script, code) in
        [("exit 3", "non_zero_exit"), ("sleep 1000", "timed_out"), ("oom", "oom_killed")]
    {
        let mut rig = TrialFixture::new().await;
        rig.task.rules.after_agent_error = AfterAgentError::Verify;
        rig.set_scripts(None, Some(&format!("background writer; {script}")));
        rig.set_tests("echo 0.5 > /logs/verifier/reward.txt").await;
        let finished = run(&rig).await;
        let verdict = &finished.record.verdict;
        assert_eq!((verdict.outcome, verdict.reward), (ItemOutcome::Completed, Some(0.5)));
        assert_eq!(error(&finished).code.as_str(), code);
        let calls = rig.provider.calls();
        let at = |call| calls.iter().rposition(|c| *c == call).expect("called");
        // A service that it started may be verified, unless it had to be killed.
        if code == "timed_out" {
            assert!(at(FakeCall::Kill) < at(FakeCall::CopyTo), "{calls:?}");
        } else {
            assert!(!calls.contains(&FakeCall::Kill), "{calls:?}");
        }
        assert_eq!(secondary_codes(&finished.record), Vec::<&str>::new());
    }
}

#[tokio::test]
async fn install_or_infrastructure_failure_skips_verifier() {
    for (install, execute, kind) in [
        (Some("exit 1"), None, ErrorType::AgentInstallFailed),
        (None, Some("vanish"), ErrorType::AgentExecutionFailed),
        (None, Some("panic"), ErrorType::InternalError),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.use_harbor_format();
        rig.set_scripts(install, execute);
        let finished = run(&rig).await;
        assert_eq!(
            (finished.record.verdict.outcome, error(&finished).kind),
            (ItemOutcome::Failed, kind)
        );
        assert!(!outputs(&finished).iter().any(|path| path.starts_with("logs/verifier")));
    }
}

#[tokio::test]
async fn verifier_error_after_agent_error_is_secondary() {
    let mut rig = TrialFixture::new().await;
    rig.use_harbor_format();
    rig.set_scripts(None, Some("exit 3"));
    rig.set_tests("echo nothing").await;
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.outcome, ItemOutcome::Failed);
    assert_eq!(error(&finished).kind, ErrorType::AgentExecutionFailed);
    assert_eq!(secondary_codes(&finished.record), ["reward_missing"]);

    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::CopyTo, 3), FaultEffect::Fail(FailureKind::Unreachable));
    let finished = run(&rig).await;
    assert_eq!(
        error_summary(error(&finished)),
        "verifier_failed unreachable infrastructure transient"
    );
    assert_eq!(secondary_codes(&finished.record), ["non_zero_exit"]);
    assert!(error(&finished).is_retryable());
}
