//! Images whose user is not root.

use rollout_environment::{FailureKind, Upload};
use serde_json::Value;

use super::*;

/// Image of the tests.
const OWN_USER: &str = "registry.test/own-user:1";

fn fixture(image: ImageFixture) -> PodFixture {
    let fixture = PodFixture::new();
    fixture.double.image(OWN_USER, image);
    fixture
}

fn file(path: &str, text: &'static str) -> Upload {
    Upload::File { path: path.to_owned(), bytes: text.into(), executable: true }
}

fn non_root() -> CreateRequest {
    let settings = KubernetesSettings { run_as_non_root: Some(true), ..Default::default() };
    CreateRequest { settings: ProviderSpec::Kubernetes(Box::new(settings)), ..request(OWN_USER) }
}

/// Pods that were created so far.
fn created(double: &KubeDouble) -> usize {
    let requests = double.requests();
    let creations = requests.iter().filter(|one| one.verb == "create" && one.resource == "pods");
    creations.count()
}

#[tokio::test(flavor = "multi_thread")]
async fn image_whose_user_cannot_write_to_the_root_gets_its_files() {
    if !ignored::is_root_or_ignored("whose containers can have another user") {
        return;
    }
    // Content that the user can neither change nor add to.
    let image = ImageFixture::new().user(1000).file("/solution/own", b"own", 0o644);
    let fixture = fixture(image.file("/output/own", b"kept\n", 0o644));
    for pods in [2, 3] {
        let uploads = vec![
            Upload::Dir { path: "/logs".into() },
            Upload::Dir { path: "/logs/agent".into() },
            file("/rollout/run.sh", "#!/bin/sh\nid -u\n"),
            Upload::FreshDir { path: "/oracle".into() },
            file("/oracle/solve.sh", "echo solved >/logs/agent/log\n"),
            file("/state/control.json", "{}"),
        ];
        let made = fixture.provider.create(CreateRequest { uploads, ..request(OWN_USER) }).await;
        let environment = made.unwrap_or_else(|failure| panic!("{}", failure.chain()));
        assert_eq!(created(&fixture.double), pods, "the first pod shows what the others need");
        let environment = environment.as_ref();
        // A directory that only some tasks have files placed into keeps the image's.
        assert_eq!(run(environment, "cat /output/own").await.1, b"kept\n");
        assert_eq!(
            run(environment, "/rollout/run.sh; cat /state/control.json").await.1,
            b"1000\n{}"
        );
        assert_eq!(
            run(environment, "sh /oracle/solve.sh; cat /logs/agent/log").await.1,
            b"solved\n"
        );
        for text in ["first", "second"] {
            let tests = vec![
                Upload::FreshDir { path: "/tests".into() },
                file("/tests/deep/test.sh", text),
                file("/solution/more", text),
            ];
            let placed = environment.copy_to(tests).await;
            placed.unwrap_or_else(|failure| panic!("{}", failure.chain()));
            let script = "cat /tests/deep/test.sh /solution/more; ls /tests";
            let expected = format!("{text}{text}deep\n");
            assert_eq!(run(environment, script).await.1, expected.as_bytes());
        }
        environment.destroy().await.expect("destroyed");
    }
    assert_eq!(fixture.double.pods(), Vec::<Value>::new(), "nothing is left");
}

/// A shell of an image. It reports the first of these directories that does not exist as one that the user
/// cannot write to.
fn closing_shell(places: &str) -> String {
    format!(
        "#!/bin/bash\npwd() {{\n  builtin pwd\n  for place in {places}; do\n    \
         [ -d $place ] || {{ closed=\" $place\"; break; }}\n  done\n}}\n\
         export -f pwd\nexec /bin/bash \"$@\"\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn image_with_another_closed_directory_in_each_pod_has_three_pods() {
    let closing = |places| {
        let shell = closing_shell(places);
        fixture(ImageFixture::new().file("/usr/bin/sh", shell.as_bytes(), 0o755))
    };
    let tasks_own = closing("/logs /oracle /rollout /solution /tests");
    let environment = tasks_own.provider.create(request(OWN_USER)).await;
    let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert_eq!(created(&tasks_own.double), 3, "the last one has all directories of tasks");
    environment.destroy().await.expect("destroyed");

    let others = closing("/commands /cost /output /review");
    let failure = others.provider.create(request(OWN_USER)).await.expect_err("it never ends");
    assert_eq!(failure.kind, FailureKind::Refused, "{}", failure.chain());
    assert!(failure.message.ends_with("/output; let the image give them to its user"), "{failure}");
    assert_eq!(created(&others.double), 3);
    for fixture in [tasks_own, others] {
        assert_eq!(fixture.double.pods(), Vec::<Value>::new(), "nothing is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn image_whose_user_is_root_keeps_its_directories() {
    let fixture = fixture(ImageFixture::new().file("/solution/own", b"own", 0o644));
    let environment = fixture.provider.create(request(OWN_USER)).await;
    let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert_eq!(created(&fixture.double), 1);
    assert_eq!(run(environment.as_ref(), "cat /solution/own; ls -d /tests").await.1, b"own");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn user_with_a_name_runs_where_root_is_refused() {
    if !ignored::is_root_or_ignored("whose containers can have another user") {
        return;
    }
    let fixture = fixture(ImageFixture::new().named_user("agent", 1000));
    for _ in 0..2 {
        let environment = fixture.provider.create(non_root()).await;
        let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
        let script = "id -u; id -g; echo x >/logs/x && cat /logs/x";
        assert_eq!(run(environment.as_ref(), script).await.1, b"1000\n1000\nx\n");
        environment.destroy().await.expect("destroyed");
    }
    assert_eq!(fixture.double.pods(), Vec::<Value>::new(), "nothing is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn user_with_a_name_that_is_root_is_refused_where_root_is() {
    for (name, why) in [("root", "is root"), ("nemo", "/etc/passwd")] {
        let fixture = fixture(ImageFixture::new().named_user(name, 0));
        let failure = fixture.provider.create(non_root()).await.expect_err("refused");
        assert_eq!(failure.kind, FailureKind::Refused, "{}", failure.chain());
        assert!(failure.message.contains(why), "{failure}");
        assert_eq!(fixture.double.pods(), Vec::<Value>::new(), "nothing is left");
    }
}
