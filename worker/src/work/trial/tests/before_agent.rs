//! Failures of the task before the first command of the agent, and those that the agent may cause.

use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::error::ErrorClass;
use rollout_protocol::record::{ItemOutcome, TrialRecord, Verdict};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::task::{AfterAgentError, CollectHook, Healthcheck};

use super::super::testing::TrialFixture;
use super::{error, error_summary, run};
use crate::executor::Finished;

const PASSED: &str = "cat /app/ready; echo 1 > /logs/verifier/reward.txt";

fn check(command: &str) -> Healthcheck {
    Healthcheck {
        command: command.to_owned(),
        interval_sec: 1.0,
        timeout_sec: 1.0,
        start_period_sec: 0.0,
        start_interval_sec: 1.0,
        retries: 1,
    }
}

fn is_early(finished: &Finished<TrialRecord>) -> bool {
    error(finished).before_agent
}

#[tokio::test(start_paused = true)]
async fn task_failure_before_environment_is_before_agent() {
    let mut rig = TrialFixture::new().await;
    rig.task.steps[0].files.tests = None;
    assert!(is_early(&run(&rig).await), "no tests");
    for call in [FakeCall::Prepare, FakeCall::Create] {
        let rig = TrialFixture::new().await;
        rig.provider.fault(FaultTrigger::Every(call), FaultEffect::Fail(FailureKind::Refused));
        let finished = run(&rig).await;
        assert!(is_early(&finished), "{call:?}: {}", error_summary(error(&finished)));
    }
    let mut rig = TrialFixture::new().await;
    rig.task.environment.healthcheck = Some(check("exit 7"));
    assert!(is_early(&run(&rig).await), "unhealthy");
}

#[tokio::test]
async fn image_with_files_in_the_place_of_limits_runs() {
    for (in_the_way, expected) in [
        (&[][..], Some("/rollout/limits.json")),
        (&["/rollout"][..], Some("/tmp/rollout-limits.json")),
        (&["/rollout", "/tmp/rollout-limits.json/x"][..], None),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.use_oracle("echo solved").await;
        in_the_way.iter().for_each(|path| rig.provider.image_file(path, "of the image"));
        let finished = run(&rig).await;
        assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
        let commands = rig.provider.commands();
        let named = commands[0].env.get("ROLLOUT_LIMITS").map(String::as_str);
        assert_eq!(named, expected, "{in_the_way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failure_that_is_not_of_task_is_never_before_agent() {
    for kind in [FailureKind::Unreachable, FailureKind::Unsupported, FailureKind::Bug] {
        let rig = TrialFixture::new().await;
        rig.provider.fault(FaultTrigger::Every(FakeCall::Create), FaultEffect::Fail(kind));
        assert!(!is_early(&run(&rig).await), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn setup_of_first_step_is_before_agent_without_install_script() {
    for (install, expected) in [(None, true), (Some("echo installing"), false)] {
        let mut rig = TrialFixture::new().await;
        rig.set_steps(&[("one", "echo", PASSED)]).await;
        let (install, execute) = (install.map(str::to_owned), Some("echo".to_owned()));
        rig.agent.kind = AgentKind::Script { install, execute };
        rig.task.steps[0].healthcheck = Some(check("exit 1"));
        assert_eq!(is_early(&run(&rig).await), expected);
    }
}

/// A part of a task that the agent breaks by the removal of a file.
const BREAKABLE: [&str; 4] = ["verifier", "collect hook", "setup", "healthcheck"];

/// How a part ends without that file.
#[derive(Debug, Clone, Copy)]
enum BrokenBy {
    /// With a code that is not 0.
    ExitCode,
    /// At its time limit.
    Time,
}

impl BrokenBy {
    /// A command that needs the file.
    const fn command(self) -> &'static str {
        match self {
            Self::ExitCode => "cat /app/ready",
            Self::Time => "wait-for /app/ready",
        }
    }
}

/// A task of two steps, in whose first step the agent may remove the file that a part of the second
/// needs. The verifier needs the file that a collect hook makes.
async fn rig(part: &str, by: BrokenBy, removes: bool, rule: AfterAgentError) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    let solution = if removes { "rm -f /app/ready" } else { "echo" };
    let (needs, reward) = (by.command(), "echo 1 > /logs/verifier/reward.txt");
    let tests = match part {
        "verifier" => format!("{needs}; {reward}"),
        "collect hook" => format!("test -e /app/copy; {reward}"),
        _ => reward.to_owned(),
    };
    rig.set_steps(&[("one", solution, reward), ("two", "echo", &tests)]).await;
    rig.task.rules.after_agent_error = rule;
    rig.task.environment.workdir = Some("/app".into());
    rig.task.steps[0].files.workdir = Some(rig.store_archive("ready", "yes").await);
    let step = &mut rig.task.steps[1];
    match part {
        "healthcheck" => step.healthcheck = Some(check(needs)),
        "collect hook" => {
            let command = format!("{needs}; echo > /app/copy");
            let hook = CollectHook { command, service: None, timeout_sec: 1.0, user: None };
            step.verifier.collect = vec![hook];
        }
        "setup" => {
            let setup = rig.store_archive("setup.sh", needs).await;
            rig.task.steps[1].files.workdir = Some(setup);
        }
        _ => {}
    }
    rig
}

async fn verdict(part: &str, by: BrokenBy, removes: bool, rule: AfterAgentError) -> Verdict {
    let finished = run(&rig(part, by, removes, rule).await).await;
    finished.record.verdict
}

#[tokio::test(start_paused = true)]
async fn part_that_agent_breaks_gives_neither_pass_nor_early_failure() {
    for part in BREAKABLE {
        for by in [BrokenBy::ExitCode, BrokenBy::Time] {
            for rule in [AfterAgentError::Verify, AfterAgentError::EndTrial] {
                let whole = verdict(part, by, false, rule).await;
                assert!(whole.passed(), "{part}, {by:?}: {whole:?}");
                let broken = verdict(part, by, true, rule).await;
                assert!(!broken.passed(), "{part}, {by:?}: {broken:?}");
                let error = broken.error.expect("an error");
                assert!(!error.before_agent, "{part}, {by:?}: {error}");
                assert_ne!(error.class, ErrorClass::Infrastructure, "{part}, {by:?}: {error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn collect_hook_that_agent_breaks_is_named_beside_the_reward_that_the_verifier_gives() {
    for rule in [AfterAgentError::Verify, AfterAgentError::EndTrial] {
        let mut rig = rig("collect hook", BrokenBy::ExitCode, true, rule).await;
        rig.task.steps[1].files.tests = rig.task.steps[0].files.tests.clone();
        let finished = run(&rig).await;
        let verdict = &finished.record.verdict;
        assert_eq!((verdict.outcome, verdict.reward), (ItemOutcome::Completed, Some(1.0)));
        let expected = "verifier_failed collection_failed task permanent";
        assert_eq!(error_summary(error(&finished)), expected);
        assert!(!is_early(&finished));
        assert!(finished.record.secondary_errors.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn collect_hook_that_agent_delays_is_failure_after_agent_began() {
    for rule in [AfterAgentError::Verify, AfterAgentError::EndTrial] {
        let finished = run(&rig("collect hook", BrokenBy::Time, true, rule).await).await;
        assert!(!finished.record.verdict.passed());
        let expected = "verifier_failed collection_failed task permanent";
        assert_eq!(
            (error_summary(error(&finished)), is_early(&finished)),
            (expected.into(), false)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn task_failure_after_agent_without_command_is_not_before_agent() {
    let mut rig = TrialFixture::new().await;
    rig.set_scripts(None, None);
    let command = "sleep 100".to_owned();
    let hook = CollectHook { command, service: None, timeout_sec: 1.0, user: None };
    rig.task.steps[0].verifier.collect = vec![hook];
    assert!(!is_early(&run(&rig).await));
}

#[tokio::test(start_paused = true)]
async fn collect_hook_that_the_engine_fails_leaves_no_verdict() {
    for kind in [FailureKind::Service, FailureKind::Unreachable, FailureKind::Exhausted] {
        let mut rig = TrialFixture::new().await;
        rig.set_scripts(None, None);
        let command = "true".to_owned();
        let hook = CollectHook { command, service: None, timeout_sec: 1.0, user: None };
        rig.task.steps[0].verifier.collect = vec![hook];
        rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, 0), FaultEffect::Fail(kind));
        let finished = run(&rig).await;
        assert_eq!(error(&finished).class, ErrorClass::Infrastructure, "{kind:?}");
        assert_eq!(finished.record.verdict.reward, None, "{kind:?}");
    }
}
