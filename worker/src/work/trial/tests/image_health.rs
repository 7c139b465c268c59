//! The healthcheck of an image, which decides when the agent starts unless the task does.

use std::time::Duration;

use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_environment::{FailureKind, ImageHealthcheck, OwnHealthcheck, time_limit};
use rollout_protocol::record::{StartWait, StartWaitEnd};
use rollout_protocol::spec::task::Healthcheck;

use super::super::testing::{TrialFixture, image_check};
use super::{error, error_summary, run};

async fn with(own: OwnHealthcheck) -> TrialFixture {
    let rig = TrialFixture::new().await;
    // Without the check it would be observed.
    rig.provider.run_own_programs("until=settled waited=120 processes=2 sockets=1");
    rig.provider.set_own_healthcheck(own);
    rig
}

/// The wait for the environment of a trial that must pass.
async fn start_wait(rig: &TrialFixture) -> Option<StartWait> {
    let finished = run(rig).await;
    assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
    finished.record.environment.expect("one was created").start_wait
}

#[tokio::test(start_paused = true)]
async fn healthcheck_of_image_is_waited_for_and_recorded() {
    let rig = with(OwnHealthcheck::OfImage(image_check("test -e /ready"))).await;
    let becoming_ready = async {
        tokio::time::sleep(Duration::from_millis(6500)).await;
        rig.provider.write_file("/ready", b"");
    };
    let (wait, ()) = tokio::join!(start_wait(&rig), becoming_ready);
    let wait = wait.expect("a wait");
    let observed = (wait.processes, wait.sockets);
    assert_eq!((wait.until, observed), (StartWaitEnd::Healthcheck, (None, None)));
    assert!((1.0..9.0).contains(&wait.waited_sec), "{wait:?}");
    let command = ["sh", "-c", "test -e /ready"].map(str::to_owned);
    let limited = time_limit::limited(&command, Duration::from_secs(30));
    assert_eq!(rig.provider.commands()[0].argv, limited);
}

#[tokio::test(start_paused = true)]
async fn healthcheck_of_image_that_fails_is_environment_start_error() {
    let forever = ImageHealthcheck {
        start_period: Duration::from_secs(9000),
        start_interval: Some(Duration::from_secs(20)),
        ..image_check("exit 7")
    };
    for (check, seconds, words) in [
        (
            image_check("exit 7"),
            90.0,
            "the HEALTHCHECK of the image failed 3 times in a row: it ended",
        ),
        (image_check("sleep 1000"), 181.0, "it exceeded its time limit of 30s"),
        (forever, 480.0, "the HEALTHCHECK of the image did not succeed in 480s"),
    ] {
        let rig = with(OwnHealthcheck::OfImage(check)).await;
        let finished = run(&rig).await;
        let summary = error_summary(error(&finished));
        assert_eq!(summary, "environment_start_failed unhealthy task permanent");
        let message = &error(&finished).message;
        assert!(message.contains(words) && message.contains("start_grace_sec"), "{message}");
        let took = finished.record.durations.total_sec;
        assert!((seconds..seconds + 1.5).contains(&took), "{words} {took}");
    }
}

#[tokio::test(start_paused = true)]
async fn healthcheck_of_image_yields_to_the_wait_that_the_task_names() {
    let mut rig = with(OwnHealthcheck::OfImage(image_check("exit 7"))).await;
    rig.task.environment.start_grace_sec = Some(2.5);
    assert_eq!(start_wait(&rig).await.map(|wait| wait.until), Some(StartWaitEnd::Grace));
    rig.task.environment.start_grace_sec = Some(0.0);
    assert_eq!(start_wait(&rig).await, None);
    rig.task.environment.start_grace_sec = None;
    rig.task.environment.healthcheck = Some(Healthcheck {
        command: "echo".to_owned(),
        interval_sec: 5.0,
        timeout_sec: 30.0,
        start_period_sec: 0.0,
        start_interval_sec: 1.0,
        retries: 3,
    });
    let wait = start_wait(&rig).await.expect("a wait");
    assert_eq!(wait.until, StartWaitEnd::Healthcheck);
    assert!(wait.waited_sec < 1.0, "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn healthcheck_of_compose_file_that_was_awaited_is_recorded_and_not_repeated() {
    let rig = with(OwnHealthcheck::Awaited(Duration::from_millis(12_500))).await;
    let waited = StartWait {
        until: StartWaitEnd::Healthcheck,
        waited_sec: 12.5,
        processes: None,
        sockets: None,
    };
    assert_eq!(start_wait(&rig).await, Some(waited));
}

#[tokio::test(start_paused = true)]
async fn environment_that_ends_while_its_image_is_checked_has_not_started() {
    let rig = with(OwnHealthcheck::OfImage(image_check("exit 7"))).await;
    rig.provider.end_by_own_programs();
    let every = FaultTrigger::Every(FakeCall::Exec);
    rig.provider.fault(every, FaultEffect::Fail(FailureKind::NotStarted));
    let summary = error_summary(error(&run(&rig).await));
    assert_eq!(summary, "environment_start_failed exec_not_started infrastructure transient");
}
