//! Failures of the task before the first command of the agent, and those that the agent may cause.

use rollout_protocol::record::{TrialRecord, Verdict};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::task::{AfterAgentError, CollectHook, Healthcheck};

use super::super::testing::TrialFixture;
use super::{error, error_summary, run};
use crate::environment::FailureKind;
use crate::environment::fake::{FakeCall, FaultEffect, FaultTrigger};
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

/// A task of two steps, in whose first step the agent may remove the file that the second needs.
async fn rig(part: &str, removes: bool, rule: AfterAgentError) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    let solution = if removes { "rm -f /app/ready" } else { "echo" };
    let (first, second) = ("echo 1 > /logs/verifier/reward.txt", "echo");
    let tests = if part == "verifier" { PASSED } else { first };
    rig.set_steps(&[("one", solution, first), ("two", second, tests)]).await;
    rig.task.rules.after_agent_error = rule;
    rig.task.environment.workdir = Some("/app".into());
    rig.task.steps[0].files.workdir = Some(rig.store_archive("ready", "yes").await);
    let step = &mut rig.task.steps[1];
    match part {
        "healthcheck" => step.healthcheck = Some(check("test -e /app/ready")),
        "collect hook" => {
            let command = "cat /app/ready > /app/copy || exit".to_owned();
            let hook = CollectHook { command, service: None, timeout_sec: 1.0, user: None };
            step.verifier.collect = vec![hook];
        }
        "setup" => {
            let setup = rig.store_archive("setup.sh", "cat /app/ready").await;
            rig.task.steps[1].files.workdir = Some(setup);
        }
        _ => {}
    }
    rig
}

async fn verdict(part: &str, removes: bool, rule: AfterAgentError) -> Verdict {
    let finished = run(&rig(part, removes, rule).await).await;
    finished.record.verdict
}

#[tokio::test(start_paused = true)]
async fn part_that_agent_breaks_gives_neither_pass_nor_early_failure() {
    for part in BREAKABLE {
        for rule in [AfterAgentError::Verify, AfterAgentError::EndTrial] {
            let whole = verdict(part, false, rule).await;
            assert!(whole.passed(), "{part}: {whole:?}");
            if part == "collect hook" {
                continue;
            }
            let broken = verdict(part, true, rule).await;
            assert!(!broken.passed(), "{part}: {broken:?}");
            assert!(!broken.error.expect("an error").before_agent, "{part}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn collect_hook_that_agent_delays_is_failure_after_agent_began() {
    for rule in [AfterAgentError::Verify, AfterAgentError::EndTrial] {
        let mut rig = rig("collect hook", true, rule).await;
        rig.task.steps[1].verifier.collect[0].command = "sleep 100".into();
        let finished = run(&rig).await;
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
