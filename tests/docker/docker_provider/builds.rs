//! Builds with BuildKit: its own features, and access that a Dockerfile must not get.

use std::sync::Arc;

use rollout_docker::{DockerOptions, DockerProvider};
use rollout_environment::{
    BuildProxies, FailureKind, Image, ImageRequest, ImageSource, Provider as _,
};
use rollout_tests::engine_proxy::EngineProxy;

use crate::docker_provider::fixture::{BASE, DockerFixture, destroy, output};

/// Runs a script in a temporary container of an image and returns its output.
pub(super) async fn run_in_image(lab: &DockerFixture, image: &Image, script: &str) -> String {
    let environment = lab.create(image.clone(), Vec::new()).await;
    let said = output(environment.as_ref(), script).await;
    destroy(environment).await;
    lab.remove_image(image).await;
    said
}

pub(super) fn builder(image: &Image) -> &str {
    image.build.as_ref().map_or("unknown", |build| &build.builder)
}

#[tokio::test(flavor = "multi_thread")]
async fn buildkit_instructions_are_supported() {
    let Some(lab) = DockerFixture::open().await else { return };
    let dockerfile = format!(
        "# syntax=127.0.0.1:1/no/frontend:1\nFROM {BASE} AS broken\nRUN exit 7\n\
         FROM {BASE}\nARG TARGETARCH\nCOPY --chmod=755 tool /usr/local/bin/\nCOPY a /a/\n\
         RUN --mount=type=cache,target=/cache echo kept > /cache/x; echo \"$TARGETARCH\" > /arch\n\
         RUN --mount=type=bind,source=a,target=/bound cp /bound/file /copied\n"
    );
    let files = [
        ("Dockerfile", dockerfile.as_str()),
        ("tool", "#!/bin/sh\necho ran\n"),
        ("a/file", "content\n"),
        ("a/empty", ""),
    ];
    let source = lab.context(&files);
    let ImageSource::Context { dir, .. } = &source else { unreachable!("a context") };
    std::os::unix::fs::symlink("file", dir.join("a/link")).expect("linked");
    let image = lab.provider.prepare(lab.image_request(&source)).await;
    let image = image.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert_eq!(builder(&image), "buildkit");
    let found = lab.provider.prepare(lab.image_request(&source)).await.expect("found");
    assert_eq!((found.made, builder(&found)), (false, "buildkit"), "the image records it");
    let script =
        "tool; cat /arch /copied; readlink /a/link; ls /cache 2>/dev/null; wc -c </a/empty";
    let said = run_in_image(&lab, &image, script).await;
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    assert_eq!(said, format!("ran\n{arch}\ncontent\nfile\n0\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn dockerfile_asking_for_host_access_fails() {
    let Some(lab) = DockerFixture::open().await else { return };
    for (instruction, reasons) in [
        ("RUN --mount=type=secret,id=key,required=true cat /run/secrets/key", ["secret", "key"]),
        ("RUN --mount=type=ssh ssh-add -l", ["ssh", "ssh"]),
        ("RUN --network=host true", ["network", "network"]),
        ("RUN --security=insecure true", ["security", "security"]),
        ("COPY ../../../../etc/passwd /", ["passwd", "not found"]),
    ] {
        let source = lab.context(&[("Dockerfile", &format!("FROM {BASE}\n{instruction}\n"))]);
        let failure =
            lab.provider.prepare(lab.image_request(&source)).await.expect_err(instruction);
        assert_eq!(failure.kind, FailureKind::Refused, "{instruction}: {}", failure.chain());
        for reason in reasons {
            assert!(failure.message.contains(reason), "{instruction}: {}", failure.message);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heredoc_builds_or_error_names_remedy() {
    let Some(lab) = DockerFixture::open().await else { return };
    let version = lab.docker.client_version();
    let knows = (version.major_version, version.minor_version) >= (1, 42);
    let text = format!(
        "FROM {BASE}\nRUN <<END\necho inside > /said\nEND\nCOPY <<END /file\ncopied\nEND\n"
    );
    let source = lab.context(&[("Dockerfile", &text)]);
    let prepared = lab.provider.prepare(lab.image_request(&source)).await;
    if knows {
        let image = prepared.expect("built");
        assert_eq!(run_in_image(&lab, &image, "cat /said /file").await, "inside\ncopied\n");
        return;
    }
    let link = lab.context(&[("Dockerfile", &format!("FROM {BASE}\nCOPY --link . /x\n"))]);
    let linked = lab.provider.prepare(lab.image_request(&link)).await;
    for (prepared, reason) in
        [(prepared, "line 2: RUN has a here-document"), (linked, "flag: link")]
    {
        let failure = prepared.expect_err("the engine's frontend is too old");
        assert_eq!(failure.kind, FailureKind::Refused);
        for text in [reason, "Docker 23", "# syntax=", "ROLLOUT_DOCKERFILE_FRONTEND"] {
            assert!(failure.message.contains(text), "{text}: {}", failure.message);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn frontend_absent_is_logged_and_skipped() {
    let Some(lab) = DockerFixture::open().await else { return };
    let mut options = DockerOptions::new(lab.scratch.path().join("locks"));
    options.frontend = Some("127.0.0.1:1/frontend:1".to_owned());
    let provider = Arc::new(DockerProvider::new(options));
    let source = lab.context(&[("Dockerfile", &format!("FROM {BASE}\nRUN echo x; exit 4\n"))]);
    let log = lab.scratch.path().join("frontend.log");
    let request = ImageRequest { log: Some(log.clone()), ..lab.image_request(&source) };
    let failure = provider.prepare(request).await.expect_err("it fails for its own reason");
    assert!(failure.message.contains("exit code 4"), "{}", failure.message);
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains("The frontend 127.0.0.1:1/frontend:1 cannot be used"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_reach_commands_of_build_and_stay_out_of_image() {
    let Some(lab) = DockerFixture::open().await else { return };
    let proxy = "http://user:secret-of-proxy@127.0.0.1:9";
    let env = [("HTTPS_PROXY", proxy), ("OTHER", "x")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let lines =
        format!("FROM {BASE}\nRUN printf '%s' \"[$HTTPS_PROXY][$OTHER]\" | wc -c > /length\n");
    let source = lab.context(&[("Dockerfile", &lines)]);
    let proxies = BuildProxies::of(&env.into());
    let request = ImageRequest { proxies, ..lab.image_request(&source) };
    let image = lab.provider.prepare(request).await.expect("built");
    let script = "cat /length; echo \"[$HTTPS_PROXY]\"";
    let expected = format!("{}\n[]\n", proxy.len() + 4);
    assert_eq!(run_in_image(&lab, &image, script).await.trim_end(), expected.trim_end());
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_made_with_a_proxy_are_not_used_with_another() {
    let Some(lab) = DockerFixture::open().await else { return };
    let text = format!(
        "FROM {BASE}\nRUN : {}; printf '[%s]' \"$HTTPS_PROXY\" > /written\n",
        rand::random::<u64>()
    );
    let source = lab.context(&[("Dockerfile", &text)]);
    for proxy in ["http://127.0.0.1:9", "http://user:word@127.0.0.1:9", ""] {
        let env = [("HTTPS_PROXY".to_owned(), proxy.to_owned())];
        let env = env.into_iter().filter(|(_, proxy)| !proxy.is_empty()).collect();
        let proxies = BuildProxies::of(&env);
        let request = ImageRequest { proxies, ..lab.image_request(&source) };
        let image = lab.provider.prepare(request).await.expect("built");
        assert_eq!(run_in_image(&lab, &image, "cat /written").await, format!("[{proxy}]"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn classic_layers_made_with_a_proxy_are_not_used_with_another() {
    let Some(mut lab) = DockerFixture::open().await else { return };
    let engine = EngineProxy::lacking("/session", &lab.scratch.path().join("engine.sock"));
    let locks = lab.scratch.path().join("locks");
    let options = DockerOptions { host: Some(engine.host()), ..DockerOptions::new(locks) };
    let provider = DockerProvider::new(options);
    let text = format!(
        "FROM {BASE} AS one\nRUN : {}; printf '[%s]' \"$HTTPS_PROXY\" > /written\nFROM one\nRUN true\n",
        rand::random::<u64>()
    );
    for guards_builds in [true, false] {
        lab.settings.guards_builds = guards_builds;
        for proxy in ["http://127.0.0.1:9", "http://user:word@127.0.0.1:9", ""] {
            let source = lab.context(&[("Dockerfile", &text)]);
            let env = [("HTTPS_PROXY".to_owned(), proxy.to_owned())];
            let env = env.into_iter().filter(|(_, proxy)| !proxy.is_empty()).collect();
            let proxies = BuildProxies::of(&env);
            let request = ImageRequest { proxies, ..lab.image_request(&source) };
            let image = provider.prepare(request).await;
            let image = image.unwrap_or_else(|failure| panic!("{}", failure.chain()));
            assert_eq!(builder(&image), "classic");
            assert_eq!(run_in_image(&lab, &image, "cat /written").await, format!("[{proxy}]"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_without_buildkit_uses_classic_builder() {
    let Some(lab) = DockerFixture::open().await else { return };
    let proxy = EngineProxy::lacking("/session", &lab.scratch.path().join("engine.sock"));
    let locks = lab.scratch.path().join("locks");
    let options = DockerOptions { host: Some(proxy.host()), ..DockerOptions::new(locks) };
    let provider = DockerProvider::new(options);
    let build = async |lines: &str| {
        let source = lab.context(&[("Dockerfile", &format!("FROM {BASE}\n{lines}\n")), ("f", "x")]);
        provider.prepare(lab.image_request(&source)).await
    };
    let image = build("COPY f /f").await.expect("built");
    assert_eq!(
        (builder(&image), run_in_image(&lab, &image, "cat /f").await.as_str()),
        ("classic", "x")
    );
    let failure = build("RUN echo the-reason; exit 3").await.expect_err("it fails");
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(failure.message.contains("non-zero code: 3"), "{}", failure.message);
    assert_eq!(failure.message.matches("\nthe-reason").count(), 1, "{}", failure.message);

    let proxy = EngineProxy::refusing("/session", &lab.scratch.path().join("faulty.sock"));
    let options =
        DockerOptions { host: Some(proxy.host()), ..DockerOptions::new(lab.scratch.path()) };
    let source = lab.context(&[("Dockerfile", &format!("FROM {BASE}\n"))]);
    let faulty = DockerProvider::new(options).prepare(lab.image_request(&source)).await;
    let failure = faulty.expect_err("an engine with a fault is not one without BuildKit");
    assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn build_cache_tells_files_of_equal_size_apart() {
    let Some(lab) = DockerFixture::open().await else { return };
    for word in ["one", "two"] {
        let dockerfile = format!("FROM {BASE}\nCOPY file /file\nRUN echo {word} > /said\n");
        let source = lab.context(&[("Dockerfile", &dockerfile), ("file", word)]);
        let image = lab.provider.prepare(lab.image_request(&source)).await.expect("built");
        assert_eq!(run_in_image(&lab, &image, "cat /said /file").await, format!("{word}\n{word}"));
    }
}
