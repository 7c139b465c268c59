//! The time limit of a healthcheck, at which the check ends alone.

use std::time::Duration;

use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::spec::task::Healthcheck;

use super::super::testing::TrialFixture;
use super::{error, run};

async fn with_check(command: &str) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    rig.settings.verifier.kill_agent_processes = false;
    rig.task.environment.healthcheck = Some(Healthcheck {
        command: command.to_owned(),
        interval_sec: 5.0,
        timeout_sec: 30.0,
        start_period_sec: 0.0,
        start_interval_sec: 1.0,
        retries: 3,
    });
    rig
}

/// How often all processes of an environment were ended.
fn kills(rig: &TrialFixture) -> usize {
    rig.provider.calls().iter().filter(|call| **call == FakeCall::Kill).count()
}

/// Runs a trial that must pass; returns the seconds for which its healthcheck was waited for.
async fn waited(rig: &TrialFixture) -> f64 {
    let finished = run(rig).await;
    assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
    let environment = finished.record.environment.expect("one was created");
    environment.start_wait.expect("a wait").waited_sec
}

#[tokio::test(start_paused = true)]
async fn healthcheck_beyond_its_limit_ends_no_other_process() {
    let hanging = with_check("sleep 1000").await;
    let finished = run(&hanging).await;
    let message = &error(&finished).message;
    assert!(message.contains("it exceeded its time limit of 30s"), "{message}");
    let failing = with_check("exit 7").await;
    assert_eq!(error(&run(&failing).await).kind, error(&finished).kind);
    assert_eq!(kills(&hanging), kills(&failing));
}

#[tokio::test(start_paused = true)]
async fn healthcheck_without_end_long_after_its_limit_is_ended_with_everything() {
    for (delay, expected) in [(35, 0), (45, 1)] {
        let rig = with_check("echo").await;
        let effect = FaultEffect::Delay(Duration::from_secs(delay));
        rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, 0), effect);
        let waited = waited(&rig).await;
        assert_eq!(kills(&rig), expected, "{delay}");
        assert!((35.0..60.0).contains(&waited), "{delay} {waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn healthcheck_in_image_without_shell_runs_as_it_is() {
    let rig = with_check("echo").await;
    let effect = FaultEffect::Fail(FailureKind::NotStarted);
    rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, 0), effect);
    let waited = waited(&rig).await;
    assert!(waited < 1.0, "{waited}");
    assert_eq!(rig.provider.commands()[0].argv, ["bash", "-c", "echo"]);
    assert_eq!(kills(&rig), 0);
}
