//! Images of the stack, built from the repository's Dockerfile and programs of this machine: nothing is
//! pulled but the base image of all Docker tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rollout_tests::ignored::{or_ignored_part, report_ignored};
use rollout_tests::nats;
use rollout_tests::project::repository;
use tempfile::TempDir;

/// The base image, present in all Docker tests.
const BASE: &str = "debian:bookworm-slim";

/// Certificates of this machine.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Images with names of their own. Dropped, they are removed.
#[derive(Debug)]
pub(crate) struct Images {
    prefix: String,
    built: Vec<String>,
    programs: TempDir,
}

/// Runs `docker` and returns its output.
#[track_caller]
pub(crate) fn docker(arguments: &[&str]) -> String {
    let output = try_docker(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `docker`, which may fail.
pub(crate) fn try_docker(arguments: &[&str]) -> Output {
    Command::new("docker").args(arguments).output().expect("the client of the engine starts")
}

impl Images {
    /// No images yet. Their names begin with `rollout-test-` and the number of this process.
    pub(crate) fn new(purpose: &str) -> Self {
        let prefix = format!("rollout-test-{}-{purpose}", std::process::id());
        let programs = tempfile::tempdir().expect("a directory");
        Self { prefix, built: Vec::new(), programs }
    }

    /// The program under test without symbols, or as it is where `strip` is missing: every stage of an
    /// image sends it to the engine.
    pub(crate) fn program_under_test(&self) -> PathBuf {
        let (whole, stripped) = (program(), self.programs.path().join("rollout"));
        let strip = Command::new("strip").arg("-o").arg(&stripped).arg(&whole).output();
        let is_stripped = strip.is_ok_and(|output| output.status.success());
        if is_stripped { stripped } else { whole }
    }

    /// The name of an image.
    pub(crate) fn name(&self, image: &str) -> String {
        format!("{}:{image}", self.prefix)
    }

    /// Builds an image from a Dockerfile and files, by their names in the build context.
    pub(crate) fn build(
        &mut self,
        image: &str,
        dockerfile: &str,
        files: &[(&str, &Path)],
        arguments: &[&str],
    ) -> String {
        let context = tempfile::tempdir().expect("a directory");
        fs::write(context.path().join("Dockerfile"), dockerfile).expect("written");
        for (name, file) in files {
            let to = context.path().join(name);
            fs::create_dir_all(to.parent().expect("in the context")).expect("a directory");
            fs::copy(file, to).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        let name = self.name(image);
        let directory = context.path().to_str().expect("UTF-8");
        let mut words = vec!["build", "--quiet", "--tag", &name];
        words.extend(arguments);
        words.push(directory);
        let _id = docker(&words);
        self.built.push(name.clone());
        name
    }

    /// The base with certificates, of which `Dockerfile` makes the rest.
    pub(crate) fn base(&mut self) -> String {
        let from = format!("FROM {BASE}\nCOPY ca-certificates.crt {CERTIFICATES}\n");
        self.build("base", &from, &[("ca-certificates.crt", Path::new(CERTIFICATES))], &[])
    }

    /// A target of the repository's Dockerfile with this program.
    pub(crate) fn rollout(&mut self, target: &str, program: &Path) -> String {
        let base = self.base();
        let dockerfile = fs::read_to_string(repository().join("Dockerfile")).expect("readable");
        let [build, full] = ["BUILD_IMAGE", "BASE_IMAGE"].map(|name| format!("{name}={base}"));
        let mut arguments = Vec::new();
        for argument in ["PREBUILT=prebuilt/rollout", &build, &full, "PACKAGES="] {
            arguments.extend(["--build-arg", argument]);
        }
        // The classic builder makes every stage up to the target. A stage without a name would stay.
        let stages = ["build", "slim", "full"].into_iter();
        let last = stages.clone().position(|stage| stage == target).expect("a stage");
        let mut name = String::new();
        for stage in stages.take(last + 1) {
            let arguments = [&arguments[..], &["--target", stage]].concat();
            name = self.build(stage, &dockerfile, &[("prebuilt/rollout", program)], &arguments);
        }
        name
    }

    /// An image with one program as its entry point, or the command of its container.
    pub(crate) fn program(&mut self, image: &str, program: &Path, is_entrypoint: bool) -> String {
        let entry =
            if is_entrypoint { format!("ENTRYPOINT [\"/{image}\"]\n") } else { String::new() };
        let dockerfile = format!("FROM {BASE}\nCOPY {image} /{image}\n{entry}");
        self.build(image, &dockerfile, &[(image, program)], &[])
    }

    /// An image `rollout` whose program is also the command of its container, under another name.
    pub(crate) fn renamed(&mut self, image: &str, rollout: &str) -> String {
        let link = format!("RUN ln -s /usr/bin/rollout /{image}\n");
        let dockerfile = format!("FROM {rollout}\nUSER 0:0\nENTRYPOINT []\n{link}");
        self.build(image, &dockerfile, &[], &[])
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for name in self.built.iter().rev() {
            // A failed test may have left a container of it.
            drop(try_docker(&["image", "rm", "--force", name]));
        }
    }
}

/// The program under test.
pub(crate) fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_rollout-under-test"))
}

/// Runs an image with the restrictions of the Helm chart.
fn restricted(image: &str, arguments: &[&str]) -> Output {
    let mut words = vec!["run", "--rm", "--read-only", "--cap-drop", "ALL", "--network", "none"];
    words.extend(["--security-opt", "no-new-privileges", image]);
    words.extend(arguments);
    try_docker(&words)
}

#[test]
fn image_full_runs_without_root() {
    if rollout_tests::docker::DockerEngine::available().is_none() {
        return;
    }
    let mut images = Images::new("full");
    let image = images.rollout("full", &images.program_under_test());
    let user = docker(&["image", "inspect", "--format", "{{.Config.User}}", &image]);
    assert_eq!(user.trim(), "65532:65532");
    let version = restricted(&image, &["--version"]);
    assert!(version.status.success(), "{}", String::from_utf8_lossy(&version.stderr));
    let mut shell = vec!["run", "--rm", "--entrypoint", "sh", &image, "-c"];
    shell.push("id -un && touch /work/jobs/a /var/lib/rollout/b && ! touch /usr/bin/c 2>/dev/null");
    assert_eq!(docker(&shell), "rollout\n");
}

/// The static program, which takes long to build, is checked when `ROLLOUT_TEST_STATIC` names it.
#[test]
fn image_slim_holds_static_program_alone() {
    let Some(program) = std::env::var_os("ROLLOUT_TEST_STATIC") else {
        report_ignored("needs a static program, named by ROLLOUT_TEST_STATIC");
        return;
    };
    if rollout_tests::docker::DockerEngine::available().is_none() {
        return;
    }
    let mut images = Images::new("slim");
    let image = images.rollout("slim", Path::new(&program));
    let size = docker(&["image", "inspect", "--format", "{{.Size}}", &image]);
    let size: u64 = size.trim().parse().expect("bytes");
    assert!(size < 60_000_000, "{size} bytes");
    let version = restricted(&image, &["--version"]);
    assert!(version.status.success(), "{}", String::from_utf8_lossy(&version.stderr));
    assert!(
        !try_docker(&["run", "--rm", "--entrypoint", "sh", &image]).status.success(),
        "a shell"
    );
    names_are_resolved(&mut images, &image);
}

/// The static C library resolves names of the engine's DNS, without modules of the image.
fn names_are_resolved(images: &mut Images, image: &str) {
    let servers = or_ignored_part(nats::find_programs(), "names of the engine's DNS");
    let Some(servers) = servers else { return };
    let nats = images.program("nats-server", &servers[0], true);
    let network = images.name("dns").replace(':', "-");
    let _id = docker(&["network", "create", &network]);
    let container = docker(&[
        "run",
        "--detach",
        "--rm",
        "--network",
        &network,
        "--name",
        &network,
        "--network-alias",
        "bus",
        &nats,
        "-js",
        "--user",
        "a",
        "--pass",
        "b",
    ]);
    let address = "ROLLOUT_NATS_URL=nats://a:b@bus:4222";
    let doctor =
        || try_docker(&["run", "--rm", "--network", &network, "-e", address, image, "doctor"]);
    let mut last = doctor();
    // The server may need a moment.
    rollout_tests::wait::holds_within(crate::compose::DEADLINE, || {
        let text = String::from_utf8_lossy(&last.stdout).into_owned();
        let answered = text.contains(", version ");
        if !answered {
            last = doctor();
        }
        answered
    });
    drop(try_docker(&["rm", "--force", container.trim()]));
    drop(try_docker(&["network", "rm", &network]));
    let text = String::from_utf8_lossy(&last.stdout).into_owned();
    let error = String::from_utf8_lossy(&last.stderr);
    assert!(text.contains(", version "), "{text}{error}");
}
