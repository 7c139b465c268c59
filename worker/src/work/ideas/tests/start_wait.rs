//! The wait for programs that the environment of a command for ideas runs by itself.

use rollout_environment::{ImageHealthcheck, OwnHealthcheck};
use rollout_protocol::record::StartWaitEnd;

use super::*;
use crate::work::trial::testing::image_check;

/// A command that needs a service that its environment starts by itself.
async fn with_service(takes: Duration) -> IdeasFixture {
    let bench = IdeasFixture::new("test -e /ready; echo x > /ideas/a.md").await;
    bench.rig.provider.start_own_service("/ready", takes);
    bench
}

/// The end of the wait of a command that must write ideas, and the seconds of its setup.
async fn wait_of(bench: &mut IdeasFixture) -> (Option<StartWaitEnd>, f64) {
    let record = bench.run().await;
    assert_eq!((record.end, &record.error), (IdeasEnd::Written, &None));
    let environment = record.environment.expect("an environment");
    let setup = record.durations.environment_setup_sec.expect("it was set up");
    (environment.start_wait.map(|wait| wait.until), setup)
}

async fn assert_waits_for_service(seconds: f64) {
    let mut bench = with_service(Duration::from_secs_f64(seconds)).await;
    let (end, setup) = wait_of(&mut bench).await;
    assert_eq!(end, Some(StartWaitEnd::Settled), "{seconds}");
    assert!(setup >= seconds, "{setup} {seconds}");
}

#[tokio::test]
async fn ideas_command_begins_after_service_of_its_environment() {
    tokio::join!(
        assert_waits_for_service(0.2),
        assert_waits_for_service(1.5),
        assert_waits_for_service(4.0)
    );
}

#[tokio::test]
async fn ideas_command_without_programs_of_its_environment_waits_for_nothing() {
    let mut without = IdeasFixture::new("echo x > /ideas/a.md").await;
    assert_eq!(wait_of(&mut without).await.0, None);
    // The ENTRYPOINT only runs its command.
    let mut idle = IdeasFixture::new("echo x > /ideas/a.md").await;
    idle.rig.provider.run_own_programs("until=idle waited=0 processes=0 sockets=0");
    assert_eq!(wait_of(&mut idle).await.0, Some(StartWaitEnd::Idle));
    let execs = |bench: &IdeasFixture| {
        bench.rig.provider.calls().iter().filter(|call| **call == FakeCall::Exec).count()
    };
    assert_eq!(execs(&idle), execs(&without) + 1, "one observation");
}

#[tokio::test]
async fn ideas_command_begins_when_healthcheck_of_its_image_succeeds_or_after_start_grace() {
    let mut bench = with_service(Duration::from_millis(300)).await;
    let check = image_check("test -e /ready");
    bench.rig.provider.set_own_healthcheck(OwnHealthcheck::OfImage(check));
    assert_eq!(wait_of(&mut bench).await.0, Some(StartWaitEnd::Healthcheck));

    let moment = Duration::from_millis(10);
    let check = ImageHealthcheck { interval: moment, retries: 2, ..image_check("exit 7") };
    bench.rig.provider.set_own_healthcheck(OwnHealthcheck::OfImage(check));
    let record = bench.run().await;
    let said =
        "ended with code 7; the CMD of the image does not run here: a start_grace_sec of the";
    assert!(message(&record).contains(said), "{record:?}");
    assert!(record.command.is_none() && record.environment.is_some());

    bench.spec.environment.start_grace_sec = Some(0.6);
    assert_eq!(wait_of(&mut bench).await.0, Some(StartWaitEnd::Grace));
}
