//! Images: built once, from visible files only, or refused with the reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_docker::{DockerOptions, DockerProvider};
use rollout_environment::{FailureKind, ImageRequest, ImageSource, Provider as _};
use rollout_protocol::id::RunId;

use crate::docker_provider::fixture::{
    BASE, DockerFixture, WAIT_DEADLINE, destroy, exists, output, until,
};

const DOCKERFILE: &str = "FROM debian:bookworm-slim\nCOPY . /context\n\
    RUN cat /proc/sys/kernel/random/uuid > /id\n";

#[tokio::test(flavor = "multi_thread")]
async fn build_requested_concurrently_runs_once() {
    let Some(lab) = DockerFixture::open().await else { return };
    let source = lab.context(&[("Dockerfile", DOCKERFILE)]);
    let ImageSource::Context { digest, .. } = &source else { unreachable!("it is one") };
    let providers = [Arc::clone(&lab.provider), lab.another_provider()];
    let asking = (0..50).map(|n| providers[n % 2].prepare(lab.image_request(&source)));
    let images = futures_util::future::join_all(asking).await;
    let images: Vec<_> = images.into_iter().map(|image| image.expect("built")).collect();
    assert!(images.iter().all(|image| image.reference == images[0].reference));

    let filters = [("label".to_owned(), vec![format!("dev.rollout.context={digest}")])].into();
    let options = bollard::query_parameters::ListImagesOptions {
        filters: Some(filters),
        all: true,
        ..Default::default()
    };
    let built = lab.docker.list_images(Some(options)).await.expect("listed");
    assert_eq!(built.len(), 1, "{built:?}");

    let calls = lab.provider.calls();
    let again = lab.provider.prepare(lab.image_request(&source)).await.expect("found");
    assert!(!again.made);
    assert_eq!(lab.provider.calls() - calls, 1, "one call finds it");
    lab.remove_image(&again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dockerignore_entries_are_not_sent() {
    let Some(lab) = DockerFixture::open().await else { return };
    let source = lab.context(&[
        ("Dockerfile", DOCKERFILE),
        (".dockerignore", "**/*.log\nsecret\n!keep.log\nDockerfile\n"),
        ("a.log", ""),
        ("sub/b.log", ""),
        ("keep.log", ""),
        ("secret/key", "k"),
        ("sub/c.txt", ""),
    ]);
    let image = lab.provider.prepare(lab.image_request(&source)).await.expect("built");
    let environment = lab.create(image.clone(), Vec::new()).await;
    let seen = output(environment.as_ref(), "cd /context && find . -type f | sort").await;
    let owner = output(environment.as_ref(), "stat -c '%u %a %Y' /context/keep.log").await;
    destroy(environment).await;
    lab.remove_image(&image).await;
    // `.dockerignore` is included unless it lists itself; a listed Dockerfile is excluded.
    assert_eq!(seen, "./.dockerignore\n./keep.log\n./sub/c.txt\n");
    assert_eq!(owner, "0 644 946684800\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn build_forced_runs_once_per_run() {
    let Some(lab) = DockerFixture::open().await else { return };
    let source = lab.context(&[("Dockerfile", DOCKERFILE)]);
    let forced = |run: u8| {
        let mut request = ImageRequest { force_build: true, ..lab.image_request(&source) };
        request.labels.run = RunId::from_bytes([run; 16]);
        lab.provider.prepare(request)
    };
    let id = async |reference: &str| {
        lab.docker.inspect_image(reference).await.expect("there").id.expect("it has one")
    };
    let (a, b) = tokio::join!(forced(1), forced(1));
    let (a, b) = (a.expect("built"), b.expect("built"));
    assert!(a.made != b.made, "one of them built it: {a:?} {b:?}");
    let first = id(&a.reference).await;
    assert!(!forced(1).await.expect("built").made);
    assert_eq!(id(&a.reference).await, first);
    assert!(forced(2).await.expect("built").made);
    assert_ne!(id(&a.reference).await, first, "without cache");
    lab.remove_image(&a).await;
    let options = bollard::query_parameters::RemoveImageOptions::default();
    lab.docker.remove_image(&first, Some(options), None).await.expect("the replaced one");
}

#[tokio::test(flavor = "multi_thread")]
async fn build_failure_is_reported_to_every_waiter() {
    let Some(lab) = DockerFixture::open().await else { return };
    let script = "i=0; while [ $i -lt 3000 ]; do echo line-$i; i=$((i+1)); done; \
        echo the-reason >&2; exit 3";
    let source = lab.context(&[("Dockerfile", &format!("FROM {BASE}\nRUN {script}\n"))]);
    let log = |n: usize| lab.scratch.path().join(format!("build-{n}.log"));
    let asking = (0..5).map(|n| {
        lab.provider.prepare(ImageRequest { log: Some(log(n)), ..lab.image_request(&source) })
    });
    for (n, failure) in futures_util::future::join_all(asking).await.into_iter().enumerate() {
        let failure = failure.expect_err("it cannot be built");
        assert_eq!(failure.kind, FailureKind::Refused, "{}", failure.message);
        for text in ["[2/2] RUN i=0;", "failed: exit code 3\n", "\nline-2999", "\nthe-reason"] {
            assert!(failure.message.contains(text), "{text}: {}", failure.message);
        }
        // Once in the instruction, and once in its output.
        assert_eq!(failure.message.matches("the-reason").count(), 2, "{}", failure.message);
        assert!(!failure.message.contains('\u{1b}'), "{}", failure.message);
        assert!(failure.message.len() < 6000, "{} bytes", failure.message.len());
        let whole = std::fs::read_to_string(log(n)).expect("the whole log");
        assert!(whole.contains("line-0\n") && whole.contains(" the-reason\n"), "{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn build_failure_is_cached_for_the_run() {
    let Some(lab) = DockerFixture::open().await else { return };
    let log = lab.scratch.path().join("later.log");
    let ask = async |source: &ImageSource, run: u8| {
        let mut request = ImageRequest { log: Some(log.clone()), ..lab.image_request(source) };
        request.labels.run = RunId::from_bytes([run; 16]);
        let calls = lab.provider.calls();
        let failure = lab.provider.prepare(request).await.expect_err("it cannot be built");
        // One call checks whether the image exists; any further call is a build.
        (failure, lab.provider.calls() - calls > 1)
    };
    let dockerfile = format!("FROM {BASE}\nRUN echo the-reason; exit 3\n");
    let source = lab.context(&[("Dockerfile", &dockerfile)]);
    let (first, built) = ask(&source, 1).await;
    assert!(built);
    std::fs::remove_file(&log).expect("the log of the first");
    let (second, built) = ask(&source, 1).await;
    assert!(!built, "it was refused for good");
    assert_eq!((second.kind, &second.message), (FailureKind::Refused, &first.message));
    assert!(std::fs::read_to_string(&log).expect("a log again").contains("the-reason"));
    assert!(ask(&source, 2).await.1, "another run tries again");

    let source = lab.context(&[("Dockerfile", "FROM 127.0.0.1:1/none:1\n")]);
    for ask_number in 1..=5 {
        let (failure, built) = ask(&source, 1).await;
        assert_eq!(failure.kind, FailureKind::Unreachable, "{}", failure.chain());
        assert!(built, "request {ask_number}: a missing answer is not a build failure");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn build_with_invalid_context_is_refused() {
    type Files<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Files<'_>, FailureKind, &str); 5] = [
        (&[("Dockerfile", "FROM x\nNONSENSE y\n")], FailureKind::Refused, "NONSENSE"),
        (&[("other", "")], FailureKind::Refused, "no Dockerfile"),
        (
            &[("Dockerfile", "FROM debian:bookworm-slim\nCOPY absent /\n")],
            FailureKind::Refused,
            "absent",
        ),
        (
            &[("Dockerfile", "FROM 127.0.0.1:1/none:1\n")],
            FailureKind::Unreachable,
            "connection refused",
        ),
        (
            &[("Dockerfile", DOCKERFILE), (".dockerignore", "[\n")],
            FailureKind::Refused,
            ".dockerignore line 1",
        ),
    ];
    let Some(lab) = DockerFixture::open().await else { return };
    for (files, kind, text) in cases {
        let source = lab.context(files);
        let failure = lab.provider.prepare(lab.image_request(&source)).await.expect_err(text);
        assert_eq!(failure.kind, kind, "{}", failure.chain());
        assert!(failure.chain().contains(text), "{}", failure.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn build_timeout_ends_build() {
    let Some(lab) = DockerFixture::open().await else { return };
    let marker = format!("sleep 9{}", std::process::id());
    let source = lab.context(&[("Dockerfile", &format!("FROM {BASE}\nRUN {marker}\n"))]);
    let timeout = Duration::from_secs(2);
    let began = Instant::now();
    let request = ImageRequest { timeout, ..lab.image_request(&source) };
    let failure = lab.provider.prepare(request).await.expect_err("too long");
    assert_eq!(failure.kind, FailureKind::TimedOut, "{}", failure.message);
    assert!(began.elapsed() < WAIT_DEADLINE);

    until("the build has ended", async || !process_runs(&marker)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_by_name_is_found_or_pulled() {
    let Some(lab) = DockerFixture::open().await else { return };
    let found = lab.image_request(&ImageSource::Named(BASE.to_owned()));
    assert!(!lab.provider.prepare(found).await.expect("present").made);
    let absent = lab.image_request(&ImageSource::Named("127.0.0.1:1/none:1".to_owned()));
    let failure = lab.provider.prepare(absent).await.expect_err("no server there");
    assert_eq!(failure.kind, FailureKind::Unreachable, "{}", failure.message);
    assert!(failure.message.contains("127.0.0.1:1/none:1"), "{}", failure.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_unreachable_is_named_in_error() {
    let scratch = tempfile::tempdir().expect("a directory");
    let check = async |host: String| {
        let options = DockerOptions { host: Some(host), ..DockerOptions::new(scratch.path()) };
        DockerProvider::new(options).check().await.expect_err("nothing there")
    };
    let socket = scratch.path().join("docker.sock");
    let failure = check(socket.display().to_string()).await;
    assert_eq!(failure.kind, FailureKind::Unreachable);
    assert!(failure.message.contains("docker.sock"), "{}", failure.message);
    assert!(failure.message.contains("the socket does not exist"), "{}", failure.message);

    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    assert!(exists(&socket));
    let failure = check(format!("unix://{}", socket.display())).await;
    assert_eq!(failure.kind, FailureKind::Unreachable);
    assert!(failure.message.contains("nothing listens there"), "{}", failure.chain());
    assert_eq!(check("ssh://host".to_owned()).await.kind, FailureKind::Refused);
}

/// Whether a process of this machine has `words` in its command line.
fn process_runs(words: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let mut lines =
        processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(words))
}
