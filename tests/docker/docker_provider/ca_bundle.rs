//! The CA bundle of a host in builds and in services.

use rollout_docker::{DockerOptions, DockerProvider};
use rollout_environment::{CaBundle, FailureKind, Provider as _};
use rollout_tests::engine_proxy::EngineProxy;

use crate::docker_provider::builds::{builder, run_in_image};
use crate::docker_provider::compose::{created, open_with, request};
use crate::docker_provider::fixture::{BASE, DockerFixture, destroy, output};

fn bundle() -> CaBundle {
    CaBundle::new("certificates\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn ca_bundle_reaches_commands_of_build_and_stays_out_of_image() {
    let Some(lab) = DockerFixture::open().await else { return };
    let provider = lab.provider_with_bundle(bundle());
    let dockerfile = format!(
        "FROM {BASE} AS first\nRUN cat \"$SSL_CERT_FILE\" > /first\nFROM {BASE}\n\
         COPY --from=first /first /\nENV PIP_CERT=/own.pem\nUSER nobody\n\
         RUN echo $PIP_CERT > /tmp/second && \\\n  cat /rollout/ca-bundle.pem >> /tmp/second\n\
         USER root\n"
    );
    let source = lab.context(&[("Dockerfile", &dockerfile)]);
    let image = provider.prepare(lab.image_request(&source)).await;
    let image = image.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    // In an environment of a provider without a bundle.
    let script = "cat /first /tmp/second; cat /rollout/ca-bundle.pem 2>/dev/null; \
                  echo \"[$SSL_CERT_FILE]\"";
    let said = run_in_image(&lab, &image, script).await;
    assert_eq!(said, "certificates\n/own.pem\ncertificates\n[]\n");

    let source = lab.context(&[("Dockerfile", &format!("FROM {BASE}\nRUN exit 3\n"))]);
    let failure = provider.prepare(lab.image_request(&source)).await.expect_err("it fails");
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(failure.message.contains("RUN exit 3` failed: exit code 3"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn classic_builder_builds_without_the_ca_bundle() {
    let Some(lab) = DockerFixture::open().await else { return };
    let proxy = EngineProxy::lacking("/session", &lab.scratch.path().join("engine.sock"));
    let provider = DockerProvider::new(DockerOptions {
        host: Some(proxy.host()),
        ca_bundle: Some(bundle()),
        ..DockerOptions::new(lab.scratch.path().join("locks"))
    });
    let lines = format!("FROM {BASE}\nRUN echo \"[$SSL_CERT_FILE]\" > /said\n");
    let source = lab.context(&[("Dockerfile", &lines)]);
    let image = provider.prepare(lab.image_request(&source)).await.expect("built");
    assert_eq!(builder(&image), "classic");
    assert_eq!(run_in_image(&lab, &image, "cat /said").await, "[]\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_have_the_ca_bundle_unless_they_name_another_or_take_no_files() {
    let Some(lab) = open_with(|options| options.ca_bundle = Some(bundle())).await else { return };
    let compose = format!(
        "services:\n  main:\n    environment: {{PIP_CERT: /own.pem}}\n  db:\n    image: {BASE}\n    \
         command: [sleep, infinity]\n    environment: {{CURL_CA_BUNDLE: ''}}\n  fixed:\n    \
         image: {BASE}\n    command: [sleep, infinity]\n    read_only: true\n"
    );
    let dockerfile = format!("FROM {BASE}\n");
    let files = [("Dockerfile", dockerfile.as_str()), ("docker-compose.yaml", compose.as_str())];
    let request = request(&lab, &files).await.expect("prepared");
    let image = request.image.clone();
    let environment = created(&lab, request).await;
    let service = |name: &str| environment.service(name).expect("a service");
    let script =
        "echo \"$PIP_CERT,$CURL_CA_BUNDLE,$SSL_CERT_FILE\"; cat /rollout/ca-bundle.pem || :";
    let path = CaBundle::PATH;
    let of_main = output(environment.as_ref(), script).await;
    assert_eq!(of_main, format!("/own.pem,{path},{path}\ncertificates\n"));
    let of_db = output(service("db"), script).await;
    assert_eq!(of_db, format!("{path},,{path}\ncertificates\n"));
    assert_eq!(output(service("fixed"), script).await, ",,\n");
    destroy(environment).await;
    lab.remove_image(&image).await;
}
