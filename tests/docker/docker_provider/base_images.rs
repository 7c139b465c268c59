//! Base images whose tag moves to another digest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bollard::auth::DockerCredentials;
use bollard::query_parameters::{
    CreateImageOptions, PushImageOptions, RemoveImageOptions, TagImageOptions,
};
use futures_util::StreamExt as _;
use rollout_docker::DockerProvider;
use rollout_environment::{
    BaseDigests, Failure, FailureKind, Image, ImageRequest, ImageSource, Provider,
};
use rollout_protocol::id::RunId;
use rollout_protocol::spec::environment::{DockerSettings, ProviderSpec};
use rollout_tests::docker::DockerEngine;
use rollout_tests::ignored::or_ignored;

use crate::docker_provider::fixture::{DockerFixture, destroy, output};

/// The digests chosen by a run, in memory.
#[derive(Debug, Default)]
struct MemoryBaseDigests(Mutex<BTreeMap<String, String>>);

#[async_trait]
impl BaseDigests for MemoryBaseDigests {
    async fn chosen_digest(&self, image: &str) -> Result<Option<String>, Failure> {
        Ok(self.0.lock().expect("not poisoned").get(image).cloned())
    }

    async fn choose_digest(&self, image: &str, digest: String) -> Result<String, Failure> {
        let mut kept = self.0.lock().expect("not poisoned");
        Ok(kept.entry(image.to_owned()).or_insert(digest).clone())
    }
}

/// Pushes an image that contains `version` to a registry name, and removes it from the engine.
async fn publish(lab: &DockerFixture, name: &str, version: &str) {
    let image = lab.build(&format!("RUN echo {version} > /version")).await;
    let (repo, tag) = name.rsplit_once(':').expect("a tag");
    let options = TagImageOptions { repo: Some(repo.to_owned()), tag: Some(tag.to_owned()) };
    lab.docker.tag_image(&image.reference, Some(options)).await.expect("tagged");
    let options = PushImageOptions { tag: Some(tag.to_owned()), ..Default::default() };
    let mut push = lab.docker.push_image(repo, Some(options), Some(DockerCredentials::default()));
    while let Some(step) = push.next().await {
        step.expect("pushed");
    }
    lab.remove_image(&Image::found(name)).await;
    lab.remove_image(&image).await;
}

async fn prepare_for_run(
    lab: &DockerFixture,
    provider: &DockerProvider,
    source: &ImageSource,
    run: u8,
) -> Result<Image, Failure> {
    let mut request = lab.image_request(source);
    request.labels.run = RunId::from_bytes([run; 16]);
    provider.prepare(request).await
}

async fn version(lab: &DockerFixture, image: &Image) -> String {
    let environment = lab.create(image.clone(), Vec::new()).await;
    let said = output(environment.as_ref(), "cat /version").await;
    destroy(environment).await;
    said.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn base_image_changed_is_used_by_next_run_only() {
    let Some(lab) = DockerFixture::open().await else { return };
    let Some(registry) = or_ignored(DockerEngine::registry()) else { return };
    let base = format!("{registry}/rollout-base-{}:1", std::process::id());
    publish(&lab, &base, "one").await;
    let source =
        lab.context(&[("Dockerfile", &format!("ARG BASE={base}\nFROM $BASE\nRUN true\n"))]);
    let kept = Arc::new(MemoryBaseDigests::default());
    let run = |number: u8| RunId::from_bytes([number; 16]);
    lab.provider.set_base_digests(run(1), Arc::clone(&kept) as _);
    let first = prepare_for_run(&lab, &lab.provider, &source, 1).await.expect("built");
    assert_eq!((first.made, version(&lab, &first).await.as_str()), (true, "one"));
    let bases = &first.build.as_ref().expect("it is known").bases;
    assert!(bases[&base].starts_with("sha256:"), "{bases:?}");

    publish(&lab, &base, "two").await;
    let again = prepare_for_run(&lab, &lab.provider, &source, 1).await.expect("found");
    assert_eq!((again.made, &again.reference), (false, &first.reference));
    // Another worker that joins the run and has neither the image nor its layers.
    lab.remove_image(&first).await;
    let other_provider = lab.another_provider();
    other_provider.set_base_digests(run(1), Arc::clone(&kept) as _);
    let built = prepare_for_run(&lab, &other_provider, &source, 1).await.expect("built by digest");
    assert_eq!((built.made, &built.reference), (true, &first.reference));
    assert_eq!(version(&lab, &built).await, "one");

    let second = prepare_for_run(&lab, &other_provider, &source, 2).await.expect("built again");
    assert!(second.made && second.reference != first.reference, "{second:?}");
    assert_eq!(version(&lab, &second).await, "two");
    for image in [&built, &second] {
        lab.remove_image(image).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn base_image_of_host_is_identified_by_id() {
    let Some(lab) = DockerFixture::open().await else { return };
    let name = format!("rollout-local-base-{}:1", std::process::id());
    let source = lab.context(&[("Dockerfile", &format!("FROM {name}\nRUN true\n"))]);
    let mut made = Vec::new();
    for (run, said) in [(1, "one"), (2, "two")] {
        let image = lab.build(&format!("RUN echo {said} > /version")).await;
        let (repo, tag) = name.rsplit_once(':').expect("a tag");
        let options = TagImageOptions { repo: Some(repo.to_owned()), tag: Some(tag.to_owned()) };
        lab.docker.tag_image(&image.reference, Some(options)).await.expect("tagged");
        let built = prepare_for_run(&lab, &lab.provider, &source, run).await.expect("built");
        assert_eq!((built.made, version(&lab, &built).await.as_str()), (true, said));
        let bases = &built.build.as_ref().expect("it is known").bases;
        assert!(bases[&name].starts_with("local:sha256:"), "{bases:?}");
        made.extend([image, built]);
    }
    made.push(Image::found(name));
    for image in &made {
        let options = RemoveImageOptions { force: true, ..Default::default() };
        lab.docker.remove_image(&image.reference, Some(options), None).await.expect("removed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn base_image_digest_of_other_repository_is_local() {
    let Some(lab) = DockerFixture::open().await else { return };
    let Some(registry) = or_ignored(DockerEngine::registry()) else { return };
    let name = format!("rollout-pushed-base-{}:1", std::process::id());
    let pushed = format!("{registry}/{name}");
    publish(&lab, &pushed, "one").await;
    let context = |base: &str| lab.context(&[("Dockerfile", &format!("FROM {base}\nRUN true\n"))]);
    let source = context(&pushed);
    let pulled = prepare_for_run(&lab, &lab.provider, &source, 1).await.expect("built");
    let mut pull = lab.docker.create_image(
        Some(CreateImageOptions { from_image: Some(pushed.clone()), ..Default::default() }),
        None,
        None,
    );
    while let Some(step) = pull.next().await {
        step.expect("pulled");
    }
    let (repo, tag) = name.rsplit_once(':').expect("a tag");
    let options = TagImageOptions { repo: Some(repo.to_owned()), tag: Some(tag.to_owned()) };
    lab.docker.tag_image(&pushed, Some(options)).await.expect("tagged");
    let source = context(&name);
    let built = prepare_for_run(&lab, &lab.provider, &source, 1).await.expect("built");
    assert_eq!(version(&lab, &built).await, "one");
    let bases = &built.build.as_ref().expect("it is known").bases;
    assert!(bases[&name].starts_with("local:sha256:"), "{bases:?}");
    for image in [pulled, built, Image::found(name), Image::found(pushed)] {
        lab.remove_image(&image).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn base_image_built_before_registry_outage_is_reused() {
    let Some(lab) = DockerFixture::open().await else { return };
    let Some(registry) = or_ignored(DockerEngine::registry()) else { return };
    // A proxy to the registry that can be closed.
    let proxy = crate::docker_provider::closable_proxy::ClosableProxy::open(&registry).await;
    let base = format!("{}/rollout-away-{}:1", proxy.address(), std::process::id());
    publish(&lab, &base, "one").await;
    let source = lab.context(&[("Dockerfile", &format!("FROM {base}\nRUN true\n"))]);
    let first = prepare_for_run(&lab, &lab.provider, &source, 1).await.expect("built");
    drop(proxy);
    let later = prepare_for_run(&lab, &lab.provider, &source, 2).await.expect("found");
    assert_eq!((later.made, &later.reference), (false, &first.reference));
    lab.remove_image(&first).await;
    let failure =
        prepare_for_run(&lab, &lab.provider, &source, 3).await.expect_err("no base is left");
    assert_eq!(failure.kind, FailureKind::Unreachable, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn image_of_guarded_build_is_reused_in_registry_outage() {
    let Some(lab) = DockerFixture::open().await else { return };
    let Some(registry) = or_ignored(DockerEngine::registry()) else { return };
    let proxy = crate::docker_provider::closable_proxy::ClosableProxy::open(&registry).await;
    let repository = format!("{}/rollout-guarded-{}", proxy.address(), std::process::id());
    let base = format!("{repository}:1");
    publish(&lab, &base, "one").await;
    let source = lab.context(&[("Dockerfile", &format!("FROM {base}\nRUN true\n"))]);
    let prepare = |run: u8| {
        let settings = DockerSettings { guards_builds: true, ..lab.settings.clone() };
        let mut request = lab.image_request(&source);
        request.settings = ProviderSpec::Docker(settings);
        request.labels.run = RunId::from_bytes([run; 16]);
        lab.provider.prepare(request)
    };
    let first = prepare(1).await.expect("built");
    // The image of a build that was not checked is another one.
    let other = prepare_for_run(&lab, &lab.provider, &source, 1).await.expect("built");
    assert_ne!(other.reference, first.reference);
    drop(proxy);
    let later = prepare(2).await.expect("found");
    assert_eq!((later.made, &later.reference), (false, &first.reference));
    lab.remove_image(&first).await;
    let failure = prepare(3).await.expect_err("the base cannot be checked");
    assert_eq!(failure.kind, FailureKind::Unreachable, "{}", failure.chain());
    lab.remove_image(&other).await;
    let digest = &first.build.as_ref().expect("it is known").bases[&base];
    lab.remove_image(&Image::found(format!("{repository}@{digest}"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn base_image_whose_trigger_fetches_is_refused_if_builds_are_guarded() {
    let Some(lab) = DockerFixture::open().await else { return };
    let settings = DockerSettings { guards_builds: true, ..DockerSettings::default() };
    let settings = ProviderSpec::Docker(settings);
    for (trigger, refused) in [("ADD http://127.0.0.1:9/x /x", true), ("RUN true", false)] {
        let base = lab.build(&format!("ONBUILD {trigger}")).await;
        let source = lab.context(&[("Dockerfile", &format!("FROM {}\n", base.reference))]);
        let request = ImageRequest { settings: settings.clone(), ..lab.image_request(&source) };
        let built = lab.provider.prepare(request).await;
        assert_eq!(built.is_err(), refused, "{trigger}: {built:?}");
        match built {
            Ok(image) => lab.remove_image(&image).await,
            Err(failure) => {
                assert_eq!(failure.kind, FailureKind::Refused);
                assert!(failure.message.contains("ONBUILD ADD http://"), "{}", failure.message);
            }
        }
        lab.remove_image(&base).await;
    }
}
