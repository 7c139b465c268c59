//! Dockerfiles in sandboxes.

use std::path::Path;

use rollout_environment::{
    BuildProxies, CreateRequest, FailureKind, ImageRequest, ImageSource, Provider as _,
};
use rollout_protocol::digest::Digest;
use rollout_protocol::spec::environment::{ProcessSettings, ProviderSpec};
use rollout_tests::sandbox::{self, AMPLE_RESOURCES, output};

use crate::sandbox::SandboxFixture;

fn request(context: &Path, lenient: bool) -> CreateRequest {
    let settings = ProcessSettings { ignore_dockerfile: lenient, ..ProcessSettings::default() };
    let source = ImageSource::Context { digest: Digest::sha256(b"x"), dir: context.to_path_buf() };
    CreateRequest { source, ..sandbox::request(settings, AMPLE_RESOURCES) }
}

fn write(context: &Path, files: &[(&str, &str)]) {
    for (name, content) in files {
        let path = context.join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, content).expect("written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dockerfile_with_simple_instructions_is_applied() {
    let lab = SandboxFixture::new();
    let context = lab.scratch.path().join("context");
    let dockerfile = "FROM python:3.12-slim\n\
                      ENV GREETING=\"hello there\" PATH=/app/bin:$PATH\n\
                      WORKDIR /app\n\
                      COPY . .\n\
                      COPY --chmod=755 bin/tool bin/\n\
                      COPY data/*.txt /data/renamed.txt\n\
                      ADD data /usr/src/data\n\
                      CMD [\"x\"]\n";
    write(
        &context,
        &[
            ("Dockerfile", dockerfile),
            (".dockerignore", "secret\n"),
            ("secret", "hidden"),
            ("a.txt", "a"),
            ("bin/tool", "#!/bin/sh\necho tool: $GREETING\n"),
            ("data/one.txt", "one"),
        ],
    );
    let sandbox = lab.provider.create(request(&context, false)).await;
    let sandbox = sandbox.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    let environment = sandbox.as_ref();
    assert_eq!(environment.workdir(), "/app");
    assert_eq!(output(environment, "pwd; tool").await, "/app\ntool: hello there\n");
    let seen = output(environment, "ls -A /app; cat /data/renamed.txt /usr/src/data/one.txt").await;
    assert_eq!(seen, ".dockerignore\nDockerfile\na.txt\nbin\ndata\noneone");
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn dockerfile_unsupported_is_refused_unless_lenient() {
    let lab = SandboxFixture::new();
    let context = lab.scratch.path().join("context");
    let dockerfile = "FROM debian\nRUN apt-get install x\nWORKDIR /app\nCOPY a.txt missing* ./\n";
    write(&context, &[("Dockerfile", dockerfile), ("a.txt", "a")]);
    let refused = lab.provider.create(request(&context, false)).await.expect_err("refused");
    assert_eq!(refused.kind, FailureKind::Unsupported);
    assert!(refused.message.contains("line 2: RUN"), "{}", refused.message);
    let missing = lab.provider.create(request(&context, true)).await.expect_err("refused");
    assert_eq!(missing.kind, FailureKind::Refused);
    assert!(missing.message.contains("line 4: COPY: `missing*`"), "{}", missing.message);

    write(&context, &[("Dockerfile", "FROM debian\nRUN x\nWORKDIR /app\nCOPY a.txt ./\n")]);
    let sandbox = lab.provider.create(request(&context, true)).await.expect("created");
    assert_eq!(output(sandbox.as_ref(), "cat /app/a.txt").await, "a");
    sandbox.destroy().await.expect("destroyed");
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn image_in_sandbox_is_refused_unless_lenient() {
    let lab = SandboxFixture::new();
    let prepare = |lenient| {
        let settings = ProcessSettings { ignore_dockerfile: lenient, ..ProcessSettings::default() };
        lab.provider.prepare(ImageRequest {
            source: ImageSource::Named("python:3.12".to_owned()),
            force_build: false,
            timeout: crate::sandbox::WAIT_DEADLINE,
            log: None,
            proxies: BuildProxies::default(),
            settings: ProviderSpec::Process(settings),
            labels: sandbox::labels(),
        })
    };
    let refused = prepare(false).await.expect_err("refused");
    assert_eq!(refused.kind, FailureKind::Unsupported);
    assert!(refused.message.contains("python:3.12"), "{}", refused.message);
    prepare(true).await.expect("accepted");
}
