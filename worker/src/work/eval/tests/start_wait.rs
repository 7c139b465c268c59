//! The wait for programs that an environment of an eval runs by itself.

use std::time::Duration;

use rollout_environment::fake::FakeCall;
use rollout_environment::{ImageHealthcheck, OwnHealthcheck};
use rollout_protocol::error::{ErrorCode, ErrorType};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EnvironmentRecord, EvalEnd, EvalRecord, StartWait, StartWaitEnd};
use rollout_protocol::wire::control::StopLevel;

use super::runs::{EvalFixture, command, failed};
use super::sweep_environment::{assert_completed, sweep_environment_fixture};
use crate::work::trial::testing::image_check;

/// An eval whose first command needs a service that the environment starts by itself.
async fn with_service(takes: Duration) -> EvalFixture {
    let mut eval = EvalFixture::new().await;
    eval.spec.commands.implement = command("test -e /ready; echo 2 > value");
    eval.rig.provider.start_own_service("/ready", takes);
    eval
}

/// The wait in the record of an environment that must be there.
fn wait_of(environment: Option<&EnvironmentRecord>) -> Option<StartWait> {
    environment.expect("an environment").start_wait
}

/// The end of the wait of an eval that must succeed.
async fn completed_wait(eval: &mut EvalFixture) -> Option<StartWaitEnd> {
    let record = eval.run().await;
    assert_completed(&record);
    wait_of(record.environment.as_ref()).map(|wait| wait.until)
}

fn execs(eval: &EvalFixture) -> usize {
    eval.rig.provider.calls().iter().filter(|call| **call == FakeCall::Exec).count()
}

async fn assert_waits_for_service(seconds: f64) {
    let mut eval = with_service(Duration::from_secs_f64(seconds)).await;
    let record = eval.run().await;
    assert_completed(&record);
    let wait = wait_of(record.environment.as_ref()).expect("a wait");
    let observed = (wait.until, wait.processes, wait.sockets);
    assert_eq!(observed, (StartWaitEnd::Settled, Some(2), Some(1)), "{seconds}");
    let setup = record.durations.environment_setup_sec.expect("it was set up");
    assert!(setup >= seconds, "{setup} {seconds}");
}

#[tokio::test]
async fn eval_begins_after_service_of_its_environment() {
    tokio::join!(
        assert_waits_for_service(0.2),
        assert_waits_for_service(1.5),
        assert_waits_for_service(4.0)
    );
}

#[tokio::test]
async fn eval_without_programs_of_its_environment_waits_for_nothing() {
    let mut without = EvalFixture::new().await;
    assert_eq!(completed_wait(&mut without).await, None);
    // The ENTRYPOINT only runs its command.
    let mut idle = EvalFixture::new().await;
    idle.rig.provider.run_own_programs("until=idle waited=0 processes=0 sockets=0");
    assert_eq!(completed_wait(&mut idle).await, Some(StartWaitEnd::Idle));
    assert_eq!(execs(&idle), execs(&without) + 1, "one observation");
}

#[tokio::test]
async fn separate_sweep_begins_after_service_of_its_own_environment() {
    let mut eval = sweep_environment_fixture().await;
    eval.rig.provider.start_own_service("/ready", Duration::from_millis(300));
    let sweep = &mut eval.spec.commands.sweep.script;
    *sweep = format!("test -e /ready\n{sweep}");
    let own = eval.spec.sweep_environment.as_mut().expect("one");
    own.environment.start_grace_sec = Some(0.5);
    let record = eval.run().await;
    assert_completed(&record);
    let made = [record.environment.as_ref(), record.sweep_environment.as_deref()];
    let ends = made.map(|environment| wait_of(environment).map(|wait| wait.until));
    assert_eq!(ends, [Some(StartWaitEnd::Settled), Some(StartWaitEnd::Grace)]);
}

#[tokio::test]
async fn eval_begins_when_healthcheck_of_its_image_succeeds() {
    let mut eval = with_service(Duration::from_millis(1500)).await;
    let check = OwnHealthcheck::OfImage(image_check("test -e /ready"));
    eval.rig.provider.set_own_healthcheck(check);
    let record = eval.run().await;
    assert_completed(&record);
    let wait = wait_of(record.environment.as_ref()).expect("a wait");
    assert_eq!((wait.until, wait.processes), (StartWaitEnd::Healthcheck, None));
    assert!(wait.waited_sec > 1.0, "{wait:?}");
}

/// An eval whose image has a HEALTHCHECK that fails twice and then counts.
async fn unhealthy() -> EvalFixture {
    let eval = with_service(Duration::from_millis(200)).await;
    let moment = Duration::from_millis(10);
    let check = ImageHealthcheck { interval: moment, retries: 2, ..image_check("exit 7") };
    eval.rig.provider.set_own_healthcheck(OwnHealthcheck::OfImage(check));
    eval
}

#[tokio::test]
async fn eval_with_failed_healthcheck_of_its_image_runs_no_command() {
    let mut eval = unhealthy().await;
    let record = eval.run().await;
    let (kind, code, message) = failed(&record);
    assert_eq!((kind, code), (ErrorType::EnvironmentStartFailed, &ErrorCode::UNHEALTHY));
    let words = "the HEALTHCHECK of the image failed 2 times in a row: it ended with code 7; the \
                 CMD of the image does not run here: a start_grace_sec of the environment replaces this \
                 wait; a program of its ENTRYPOINT runs";
    assert!(message.contains(words), "{message}");
    let error = record.error.as_ref().expect("an error");
    assert_eq!(error.phase, Phase::EnvironmentSetup, "it says nothing about the idea");
    assert_eq!((record.commands.len(), wait_of(record.environment.as_ref())), (0, None));
    assert_eq!(eval.rig.provider.existing(), Vec::<String>::new());
}

#[tokio::test]
async fn start_grace_of_eval_replaces_healthcheck_of_its_image() {
    let mut eval = unhealthy().await;
    eval.spec.environment.start_grace_sec = Some(0.5);
    assert_eq!(completed_wait(&mut eval).await, Some(StartWaitEnd::Grace));
    eval.spec.environment.start_grace_sec = Some(0.0);
    eval.spec.commands.implement = command("echo 2 > value");
    assert_eq!(completed_wait(&mut eval).await, None);
}

#[tokio::test]
async fn environment_of_eval_that_its_own_programs_end_has_not_started() {
    let mut eval = EvalFixture::new().await;
    eval.rig.provider.end_by_own_programs();
    let record = eval.run().await;
    let (kind, code, _) = failed(&record);
    assert_eq!((kind, code), (ErrorType::EnvironmentStartFailed, &ErrorCode::EXEC_NOT_STARTED));
    assert!(record.error.as_ref().is_some_and(|error| error.is_retryable()), "{record:?}");
}

#[tokio::test]
async fn stop_while_eval_waits_leaves_no_environment_but_its_record() {
    let mut eval = with_service(Duration::from_secs(1000)).await;
    let (provider, stop) = (eval.rig.provider.clone(), eval.rig.stop.clone());
    let stopping = async {
        while !provider.calls().contains(&FakeCall::Exec) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.send_replace(Some(StopLevel::Kill));
    };
    let (record, ()): (EvalRecord, ()) = tokio::join!(eval.run(), stopping);
    assert_eq!((record.end, record.commands.len()), (EvalEnd::Stopped, 0));
    assert!(record.environment.is_some());
    assert_eq!(provider.existing(), Vec::<String>::new());
}
