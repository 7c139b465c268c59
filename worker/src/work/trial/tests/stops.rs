//! Stops: a drain ends between phases, a kill at once; both leave no environment.

use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::error::ErrorType;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, TrialRecord};
use rollout_protocol::spec::environment::PreservePolicy;
use rollout_protocol::wire::control::StopLevel;

use super::super::testing::TrialFixture;
use super::{error, is_bare, logs, outputs, run};
use crate::executor::Finished;

const PHASES: [Phase; 4] =
    [Phase::EnvironmentSetup, Phase::AgentSetup, Phase::AgentExecution, Phase::Verification];

async fn stopped(rig: &TrialFixture) -> (Phase, Finished<TrialRecord>) {
    let finished = rig.run().await;
    assert_eq!(rig.provider.existing(), Vec::<String>::new());
    assert_eq!(rig.provider.busy(), Vec::<String>::new());
    let phase = finished.stopped.unwrap_or_else(|| panic!("a verdict: {finished:?}"));
    (phase, finished)
}

#[tokio::test]
async fn drain_finishes_phase_then_collects_and_tears_down() {
    for phase in &PHASES[..3] {
        let mut rig = TrialFixture::new().await;
        rig.settings.environment.preserve_env = PreservePolicy::Always;
        rig.set_scripts(Some("echo a"), Some("echo b"));
        rig.stop_in(*phase, StopLevel::Drain);
        let (at, finished) = stopped(&rig).await;
        assert!(finished.record.environment.is_some());
        assert_eq!(at, *phase);
        assert!(logs(&finished).is_some());
        assert_eq!(finished.record.verdict.outcome, ItemOutcome::Cancelled);
        assert_eq!(finished.record.verdict.error, None);
        let ran = PHASES.iter().filter(|p| *p <= phase && **p > Phase::EnvironmentSetup).count();
        assert_eq!(outputs(&finished).len(), ran * 2);
    }
}

#[tokio::test]
async fn drain_in_last_phase_gives_verdict() {
    let rig = TrialFixture::new().await;
    rig.stop_in(Phase::Verification, StopLevel::Drain);
    assert!(run(&rig).await.record.verdict.passed());

    let mut rig = TrialFixture::new().await;
    rig.settings.verifier.disable = true;
    rig.stop_in(Phase::AgentExecution, StopLevel::Drain);
    assert_eq!(run(&rig).await.record.verdict.outcome, ItemOutcome::Unverified);

    let mut rig = TrialFixture::new().await;
    rig.set_scripts(None, Some("exit 1"));
    rig.stop_in(Phase::AgentExecution, StopLevel::Drain);
    assert_eq!(error(&run(&rig).await).kind, ErrorType::AgentExecutionFailed);
}

#[tokio::test(start_paused = true)]
async fn kill_during_script_ends_it_at_once() {
    for (phase, script) in [
        (Phase::AgentSetup, "install"),
        (Phase::AgentExecution, "execute"),
        (Phase::Verification, "verify"),
    ] {
        let mut rig = TrialFixture::new().await;
        let endless = "echo begun; background writer; sleep 50";
        match script {
            "install" => rig.set_scripts(Some(endless), None),
            "execute" => rig.set_scripts(None, Some(endless)),
            _ => rig.set_tests(endless).await,
        }
        rig.settings.environment.preserve_env = PreservePolicy::Always;
        let services = rig.services();
        let running = super::super::run(rig.context(), &services);
        let killing = async {
            while rig.provider.busy().is_empty() || rig.phases.entered().last() != Some(&phase) {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            rig.stop.send_replace(Some(StopLevel::Kill));
            tokio::time::Instant::now()
        };
        let (finished, killed_at) = tokio::join!(running, killing);
        assert!(killed_at.elapsed().as_secs() < 1);
        assert_eq!(finished.stopped, Some(phase));
        assert_eq!(rig.provider.existing(), Vec::<String>::new());
        assert_eq!(rig.provider.busy(), Vec::<String>::new());
        assert!(!rig.provider.calls().contains(&FakeCall::CopyFrom));
        assert!(finished.record.environment.is_some());
        let directory = match script {
            "install" => "setup/stdout.txt",
            "execute" => "command/stdout.txt",
            _ => "logs/verifier/stdout.txt",
        };
        assert_eq!(super::output(&finished, directory), "begun\n");
    }
}

#[tokio::test]
async fn stop_before_start_makes_no_call() {
    for level in [StopLevel::Drain, StopLevel::Kill] {
        let rig = TrialFixture::new().await;
        rig.stop.send_replace(Some(level));
        let (phase, finished) = stopped(&rig).await;
        assert_eq!((phase, is_bare(&finished)), (Phase::Queued, true));
        assert_eq!(rig.provider.calls(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn kill_during_hanging_call_ends_trial() {
    for (call, nth, phase) in [
        (FakeCall::Prepare, 0, Phase::EnvironmentSetup),
        (FakeCall::Create, 0, Phase::EnvironmentSetup),
        (FakeCall::CopyTo, 0, Phase::AgentExecution),
        (FakeCall::CopyTo, 1, Phase::Verification),
        (FakeCall::CopyFrom, 0, Phase::Verification),
    ] {
        let rig = TrialFixture::new().await;
        rig.provider.fault(FaultTrigger::Nth(call, nth), FaultEffect::Hang);
        let services = rig.services();
        let running = super::super::run(rig.context(), &services);
        let made = || rig.provider.calls().into_iter().filter(|made| *made == call).count();
        let killing = async {
            while made() <= nth {
                tokio::task::yield_now().await;
            }
            rig.stop.send_replace(Some(StopLevel::Kill));
        };
        let (finished, ()) = tokio::join!(running, killing);
        assert_eq!(finished.stopped, Some(phase), "{call:?} {nth}");
        assert_eq!(rig.provider.existing(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn kill_while_images_of_services_are_made_ends_trial_at_once() {
    let mut rig = TrialFixture::new().await;
    let context = rig.store_archive("docker-compose.yaml", "services: {}").await;
    rig.task.environment.context = Some(context);
    rig.task.environment.compose = Some("docker-compose.yaml".to_owned());
    rig.provider.fault(FaultTrigger::Every(FakeCall::PrepareServices), FaultEffect::Hang);
    let services = rig.services();
    let running = super::super::run(rig.context(), &services);
    let killing = async {
        while rig.provider.calls().last() != Some(&FakeCall::PrepareServices) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        rig.stop.send_replace(Some(StopLevel::Kill));
        tokio::time::Instant::now()
    };
    let (finished, killed_at) = tokio::join!(running, killing);
    assert!(killed_at.elapsed().as_secs() < 1);
    assert_eq!(finished.stopped, Some(Phase::EnvironmentSetup));
    assert!(!rig.provider.calls().contains(&FakeCall::Create));
    assert_eq!(rig.provider.existing(), Vec::<String>::new());
}

#[tokio::test]
async fn kill_during_environment_setup_removes_environment() {
    let rig = TrialFixture::new().await;
    rig.stop_in(Phase::EnvironmentSetup, StopLevel::Kill);
    let (phase, _) = stopped(&rig).await;
    assert_eq!(phase, Phase::EnvironmentSetup);
}

#[tokio::test]
async fn stop_during_teardown_keeps_verdict() {
    for level in [StopLevel::Drain, StopLevel::Kill] {
        let rig = TrialFixture::new().await;
        rig.stop_in(Phase::Teardown, level);
        assert!(run(&rig).await.record.verdict.passed());
    }
}
