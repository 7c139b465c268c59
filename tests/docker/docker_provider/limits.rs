//! Resource limits.

use std::time::Duration;

use rollout_environment::FailureKind;
use rollout_protocol::record::LimitEnforcement;
use rollout_tests::ignored::report_ignored;

use crate::docker_provider::fixture::{DockerFixture, destroy, output, run, try_run, until};

#[tokio::test(flavor = "multi_thread")]
async fn memory_limit_exceeded_is_reported_as_oom() {
    let Some(mut lab) = DockerFixture::open().await else { return };
    lab.resources.memory_mb = 64;
    let environment = lab.plain().await;
    assert!(!environment.oom_killed().await);
    // Page cache does not count as memory.
    output(environment.as_ref(), "head -c 200000000 /dev/zero > /file").await;
    assert!(!environment.oom_killed().await);
    let (_, out) = run(environment.as_ref(), "tail /dev/zero; echo ended with $?").await;
    assert!(out.contains("ended with 137"), "{out}");
    until("the end is seen", async || environment.oom_killed().await).await;
    environment.stop().await.expect("stopped");
    assert!(environment.oom_killed().await, "not forgotten");
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_limit_exceeded_ends_container() {
    let interval = Duration::from_millis(200);
    let Some(mut lab) = DockerFixture::with_storage_interval(interval).await else { return };
    lab.resources.storage_mb = 50;
    let environment = lab.plain().await;
    let container = environment.as_ref();
    // Holes take no space.
    output(container, "truncate -s 10G /sparse; sleep 1").await;
    let flood = try_run(container, "head -c 100000000 /dev/zero > /big; sleep 1000").await;
    if environment.limits().storage == LimitEnforcement::Enforced {
        flood.expect("the disk was full for the program only");
    } else {
        let failure = flood.expect_err("it is ended");
        assert_eq!(failure.kind, FailureKind::StorageExceeded, "{}", failure.message);
        assert!(failure.message.contains("50 MiB are allowed"), "{}", failure.message);
        let failure = try_run(container, "exit 0").await.expect_err("it stays ended");
        assert_eq!(failure.kind, FailureKind::StorageExceeded, "{}", failure.message);
        container.kill_processes().await.expect("nothing lives");
        assert!(container.copy_from("/etc/hostname").await.expect("readable").is_some());
    }
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_check_counts_written_bytes_and_volumes() {
    // With this interval only explicit checks find the excess.
    let Some(mut lab) = DockerFixture::with_storage_interval(Duration::from_secs(600)).await else {
        return;
    };
    lab.resources.storage_mb = 50;
    let image =
        lab.build("RUN mkdir /data && head -c 60000000 /dev/zero > /data/own\nVOLUME /data").await;
    let environment = lab.create(image.clone(), Vec::new()).await;
    let container = environment.as_ref();
    if environment.limits().storage == LimitEnforcement::Measured {
        output(container, "truncate -s 10G /sparse; echo x > /data/x").await;
        container.check_storage().await.expect("holes and the image's own data do not count");
        output(container, "head -c 30000000 /dev/zero > /a").await;
        container.check_storage().await.expect("within the limit");
        output(container, "head -c 30000000 /dev/zero > /data/b").await;
        let failure = container.check_storage().await.expect_err("together too much");
        assert_eq!(failure.kind, FailureKind::StorageExceeded, "{}", failure.message);
        let failure = try_run(container, "exit 0").await.expect_err("it was ended");
        assert_eq!(failure.kind, FailureKind::StorageExceeded, "{}", failure.message);
    } else {
        report_ignored("needs an engine that does not limit storage itself");
    }
    destroy(environment).await;
    lab.remove_image(&image).await;
}
