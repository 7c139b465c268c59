//! Settings of a request besides the image: users, variables, a directory, devices, ceilings.

use std::sync::Arc;

use rollout_environment::{Environment, ExecCommand, FailureKind, Provider as _};
use rollout_protocol::record::LimitEnforcement;
use rollout_protocol::spec::resources::{ResourceCeilings, Resources};

use crate::docker_provider::fixture::{CommandOutput, DockerFixture, destroy, output, shell};

async fn as_user(environment: &dyn Environment, user: &str) -> String {
    let command = ExecCommand { user: Some(user.to_owned()), ..shell("id -u; id -g") };
    let printed = Arc::new(CommandOutput::default());
    let ended = environment.exec(command, printed.clone()).await;
    assert_eq!(ended.unwrap_or_else(|f| panic!("{user}: {}", f.chain())).code, 0);
    printed.stdout()
}

#[tokio::test(flavor = "multi_thread")]
async fn user_of_request_runs_commands() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let container = environment.as_ref();
    assert_eq!(as_user(container, "nobody").await, "65534\n65534\n");
    assert_eq!(as_user(container, "1234").await, "1234\n0\n");
    assert_eq!(as_user(container, "1234:mail").await, "1234\n8\n");
    for user in ["ghost", "root:ghosts"] {
        let command = ExecCommand { user: Some(user.to_owned()), ..shell("exit 0") };
        let refused = container.exec(command, Arc::new(CommandOutput::default())).await;
        let failure = refused.expect_err("there is none");
        assert_eq!(failure.kind, FailureKind::Refused, "{}", failure.message);
        assert!(failure.message.contains("ghost"), "{}", failure.message);
    }
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_settings_override_image() {
    let Some(lab) = DockerFixture::open().await else { return };
    let image = lab
        .build(
            "RUN printf '#!/bin/sh\\necho $COLOUR > /tmp/entry; exec \"$@\"' > /entry && \
             chmod +x /entry\nENV COLOUR=blue SHAPE=round\nWORKDIR /image\nENTRYPOINT [\"/entry\"]",
        )
        .await;
    let mut request = lab.request(image.clone(), Vec::new());
    request.env.insert("COLOUR".to_owned(), "red".to_owned());
    request.workdir = Some("/task/dir".to_owned());
    let environment = lab.provider.create(request).await.expect("created");
    assert_eq!(environment.workdir(), "/task/dir");
    let seen = output(environment.as_ref(), "pwd; echo $COLOUR $SHAPE; cat /tmp/entry").await;
    destroy(environment).await;
    lab.remove_image(&image).await;
    assert_eq!(seen, "/task/dir\nred round\nred\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_not_requested_are_not_set() {
    let Some(mut lab) = DockerFixture::open().await else { return };
    lab.resources = Resources { ceilings: ResourceCeilings::NONE, cpus: 4000, ..lab.resources };
    let environment = lab.plain().await;
    let found = lab.docker.inspect_container(environment.id(), None).await.expect("there");
    let limits = environment.limits();
    destroy(environment).await;
    let host = found.host_config.expect("it has one");
    assert_eq!((host.nano_cpus, host.memory, host.memory_swap), (Some(0), Some(0), Some(0)));
    assert!(host.storage_opt.unwrap_or_default().is_empty());
    assert_eq!(host.pids_limit, Some(512));
    assert_eq!(
        (limits.cpus, limits.memory, limits.storage),
        (LimitEnforcement::No, LimitEnforcement::No, LimitEnforcement::No)
    );
    assert_eq!(limits.pids, LimitEnforcement::Enforced);
}

#[tokio::test(flavor = "multi_thread")]
async fn gpu_request_is_granted_or_create_fails() {
    let Some(mut lab) = DockerFixture::open().await else { return };
    lab.resources.gpus = 1;
    let request = lab.request(lab.base(), Vec::new());
    let label = format!("dev.rollout.exec={}", request.labels.exec);
    match lab.provider.create(request).await {
        Ok(environment) => destroy(environment).await,
        Err(failure) => {
            assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.message);
            assert!(lab.containers(&label).await.is_empty());
        }
    }
}
