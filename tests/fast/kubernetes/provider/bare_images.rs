//! Images without a shell and other programs, with and without the helper's.

use rollout_environment::{FailureKind, Upload};
use rollout_tests::kube::PullOutcome;
use tokio::io::AsyncReadExt as _;

use super::*;

/// Image without most programs that the provider's scripts use, and one without `tar` only.
const BARE: &str = "registry.test/bare:1";
const PARTIAL: &str = "registry.test/partial:1";

/// Image with the helper.
const HELPER: &str = "registry.test/helper:1";

/// Programs of the provider's scripts. `env` stays: the double starts containers with it.
const PROGRAMS: [&str; 20] = [
    "sh",
    "cat",
    "chmod",
    "dd",
    "head",
    "id",
    "ls",
    "mkdir",
    "mkfifo",
    "mv",
    "rm",
    "sha256sum",
    "sleep",
    "tail",
    "tar",
    "tee",
    "wc",
    "setsid",
    "cut",
    "sort",
];

fn fixture(has_helper: bool) -> PodFixture {
    let helper = has_helper.then(|| HELPER.to_owned());
    let fixture = PodFixture::with(|options| options.helper_image = helper);
    let shells = ["bash", "dash"];
    fixture.double.image(BARE, ImageFixture::new().without(&PROGRAMS).without(&shells));
    fixture.double.image(PARTIAL, ImageFixture::new().without(&["tar", "sha256sum"]));
    // Stands for a static `busybox`: installs programs of the host.
    let busybox = format!(
        "#!/bin/sh\n[ \"$1 $2\" = '--install -s' ] || exit 64\n\
         for program in {}; do cp -L \"$(command -v $program)\" \"$3/$program\" || exit; done\n",
        PROGRAMS.join(" ")
    );
    let helper = ImageFixture::new().file("/usr/local/bin/busybox", busybox.as_bytes(), 0o755);
    fixture.double.image(HELPER, helper);
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn image_without_programs_works_by_the_helper() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = fixture(true);
    let environment = fixture.provider.create(request(BARE)).await;
    let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    let file = Upload::File {
        path: "/data/text".to_owned(),
        bytes: b"a file\n".to_vec().into(),
        executable: false,
    };
    environment.copy_to(vec![file]).await.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    let mut stream = environment.copy_from("/data").await.expect("a stream").expect("it exists");
    let mut archive = Vec::new();
    stream.read_to_end(&mut archive).await.expect("whole");
    assert!(archive.windows(7).any(|bytes| bytes == b"a file\n"));
    let captured = Arc::new(Captured::default());
    let argv = ["printf", "%s\\n", "printed"].map(str::to_owned).to_vec();
    let command = ExecCommand { argv, env: BTreeMap::new(), workdir: None, user: None };
    let exit = environment.exec(command, captured.clone()).await;
    assert_eq!(exit.unwrap_or_else(|failure| panic!("{}", failure.chain())).code, 0);
    assert_eq!(captured.bytes(OutputStream::Stdout), b"printed\n");
    let failure = failure(environment.as_ref(), "true").await;
    assert!(failure.message.contains("no such program"), "the image has no shell: {failure}");
    environment.kill_processes().await.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn image_without_programs_is_unsupported_without_the_helper() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = fixture(false);
    for (image, named) in [(BARE, "/bin/sh"), (PARTIAL, "sha256sum, tar")] {
        let failure = fixture.creation_failure(image).await;
        assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.chain());
        for text in [named, "helper_image"] {
            assert!(failure.message.contains(text), "{image}: {failure}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn helper_that_fails_names_its_setting_and_blames_no_task() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = fixture(true);
    let busybox =
        |script: &str| ImageFixture::new().file("/usr/local/bin/busybox", script.as_bytes(), 0o755);
    for (what, helper) in [
        ("missing", ImageFixture::new().pull(PullOutcome::Missing)),
        ("failing", busybox("#!/bin/sh\nexit 64\n")),
    ] {
        fixture.double.image(HELPER, helper);
        let failure = fixture.creation_failure(BARE).await;
        assert_eq!(failure.kind, FailureKind::Service, "{what}: {}", failure.chain());
        assert!(failure.message.contains("`helper_image`"), "{what}: {failure}");
    }
}
