//! Environments with services of users of a server, who may not use the network of the engine's host.

use rollout_environment::{FailureKind, Provider as _};
use rollout_protocol::spec::environment::{DockerSettings, ProviderSpec};

use crate::docker_provider::compose::{labeled_objects, open, request};
use crate::docker_provider::fixture::BASE;

#[tokio::test(flavor = "multi_thread")]
async fn compose_with_chosen_addresses_is_refused_for_users_of_a_server() {
    let Some(lab) = open().await else { return };
    let ranges = "{config: [{subnet: 10.231.30.0/24}]}";
    let compose = format!(
        "services:\n  main: {{image: {BASE}, networks: [labels]}}\nnetworks: {{labels: {{ipam: \
         {ranges}}}}}\n"
    );
    let mut request = request(&lab, &[("docker-compose.yaml", &compose)]).await.expect("nothing");
    let settings = DockerSettings { guards_builds: true, ..lab.settings.clone() };
    request.settings = ProviderSpec::Docker(settings);
    let label = format!("dev.rollout.exec={}", request.labels.exec);
    let failure = lab.provider.create(request).await.expect_err(&compose);
    assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.chain());
    assert!(failure.message.contains("`labels`: `ipam`"), "{}", failure.message);
    assert!(labeled_objects(&lab, &label).await.is_empty());
}

/// The settings came to the worker without a server that checked the files.
#[tokio::test(flavor = "multi_thread")]
async fn compose_with_inner_images_is_refused_before_the_engine_is_asked() {
    let Some(lab) = open().await else { return };
    let chosen = "ARG BASE=debian\nFROM $BASE\n";
    let by_default = "ARG BASE\nARG A=${BASE:+debian}\nFROM ${A:-127.0.0.1:9/x}\n";
    for (service, dockerfile) in [
        ("image: 127.0.0.1:9/x", "FROM debian\n"),
        ("build: b", "FROM 127.0.0.1:9/x\n"),
        ("build: ./missing/../b", "FROM 127.0.0.1:9/x\n"),
        ("build: {context: b, dockerfile: x/../Dockerfile}", "FROM 127.0.0.1:9/x\n"),
        ("build: b", "FROM debian\nADD http://127.0.0.1:9/x /x\n"),
        ("build: b", "# syntax=127.0.0.1:9/x\nFROM debian\n"),
        ("build: {context: b, args: ['${Z:-BASE}=127.0.0.1:9/x']}", chosen),
        ("build: {context: b, args: ['BUILDKIT_SYNTA${Z:-X}=127.0.0.1:9/x']}", chosen),
        ("build: {context: b, args: {BASE: '${E}'}}", by_default),
    ] {
        let compose = format!("services:\n  main: {{image: {BASE}}}\n  db:\n    {service}\n");
        let files = [("docker-compose.yaml", compose.as_str()), ("b/Dockerfile", dockerfile)];
        let mut request = request(&lab, &files).await.expect("nothing to prepare");
        let settings = DockerSettings { guards_builds: true, ..lab.settings.clone() };
        request.settings = ProviderSpec::Docker(settings);
        let calls = lab.provider.calls();
        let prepared = lab.provider.prepare_services(&request).await.expect_err(service);
        let created = lab.provider.create(request).await.expect_err(service);
        assert_eq!(lab.provider.calls(), calls, "{service} {dockerfile}: {}", created.chain());
        for failure in [prepared, created] {
            let message = failure.chain();
            // Versions of the program disagree about `..`.
            let is_permanent =
                matches!(failure.kind, FailureKind::Refused | FailureKind::Unsupported);
            assert!(is_permanent, "{service} {dockerfile}: {message}");
            assert!(message.contains("service `db`: "), "{service} {dockerfile}: {message}");
            let scratch = lab.scratch.path().display().to_string();
            assert!(!message.contains(&scratch), "{message}");
        }
    }
}
