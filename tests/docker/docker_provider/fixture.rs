//! Test fixture: a provider on the real engine, with its own images and containers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bollard::Docker;
use rollout_docker::{DockerOptions, DockerProvider};
use rollout_environment::{
    BuildProxies, CaBundle, CreateRequest, Environment, EnvironmentLabels, EnvironmentPurpose,
    ExecCommand, Failure, Image, ImageRequest, ImageSource, OutputSink, OutputStream, Owner,
    Provider as _, Upload,
};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::spec::environment::{DockerSettings, ProviderSpec};
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;
use rollout_tests::docker::NO_ENGINE;
use rollout_tests::ignored::report_ignored;
use rollout_tests::wait;

/// Image of all tests that need no other.
pub(crate) const BASE: &str = "debian:bookworm-slim";

/// Deadline for anything that should be fast.
pub(crate) const WAIT_DEADLINE: Duration = wait::LONG_DEADLINE;

static COUNTER: AtomicU64 = AtomicU64::new(1);

/// A provider and its resources.
pub(crate) struct DockerFixture {
    pub(crate) provider: Arc<DockerProvider>,
    /// The engine, queried without the provider.
    pub(crate) docker: Docker,
    pub(crate) scratch: tempfile::TempDir,
    pub(crate) settings: DockerSettings,
    pub(crate) resources: Resources,
}

impl DockerFixture {
    /// A fixture; the test is ignored if tests must run without an engine.
    pub(crate) async fn open() -> Option<Self> {
        Self::with_storage_interval(Duration::from_secs(5)).await
    }

    /// A fixture whose provider checks container storage at this interval.
    pub(crate) async fn with_storage_interval(interval: Duration) -> Option<Self> {
        if std::env::var("ROLLOUT_TEST_DOCKER").is_ok_and(|promise| promise == "no") {
            report_ignored(NO_ENGINE);
            return None;
        }
        let scratch = tempfile::tempdir().expect("a directory");
        let mut options = DockerOptions::new(scratch.path().join("locks"));
        options.storage_interval = interval;
        let provider = Arc::new(DockerProvider::new(options));
        if let Err(failure) = provider.check().await {
            panic!("these tests need a Docker engine: {}", failure.chain());
        }
        let docker = Docker::connect_with_defaults().expect("it was reached before");
        let docker = docker.negotiate_version().await.expect("it answers");
        let resources = Resources { memory_mb: 512, storage_mb: 2048, ..Resources::default() };
        Some(Self { provider, docker, scratch, settings: DockerSettings::default(), resources })
    }

    /// Another provider for the same engine and host, as in another worker process.
    pub(crate) fn another_provider(&self) -> Arc<DockerProvider> {
        Arc::new(DockerProvider::new(DockerOptions::new(self.scratch.path().join("locks"))))
    }

    /// The same, with a CA bundle for environments and builds.
    pub(crate) fn provider_with_bundle(&self, bundle: CaBundle) -> Arc<DockerProvider> {
        let options = DockerOptions::new(self.scratch.path().join("locks"));
        Arc::new(DockerProvider::new(DockerOptions { ca_bundle: Some(bundle), ..options }))
    }

    /// A build context with these files and a unique digest.
    pub(crate) fn context(&self, files: &[(&str, &str)]) -> ImageSource {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let dir = self.scratch.path().join(format!("context-{number}"));
        for (path, content) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().expect("below the context")).expect("made");
            fs::write(path, content).expect("written");
        }
        fs::create_dir_all(&dir).expect("made");
        let digest = Digest::sha256(
            format!("{} {number} {:?}", std::process::id(), Instant::now()).as_bytes(),
        );
        ImageSource::Context { digest, dir }
    }

    pub(crate) fn image_request(&self, source: &ImageSource) -> ImageRequest {
        ImageRequest {
            source: source.clone(),
            force_build: false,
            timeout: Duration::from_secs(120),
            log: None,
            proxies: BuildProxies::default(),
            settings: ProviderSpec::Docker(self.settings.clone()),
            labels: labels(),
        }
    }

    /// Builds an image from these lines on top of the base.
    pub(crate) async fn build(&self, dockerfile: &str) -> Image {
        let dockerfile = format!("FROM {BASE}\n{dockerfile}\n");
        let source = self.context(&[("Dockerfile", &dockerfile)]);
        let image = self.provider.prepare(self.image_request(&source)).await;
        image.unwrap_or_else(|failure| panic!("{}", failure.chain()))
    }

    /// Removes an image that a test built.
    pub(crate) async fn remove_image(&self, image: &Image) {
        let options =
            bollard::query_parameters::RemoveImageOptions { force: true, ..Default::default() };
        let removed = self.docker.remove_image(&image.reference, Some(options), None).await;
        removed.expect("removed");
    }

    pub(crate) fn base(&self) -> Image {
        Image::found(BASE)
    }

    pub(crate) fn request(&self, image: Image, uploads: Vec<Upload>) -> CreateRequest {
        CreateRequest {
            source: ImageSource::Named(image.reference.clone()),
            image,
            resources: self.resources,
            env: BTreeMap::new(),
            workdir: None,
            network: NetworkPolicy::Public,
            compose: None,
            uploads,
            settings: ProviderSpec::Docker(self.settings.clone()),
            labels: labels(),
            purpose: EnvironmentPurpose::Agent,
        }
    }

    pub(crate) async fn create(&self, image: Image, uploads: Vec<Upload>) -> Box<dyn Environment> {
        let made = self.provider.create(self.request(image, uploads)).await;
        made.unwrap_or_else(|failure| panic!("not created: {}", failure.chain()))
    }

    /// A container of the base image.
    pub(crate) async fn plain(&self) -> Box<dyn Environment> {
        self.create(self.base(), Vec::new()).await
    }

    /// Writes an archive with these regular files.
    pub(crate) fn archive(&self, files: &[(&str, &[u8])]) -> PathBuf {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = self.scratch.path().join(format!("archive-{number}.tar"));
        let mut tar = tar::Builder::new(fs::File::create_new(&path).expect("a new file"));
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, name, *content).expect("appended");
        }
        tar.into_inner().expect("finished");
        path
    }

    /// Names of all containers with this label, including stopped ones.
    pub(crate) async fn containers(&self, label: &str) -> Vec<String> {
        let filters = [("label".to_owned(), vec![label.to_owned()])].into();
        let options = bollard::query_parameters::ListContainersOptions {
            all: true,
            filters: Some(filters),
            ..Default::default()
        };
        let found = self.docker.list_containers(Some(options)).await.expect("listed");
        found.into_iter().map(|c| c.names.unwrap_or_default().join(",")).collect()
    }
}

/// Labels of a new execution, owned by this process.
pub(crate) fn labels() -> EnvironmentLabels {
    let mut exec = [0; 16];
    exec[..4].copy_from_slice(&std::process::id().to_be_bytes());
    exec[8..].copy_from_slice(&COUNTER.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    EnvironmentLabels {
        run: RunId::from_bytes([7; 16]),
        item: ItemId::for_trial("docker", "tests", "task", 1),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes(exec),
        worker: "docker-tests".parse().expect("a token"),
        owner: owner(),
    }
}

/// This process as an owner.
pub(crate) fn owner() -> Owner {
    Owner {
        host: "docker-tests".to_owned(),
        boot_id: format!("docker-tests-{}", std::process::id()),
        pid_namespace: 0,
        pid: std::process::id(),
        start_ticks: 0,
        uid: rustix::process::getuid().as_raw(),
        lock: PathBuf::from("/nowhere"),
    }
}

/// Captured output of a command.
#[derive(Debug, Default)]
pub(crate) struct CommandOutput(Mutex<[Vec<u8>; 2]>);

impl OutputSink for CommandOutput {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        self.0.lock().expect("not poisoned")[stream as usize].extend_from_slice(bytes);
    }
}

impl CommandOutput {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("not poisoned")[0]).into_owned()
    }
}

pub(crate) fn shell(script: &str) -> ExecCommand {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    ExecCommand { argv, env: BTreeMap::new(), workdir: None, user: None }
}

/// Runs a script and returns its exit code and standard output.
pub(crate) async fn run(environment: &dyn Environment, script: &str) -> (i32, String) {
    match try_run(environment, script).await {
        Ok(ended) => ended,
        Err(failure) => panic!("`{script}` failed: {}", failure.chain()),
    }
}

pub(crate) async fn try_run(
    environment: &dyn Environment,
    script: &str,
) -> Result<(i32, String), Failure> {
    let printed = Arc::new(CommandOutput::default());
    let exit = environment.exec(shell(script), printed.clone()).await?;
    Ok((exit.code, printed.stdout()))
}

/// Returns the standard output of a script that must succeed.
pub(crate) async fn output(environment: &dyn Environment, script: &str) -> String {
    let (code, stdout) = run(environment, script).await;
    assert_eq!(code, 0, "`{script}`: {stdout}");
    stdout
}

/// Removes an environment.
pub(crate) async fn destroy(environment: Box<dyn Environment>) {
    environment.destroy().await.unwrap_or_else(|failure| panic!("{}", failure.chain()));
}

/// Polls a script until it succeeds.
pub(crate) async fn wait_for_script(environment: &dyn Environment, script: &str) {
    until(script, async || run(environment, script).await.0 == 0).await;
}

/// Polls a condition until it holds.
pub(crate) async fn until(what: &str, so: impl AsyncFnMut() -> bool) {
    wait::until_async(WAIT_DEADLINE, what, so).await;
}

/// Waits for a file without running anything in the container.
pub(crate) async fn wait_for_file(environment: &dyn Environment, path: &str) {
    let there = async || environment.copy_from(path).await.expect("readable").is_some();
    until(path, there).await;
}

pub(crate) fn exists(path: &Path) -> bool {
    path.try_exists().expect("readable")
}
