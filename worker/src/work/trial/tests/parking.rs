//! Services that do not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::dependency::{Dependency, Probe};
use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::dependency::Dependency as Kind;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType};
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::wire::control::StopLevel;
use tokio::time::Instant;

use super::super::testing::TrialFixture;
use super::{is_bare, output, verdict};
use crate::executor::Slot;

const MAX_PARK: Duration = Duration::from_secs(900);

async fn rig() -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    rig.max_park = MAX_PARK;
    rig
}

fn count(rig: &TrialFixture, wanted: FakeCall) -> usize {
    rig.provider.calls().into_iter().filter(|call| *call == wanted).count()
}

/// An engine that a test takes down.
#[derive(Debug, Clone, Default)]
struct TrialEngineProbe {
    away: Arc<AtomicBool>,
}

#[async_trait]
impl Probe for TrialEngineProbe {
    async fn probe(&self) -> Result<(), String> {
        if self.away.load(Ordering::Relaxed) { Err("it is away".into()) } else { Ok(()) }
    }
}

fn with_engine(rig: &mut TrialFixture) -> (TrialEngineProbe, Arc<Dependency>) {
    let engine = TrialEngineProbe::default();
    let dependency = Arc::new(Dependency::new("the engine", Box::new(engine.clone())));
    rig.provider = rig.provider.clone().with_engine(dependency.clone());
    (engine, dependency)
}

#[tokio::test(start_paused = true)]
async fn image_pull_unreachable_is_parked_until_success() {
    let rig = rig().await;
    for nth in 0..6 {
        let effect = FaultEffect::Fail(FailureKind::Unreachable);
        rig.provider.fault(FaultTrigger::Nth(FakeCall::Prepare, nth), effect);
    }
    let finished = verdict(rig.run().await);
    assert_eq!(finished.record.verdict.reward, Some(1.0), "{:?}", finished.record.verdict);
    assert_eq!(rig.phases.parked(), [Some(Kind::ImageRegistry), None]);
    assert_eq!(rig.provider.leaked(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn attempt_starts_over_when_nothing_writes_for_the_former_one() {
    let rig = rig().await;
    let effect = FaultEffect::Fail(FailureKind::Unreachable);
    rig.provider.fault(FaultTrigger::Nth(FakeCall::Prepare, 0), effect);
    let (ctx, services) = (rig.context(), rig.services());
    let writing = ctx.execution.scratch_work.begin();
    let running = super::super::run(ctx, &services);
    let ending = async {
        tokio::time::sleep(2 * MAX_PARK).await;
        assert_eq!(count(&rig, FakeCall::Prepare), 1, "the directory is written to");
        drop(writing);
    };
    let (finished, ()) = tokio::join!(running, ending);
    assert_eq!(verdict(finished).record.verdict.reward, Some(1.0));
    assert_eq!(count(&rig, FakeCall::Prepare), 2);
}

#[tokio::test(start_paused = true)]
async fn service_image_pull_unreachable_parks_for_registry() {
    let mut rig = rig().await;
    let (_engine, dependency) = with_engine(&mut rig);
    for nth in 0..3 {
        rig.provider.fault(
            FaultTrigger::Nth(FakeCall::Create, nth),
            FaultEffect::Fail(FailureKind::Unreachable),
        );
    }
    let finished = verdict(rig.run().await);
    assert_eq!(finished.record.verdict.reward, Some(1.0), "{:?}", finished.record.verdict);
    assert_eq!(rig.phases.parked(), [Some(Kind::ImageRegistry), None]);
    assert_eq!(dependency.outages(), 0);
}

#[tokio::test(start_paused = true)]
async fn image_pull_refused_fails_without_parking() {
    let rig = rig().await;
    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::Prepare, 0), FaultEffect::Fail(FailureKind::Refused));
    let began = Instant::now();
    let finished = verdict(rig.run().await);
    let error = finished.record.verdict.error.expect("it failed");
    assert_eq!(error.code, ErrorCode::REFUSED);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(rig.phases.parked(), []);
}

#[tokio::test(start_paused = true)]
async fn outage_beyond_max_park_fails_with_type_of_phase() {
    let rig = rig().await;
    rig.provider
        .fault(FaultTrigger::Every(FakeCall::Prepare), FaultEffect::Fail(FailureKind::Unreachable));
    let began = Instant::now();
    let finished = verdict(rig.run().await);
    let error = finished.record.verdict.error.expect("it failed");
    assert_eq!(error.kind, ErrorType::EnvironmentImagePullFailed);
    assert_eq!((&error.code, error.class), (&ErrorCode::UNREACHABLE, ErrorClass::Infrastructure));
    assert!(error.is_retryable() && error.message.contains("gave no answer for 900s"), "{error}");
    assert!(began.elapsed() >= MAX_PARK && began.elapsed() < MAX_PARK * 2);
}

#[tokio::test(start_paused = true)]
async fn agent_lost_in_engine_outage_runs_again() {
    let mut rig = rig().await;
    let (engine, dependency) = with_engine(&mut rig);
    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::Exec, 1), FaultEffect::Fail(FailureKind::Unreachable));
    engine.away.store(true, Ordering::Relaxed);
    let back = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        engine.away.store(false, Ordering::Relaxed);
        std::future::pending::<()>().await;
    };
    let finished = tokio::select! {
        finished = rig.run() => verdict(finished),
        () = back => unreachable!("it never ends"),
    };
    assert_eq!(finished.record.verdict.reward, Some(1.0), "{:?}", finished.record.verdict);
    assert_eq!(dependency.outages(), 1);
    assert_eq!(rig.phases.parked(), [Some(Kind::ContainerEngine), None]);
    assert_eq!(count(&rig, FakeCall::Create), 2);
    assert_eq!(rig.provider.leaked(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn agent_finds_later_end_in_file_after_engine_outage() {
    let mut rig = rig().await;
    let (engine, dependency) = with_engine(&mut rig);
    rig.task.steps[0].agent.timeout_sec = Some(120.0);
    let script = "echo $ROLLOUT_DEADLINE; cat $ROLLOUT_LIMITS; sleep 150; cat $ROLLOUT_LIMITS";
    rig.set_scripts(None, Some(script));
    let outage = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        engine.away.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60)).await;
        engine.away.store(false, Ordering::Relaxed);
        std::future::pending::<()>().await;
    };
    let finished = tokio::select! {
        finished = rig.run() => verdict(finished),
        () = outage => unreachable!("it never ends"),
    };
    assert_eq!(dependency.outages(), 1);
    assert_eq!(finished.record.verdict.reward, Some(1.0), "{:?}", finished.record.verdict);
    let printed = output(&finished, "command/stdout.txt");
    let numbers: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [variable, first, last] = numbers.as_slice() else { panic!("{printed}") };
    assert_eq!((&first["deadline"], &first["timeout_sec"]), (variable, &120.0.into()));
    let moved = last["deadline"].as_i64().zip(variable.as_i64()).map(|(last, first)| last - first);
    // The outage is counted from the last answer before it until the first one after it.
    assert!(moved.is_some_and(|sec| (60..=65).contains(&sec)), "{printed}");
}

#[tokio::test(start_paused = true)]
async fn agent_failure_without_outage_is_not_retried() {
    let mut rig = rig().await;
    with_engine(&mut rig);
    rig.set_scripts(None, Some("exit 3"));
    let finished = verdict(rig.run().await);
    let error = finished.record.verdict.error.expect("it failed");
    assert_eq!((error.kind, error.class), (ErrorType::AgentExecutionFailed, ErrorClass::Agent));
    assert_eq!(count(&rig, FakeCall::Create), 1);
}

#[tokio::test(start_paused = true)]
async fn teardown_during_engine_outage_keeps_reward() {
    let mut rig = rig().await;
    let (engine, dependency) = with_engine(&mut rig);
    for nth in 0..3 {
        rig.provider.fault(
            FaultTrigger::Nth(FakeCall::Destroy, nth),
            FaultEffect::Fail(FailureKind::Unreachable),
        );
    }
    let outage = async {
        while count(&rig, FakeCall::Destroy) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        engine.away.store(true, Ordering::Relaxed);
        dependency.mark_failed("it is away");
        tokio::time::sleep(Duration::from_secs(60)).await;
        engine.away.store(false, Ordering::Relaxed);
        std::future::pending::<()>().await;
    };
    let finished = tokio::select! {
        finished = rig.run() => verdict(finished),
        () = outage => unreachable!("it never ends"),
    };
    let found = finished.record.verdict;
    assert_eq!((found.outcome, found.reward), (ItemOutcome::Completed, Some(1.0)));
    assert_eq!(found.error, None);
    assert_eq!(rig.provider.leaked(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn parked_execution_stopped_ends_promptly() {
    let rig = rig().await;
    rig.provider
        .fault(FaultTrigger::Every(FakeCall::Prepare), FaultEffect::Fail(FailureKind::Unreachable));
    let stop = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        rig.stop.send_replace(Some(StopLevel::Drain));
        std::future::pending::<()>().await;
    };
    let began = Instant::now();
    let finished = tokio::select! {
        finished = rig.run() => finished,
        () = stop => unreachable!("it never ends"),
    };
    assert!(finished.stopped.is_some() && is_bare(&finished));
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// A slot that counts how often it was given up and taken again.
#[derive(Debug, Default)]
struct CountedSlot {
    must_be_kept: bool,
    releases: AtomicUsize,
    reacquisitions: AtomicUsize,
}

#[async_trait]
impl Slot for CountedSlot {
    fn release(&self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }

    async fn reacquire(&self) {
        self.reacquisitions.fetch_add(1, Ordering::Relaxed);
    }

    fn must_be_kept(&self) -> bool {
        self.must_be_kept
    }
}

#[tokio::test(start_paused = true)]
async fn parked_execution_gives_up_slot_unless_it_must_be_kept() {
    for (must_be_kept, times) in [(false, 1), (true, 0)] {
        let rig = rig().await;
        let effect = FaultEffect::Fail(FailureKind::Unreachable);
        rig.provider.fault(FaultTrigger::Nth(FakeCall::Prepare, 0), effect);
        let slot = Arc::new(CountedSlot { must_be_kept, ..CountedSlot::default() });
        let mut context = rig.context();
        context.execution.slot = slot.clone();
        let finished = verdict(super::super::run(context, &rig.services()).await);
        assert_eq!(finished.record.verdict.reward, Some(1.0), "{:?}", finished.record.verdict);
        let counts = [&slot.releases, &slot.reacquisitions].map(|n| n.load(Ordering::Relaxed));
        assert_eq!(counts, [times; 2], "must be kept: {must_be_kept}");
    }
}
