//! Containers: their settings, and failures to create or start them.

use std::time::{Duration, Instant};

use rollout_environment::{
    Environment, Failure, FailureKind, ImageHealthcheck, OwnHealthcheck, Provider as _, Upload,
};
use rollout_protocol::record::LimitEnforcement;
use rollout_protocol::spec::environment::DockerNetwork;
use rollout_protocol::spec::resources::Resources;

use crate::docker_provider::fixture::{
    DockerFixture, destroy, output, run, try_run, until, wait_for_script,
};

#[tokio::test(flavor = "multi_thread")]
async fn resources_beyond_host_are_resource_errors() {
    let Some(lab) = DockerFixture::open().await else { return };
    for resources in
        [Resources { cpus: 4000, ..lab.resources }, Resources { memory_mb: 4, ..lab.resources }]
    {
        let mut request = lab.request(lab.base(), Vec::new());
        request.resources = resources;
        let label = format!("dev.rollout.exec={}", request.labels.exec);
        let failure = lab.provider.create(request).await.expect_err("too much or too little");
        assert_eq!(failure.kind, FailureKind::Resources, "{}", failure.message);
        assert!(lab.containers(&label).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn container_has_limits_and_no_host_access() {
    let Some(mut lab) = DockerFixture::open().await else { return };
    lab.settings.network = DockerNetwork::None;
    let environment = lab.plain().await;
    let found = lab.docker.inspect_container(environment.id(), None).await.expect("there");
    let interfaces = output(environment.as_ref(), "ls /sys/class/net").await;
    let limits = environment.limits();
    destroy(environment).await;

    let host = found.host_config.expect("it has one");
    assert_eq!(host.nano_cpus, Some(1_000_000_000));
    assert_eq!(host.memory, Some(512 << 20));
    assert_eq!(host.memory_swap, host.memory);
    assert_eq!(host.pids_limit, Some(512));
    assert_eq!(host.network_mode.as_deref(), Some("none"));
    assert_eq!(host.security_opt, Some(vec!["no-new-privileges".to_owned()]));
    assert_ne!(host.privileged, Some(true));
    assert!(host.binds.unwrap_or_default().is_empty() && host.cap_add.is_none());
    assert!(host.devices.unwrap_or_default().is_empty());
    assert!(found.mounts.unwrap_or_default().is_empty());
    for mode in [host.pid_mode, host.uts_mode, host.ipc_mode, host.userns_mode] {
        assert_ne!(mode.as_deref(), Some("host"));
    }
    assert_eq!(interfaces, "lo\n");
    assert_eq!(
        (limits.cpus, limits.memory, limits.pids),
        (LimitEnforcement::Enforced, LimitEnforcement::Enforced, LimitEnforcement::Enforced)
    );
    assert_ne!(limits.storage, LimitEnforcement::No);
}

#[tokio::test(flavor = "multi_thread")]
async fn image_settings_are_kept() {
    let Some(lab) = DockerFixture::open().await else { return };
    let image = lab
        .build(
            "RUN mkdir -m 777 /w && printf '#!/bin/sh\\necho up > /tmp/entry; exec \"$@\"' > /entry \
             && chmod +x /entry\nENV COLOUR=blue\nWORKDIR /w/deep\nUSER 1234:1234\n\
             ENTRYPOINT [\"/entry\"]\nCMD [\"/bin/false\"]\nHEALTHCHECK --interval=1s CMD touch /tmp/ill",
        )
        .await;
    let open = |path: &str| Upload::Dir { path: path.to_owned() };
    let uploads = vec![open("/logs"), open("/logs/agent"), open("/logs/verifier")];
    let environment = lab.create(image.clone(), uploads).await;
    let container = environment.as_ref();
    assert_eq!(environment.workdir(), "/w/deep");
    let seen = output(container, "id -u; id -g; pwd; echo $COLOUR; cat /tmp/entry").await;
    assert_eq!(seen, "1234\n1234\n/w/deep\nblue\nup\n");
    output(container, "echo x > /logs/agent/x && mkdir /logs/verifier/y && echo z > /logs/z").await;

    output(container, "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' >/dev/null 2>&1 &")
        .await;
    let (id, name) = (environment.id().to_owned(), "sleep 1");
    container.kill_processes().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let top = lab.docker.top_processes(&id, None).await.expect("listed").processes;
    let top = format!("{top:?}");
    assert!(!top.contains("while :; do sleep 1"), "{name}: {top}");
    assert!(run(container, "test -e /tmp/ill").await.0 != 0, "the engine runs no health checks");
    let check = ImageHealthcheck {
        argv: ["/bin/sh", "-c", "touch /tmp/ill"].map(str::to_owned).to_vec(),
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(30),
        start_period: Duration::ZERO,
        start_interval: None,
        retries: 3,
    };
    assert_eq!(environment.own_healthcheck(), Some(OwnHealthcheck::OfImage(check)));
    destroy(environment).await;
    lab.remove_image(&image).await;
}

/// Runs commands until the container is found to have ended.
async fn wait_until_refused(environment: &dyn Environment) -> Failure {
    let mut refused = None;
    until("the container has ended", async || {
        refused = try_run(environment, "exit 0").await.err();
        refused.is_some()
    })
    .await;
    refused.expect("waited for")
}

#[tokio::test(flavor = "multi_thread")]
async fn entrypoint_that_exits_is_reported_with_output() {
    let Some(lab) = DockerFixture::open().await else { return };
    let image = lab.build("ENTRYPOINT [\"/bin/sh\", \"-c\", \"echo cannot begin; exit 4\"]").await;
    let request = lab.request(image.clone(), Vec::new());
    let failure = match lab.provider.create(request).await {
        Err(failure) => failure,
        Ok(environment) => {
            // It was still running at the check.
            let failure = wait_until_refused(environment.as_ref()).await;
            destroy(environment).await;
            failure
        }
    };
    lab.remove_image(&image).await;
    assert_eq!(failure.kind, FailureKind::NotStarted, "{}", failure.message);
    assert!(failure.message.contains("cannot begin"), "{}", failure.message);
    assert!(failure.message.contains("exited with code 4"), "{}", failure.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn create_cancelled_leaves_nothing() {
    let Some(lab) = DockerFixture::open().await else { return };
    for wait in [2, 60, 150] {
        let request = lab.request(lab.base(), Vec::new());
        let label = format!("dev.rollout.exec={}", request.labels.exec);
        let creating = lab.provider.create(request.clone());
        if let Ok(made) = tokio::time::timeout(Duration::from_millis(wait), creating).await {
            destroy(made.expect("created")).await;
            continue;
        }
        // The same execution may retry at once.
        if wait == 60 {
            destroy(lab.provider.create(request).await.expect("created")).await;
        }
        let mut seen = Instant::now();
        until("no container is left or appears", async || {
            if !lab.containers(&label).await.is_empty() {
                seen = Instant::now();
            }
            seen.elapsed() > Duration::from_millis(500)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn destroy_called_concurrently_succeeds() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    output(
        environment.as_ref(),
        "for d in 1 2 3 4 5 6 7 8; do mkdir /d$d; \
        for i in $(seq 500); do echo > /d$d/$i; done; done",
    )
    .await;
    let (a, b, c) =
        tokio::join!(environment.destroy(), environment.destroy(), environment.destroy());
    for result in [a, b, c, environment.destroy().await] {
        result.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_after_container_exit_are_readable() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    // The keep-alive process is killed too.
    let (code, _) = run(environment.as_ref(), "echo x > /x; kill -KILL -1; sleep 5").await;
    assert_eq!(code, 137);
    let failure = wait_until_refused(environment.as_ref()).await;
    assert_eq!(failure.kind, FailureKind::NotStarted, "{}", failure.message);
    assert!(environment.copy_from("/x").await.expect("readable").is_some());
    environment.kill_processes().await.expect("nothing lives");
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preserved_container_can_be_started_again() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    output(environment.as_ref(), "echo kept > /note").await;
    environment.stop().await.expect("stopped");
    let way_in = environment.preserve().await.expect("kept");
    assert_eq!(environment.preserve().await.expect("kept twice"), way_in);
    let name = way_in.split_whitespace().nth(2).expect("docker start NAME").to_owned();
    assert!(name.starts_with("rollout-kept-") && name.len() <= 63, "{name}");
    lab.docker.start_container(&name, None).await.expect("started again");
    wait_for_script(environment.as_ref(), "grep kept /note").await;
    destroy(environment).await;
}
