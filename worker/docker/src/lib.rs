//! Environments as containers of a Docker engine, through its API.
//!
//! * `client`, `connection`, `failure`: connections, and the classification of engine errors;
//!   `config_file`: proxies of the user's containers.
//! * `image`, `lock`, `build`: images, each pulled or built once per host, by
//!   BuildKit where the engine has it.
//! * `base_images`: the base images of builds, by digest; `base_platform`: those of a
//!   platform; `base_triggers`: a check of their triggers.
//! * `create`, `container`: a container from its creation to its removal; `image_health`: the healthcheck
//!   of its image.
//! * `copy`: files in and out, without running anything in the container.
//! * `exec`, `kill`: commands, and killing everything they started.
//! * `compose`: environments with services.
//! * `network`: network access of a container; `loopback`: listeners of this process inside it; `led`:
//!   connections that lead to them.
//! * `oom`, `storage`: memory kills and storage, which have to be watched.
//! * `prune`: removal of unused images.
//! * `reap`, `labels`: removal of what dead processes left behind; `deferred_removal`: of what this
//!   process could not remove.
//!
//! No job setting can make a container privileged, mount the host into it or share the host's
//! namespaces.

mod base_images;
mod base_platform;
mod base_triggers;
mod build;
mod client;
mod compose;
mod config_file;
mod connection;
mod container;
mod copy;
mod create;
mod deferred_removal;
mod exec;
mod failure;
mod image;
mod image_health;
mod install;
mod kill;
mod labels;
#[cfg(target_os = "linux")]
mod led;
mod lock;
#[cfg(target_os = "linux")]
mod loopback;
mod network;
mod oom;
mod prune;
mod reap;
mod storage;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::dependency::Dependency;
use rollout_base::removal_limits::RemovalLimits;
use rollout_base::supervise::{self, Task};
use rollout_environment::descriptor::BuiltProvider;
use rollout_environment::egress::{LedNetwork, LedSockets};
use rollout_environment::image_access::ImageAccess;
use rollout_environment::{
    BaseDigests, ByteStream, CaBundle, CommandExit, CreateRequest, DeadOwners, Environment,
    ExecCommand, Failure, FailureKind, HostProxies, Image, ImageRequest, InstallRequest,
    ListenerRoute, OutputSink, OwnHealthcheck, Provider, ReapReport, Upload,
};
use rollout_protocol::id::RunId;
use rollout_protocol::record::{EnforcedLimits, LimitEnforcement};
use rollout_protocol::spec::environment::{DockerSettings, ProviderKind, ProviderSpec};
use rollout_protocol::spec::task::NetworkPolicy;
use rollout_protocol::wire::heartbeat::EnvironmentCapacity;
use tokio::sync::oneshot;

use self::client::DockerClient;
use self::compose::{ComposeProject, ComposeRunner};
use self::container::Container;
use self::deferred_removal::{DeferredRemoval, DeferredRemovals};
use self::image::ImageManager;
use self::image_health::ImageHealthchecks;
use self::storage::StorageLimit;

pub use self::compose::find_compose;
pub use self::prune::{PrunedImages, TaskImage};

/// The provider, for the table of a program.
pub static PROVIDER: BuiltProvider = BuiltProvider {
    kind: ProviderKind::Docker,
    make: |paths| {
        let ca_bundle = paths.ca_bundle.cloned();
        let options = DockerOptions { ca_bundle, ..DockerOptions::new(paths.image_locks) };
        Arc::new(DockerProvider::new(options))
    },
    check_services: Some(compose::check),
    check_dockerfile: None,
};

/// Options of the provider.
#[derive(Debug, Clone)]
pub struct DockerOptions {
    /// Address of the engine: `unix:///path`, the path of a socket, or `tcp://host:port`. If
    /// absent, the value of `DOCKER_HOST`, else the default socket.
    pub host: Option<String>,
    /// Directory of the locks that make the processes of a host build an image once.
    pub locks: PathBuf,
    /// Path of the program `docker compose`. If absent, the value of `ROLLOUT_DOCKER_COMPOSE`, else
    /// the installed program.
    pub compose: Option<PathBuf>,
    /// Image of the frontend for Dockerfiles that name none. If absent, the value of
    /// `ROLLOUT_DOCKERFILE_FRONTEND`, else the engine's own frontend.
    pub frontend: Option<String>,
    /// Directory of Docker's `config.json`. If absent, the value of `DOCKER_CONFIG`, else `~/.docker`.
    pub config: Option<PathBuf>,
    /// CA bundle of environments and builds.
    pub ca_bundle: Option<CaBundle>,
    /// Time between two measurements of a container's storage, where it is measured.
    pub storage_interval: Duration,
}

impl DockerOptions {
    /// The default engine, with locks in `locks`.
    pub fn new(locks: impl Into<PathBuf>) -> Self {
        Self {
            host: None,
            locks: locks.into(),
            compose: None,
            frontend: None,
            config: None,
            ca_bundle: None,
            storage_interval: Duration::from_secs(5),
        }
    }
}

/// Creates environments as containers of a Docker engine. The first call connects, so that an
/// engine may come up after its worker.
#[derive(Debug)]
pub struct DockerProvider {
    client: Arc<DockerClient>,
    images: Arc<ImageManager>,
    compose: Arc<ComposeRunner>,
    /// Directory of Docker's `config.json`, and the proxies in it once they are asked for.
    config: Option<PathBuf>,
    proxies: OnceLock<HostProxies>,
    storage_interval: Duration,
    healthchecks: Arc<ImageHealthchecks>,
    no_storage_limits: Arc<AtomicBool>,
    leftovers: Arc<DeferredRemovals>,
    creations: Mutex<Vec<Task<()>>>,
}

impl DockerProvider {
    /// A provider; makes no call yet.
    pub fn new(options: DockerOptions) -> Self {
        let DockerOptions { locks, frontend, ca_bundle, .. } = options;
        let client = Arc::new(DockerClient::new(options.host));
        let images = ImageManager::new(Arc::clone(&client), locks, frontend, ca_bundle);
        let images = Arc::new(images);
        let compose = ComposeRunner::new(Arc::clone(&client), Arc::clone(&images), options.compose);
        Self {
            images,
            compose: Arc::new(compose),
            leftovers: Arc::new(DeferredRemovals::new(Arc::clone(&client))),
            client,
            config: config_file::directory(options.config),
            proxies: OnceLock::new(),
            storage_interval: options.storage_interval,
            healthchecks: Arc::default(),
            no_storage_limits: Arc::default(),
            creations: Mutex::default(),
        }
    }

    /// Checks that the engine answers and is new enough.
    ///
    /// # Errors
    /// [`Failure`] that says how to fix it.
    pub async fn check(&self) -> Result<(), Failure> {
        self.client.docker().await.map(|_| ())
    }

    /// Removes images that were built for tasks, by age and size, except those that a container
    /// uses.
    ///
    /// # Errors
    /// [`Failure`] when they cannot be listed; single removals that fail are in the result.
    pub async fn prune_images(&self, limits: &RemovalLimits) -> Result<PrunedImages, Failure> {
        prune::prune(&self.client, self.images.locks(), limits).await
    }

    /// Number of requests sent to the engine so far.
    pub fn calls(&self) -> u64 {
        self.client.calls()
    }
}

#[async_trait]
impl Provider for DockerProvider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Docker
    }

    fn check_settings(&self) -> Result<(), Failure> {
        self.client.check_address()
    }

    async fn capacity(&self) -> Result<EnvironmentCapacity, Failure> {
        let info = self.client.docker().await?.info().await;
        let info =
            info.map_err(|e| self.client.failure("cannot query the Docker engine's resources", e))?;
        let bytes = info.mem_total.and_then(|bytes| u64::try_from(bytes).ok());
        Ok(EnvironmentCapacity {
            cpus: info.ncpu.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0),
            memory_mb: bytes.map(|bytes| bytes / (1024 * 1024)).filter(|mb| *mb > 0),
        })
    }

    /// The engine's data directory, if the engine is on this host and reports it.
    async fn disk(&self) -> Result<Option<PathBuf>, Failure> {
        if !self.client.host().starts_with("unix://") {
            return Ok(None);
        }
        let info = self.client.docker().await?.info().await;
        let info =
            info.map_err(|e| self.client.failure("cannot query the Docker engine's directory", e))?;
        let root = info.docker_root_dir.map(PathBuf::from);
        let Some(root) = root.filter(|root| root.is_absolute()) else { return Ok(None) };
        let is_here = tokio::fs::metadata(&root).await.is_ok_and(|found| found.is_dir());
        Ok(is_here.then_some(root))
    }

    fn dependency(&self) -> Option<&Dependency> {
        Some(self.client.engine())
    }

    fn proxies(&self, settings: &ProviderSpec) -> HostProxies {
        let read = || {
            let directory = self.config.as_deref();
            directory.map(|directory| config_file::proxies(directory, self.client.host()))
        };
        let proxies = self.proxies.get_or_init(|| read().unwrap_or_default());
        match base_triggers::access(settings) {
            ImageAccess::Everything => proxies.clone(),
            _ => config_file::for_users_of_server(proxies),
        }
    }

    async fn remove_deferred(&self) {
        self.leftovers.retry_all().await;
    }

    async fn prepare(&self, request: ImageRequest) -> Result<Image, Failure> {
        let settings = docker_settings(&request.settings)?;
        let platform = settings.platform.clone();
        if settings.guards_builds {
            self.client.warn_of_shared_images().await;
        }
        self.images.prepare(request, platform).await
    }

    async fn install(
        &self,
        base: &Image,
        request: InstallRequest,
    ) -> Result<Option<Image>, Failure> {
        let platform = docker_settings(&request.settings)?.platform.clone();
        self.images.install(base, request, platform).await
    }

    fn set_base_digests(&self, run: RunId, digests: Arc<dyn BaseDigests>) {
        self.images.set_base_digests(run, digests);
    }

    async fn prepare_services(&self, request: &CreateRequest) -> Result<(), Failure> {
        let Some(file) = &request.compose else { return Ok(()) };
        let settings = docker_settings(&request.settings)?;
        Box::pin(self.compose.prepare_images(settings, request, file)).await
    }

    /// A cancelled creation continues in the background and is undone there, because the engine may
    /// have started it.
    async fn create(&self, mut request: CreateRequest) -> Result<Box<dyn Environment>, Failure> {
        let settings = docker_settings(&request.settings)?.clone();
        // Every service gets it, and a compose file may name another one.
        if let Some(bundle) = self.images.ca_bundle()
            && request.compose.is_none()
        {
            bundle.place(&mut request);
        }
        let (client, interval) = (Arc::clone(&self.client), self.storage_interval);
        let no_storage_limits = Arc::clone(&self.no_storage_limits);
        let healthchecks = Arc::clone(&self.healthchecks);
        let (leftovers, compose) = (Arc::clone(&self.leftovers), Arc::clone(&self.compose));
        let (answer, answered) = oneshot::channel();
        let creation = supervise::spawn("docker create", async move {
            let storage_mb = request.resources.storage_ceiling_mb().unwrap_or(u64::MAX);
            let up = match request.compose.clone() {
                Some(file) => compose.create(&leftovers, &settings, request, &file).await,
                None => {
                    let known = (&*no_storage_limits, &*healthchecks);
                    create::create(&client, known, &leftovers, &settings, request).await
                }
            };
            let answers = up.is_ok();
            let made = up.map(|up| DockerEnvironment::new(up, storage_mb, interval));
            if let Err(Ok(unwanted)) = answer.send(made) {
                unwanted.end_watch();
                leftovers.remove_or_defer(unwanted.deferred_removal()).await;
            }
            if answers {
                leftovers.retry_all().await;
            }
        });
        self.track_creation(creation);
        match answered.await {
            Ok(made) => Ok(Box::new(made?)),
            Err(_) => Err(Failure::new(FailureKind::Bug, "container creation was interrupted")),
        }
    }

    async fn reap(&self, dead: &dyn DeadOwners) -> Result<ReapReport, Failure> {
        self.leftovers.retry_all().await;
        reap::reap(&self.client, dead).await
    }
}

impl DockerProvider {
    fn track_creation(&self, creation: Task<()>) {
        let mut creations = self.creations.lock().unwrap_or_else(PoisonError::into_inner);
        creations.retain(|creation| !creation.is_finished());
        creations.push(creation);
    }
}

fn docker_settings(settings: &ProviderSpec) -> Result<&DockerSettings, Failure> {
    match settings {
        ProviderSpec::Docker(settings) => Ok(settings),
        other => {
            let message = format!("the docker provider got the settings of `{}`", other.kind());
            Err(Failure::new(FailureKind::Bug, message))
        }
    }
}

/// One container.
#[derive(Debug)]
struct DockerEnvironment {
    container: Arc<Container>,
    project: Option<ComposeProject>,
    workdir: String,
    has_own_programs: bool,
    own_healthcheck: Option<OwnHealthcheck>,
    limits: EnforcedLimits,
    storage_watch: Mutex<Option<Task<()>>>,
}

impl DockerEnvironment {
    fn new(up: create::StartedContainer, limit_mb: u64, interval: Duration) -> Self {
        let container = Arc::new(up.container);
        let enforced = up.limits.storage == LimitEnforcement::Enforced;
        if up.limits.storage != LimitEnforcement::No {
            let StorageLimit { service_ids, volume_baseline, .. } = up.storage;
            // A new container has no storage limit yet.
            let _first = container.storage.set(StorageLimit {
                limit_mb,
                enforced,
                service_ids,
                volume_baseline,
            });
        }
        let watch = (up.limits.storage == LimitEnforcement::Measured).then(|| {
            let watch = Arc::clone(&container).watch_storage(interval);
            supervise::spawn("docker storage watch", watch)
        });
        Self {
            container,
            project: up.project,
            workdir: up.workdir,
            has_own_programs: up.has_own_programs,
            own_healthcheck: up.own_healthcheck,
            limits: up.limits,
            storage_watch: Mutex::new(watch),
        }
    }

    fn deferred_removal(&self) -> DeferredRemoval {
        match &self.project {
            Some(project) => DeferredRemoval::Project(project.name.clone()),
            None => DeferredRemoval::Container(
                self.container.engine_id.clone(),
                self.container.name.clone(),
            ),
        }
    }

    fn end_watch(&self) {
        self.storage_watch.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[async_trait]
impl Environment for DockerEnvironment {
    fn id(&self) -> &str {
        &self.container.name
    }

    fn workdir(&self) -> &str {
        &self.workdir
    }

    fn limits(&self) -> EnforcedLimits {
        self.limits
    }

    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        self.container.copy_to(uploads).await
    }

    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        self.container.copy_from(path).await
    }

    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        self.container.exec(command, output).await
    }

    async fn kill_processes(&self) -> Result<(), Failure> {
        if self.container.over_storage.get().is_some() {
            return self.container.stop().await;
        }
        self.container.kill_processes().await
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        self.container.set_network(policy).await
    }

    fn dependency(&self) -> Option<&Dependency> {
        Some(self.container.client.engine())
    }

    fn service(&self, name: &str) -> Option<&dyn Environment> {
        let services = &self.project.as_ref()?.services;
        services.get(name).map(|service| service as &dyn Environment)
    }

    async fn listener_route(&self) -> Result<ListenerRoute, Failure> {
        self.container.listener_route().await
    }

    async fn lead_connections(
        &self,
        networks: &[LedNetwork],
    ) -> Result<Option<LedSockets>, Failure> {
        self.container.lead_connections(networks).await
    }

    fn has_own_programs(&self) -> bool {
        self.has_own_programs
    }

    fn own_healthcheck(&self) -> Option<OwnHealthcheck> {
        self.own_healthcheck.clone()
    }

    async fn oom_killed(&self) -> bool {
        self.container.oom_killed().await
    }

    async fn check_running(&self) -> Result<(), Failure> {
        self.container.check_running().await
    }

    async fn check_storage(&self) -> Result<(), Failure> {
        self.container.check_storage().await
    }

    async fn stop(&self) -> Result<(), Failure> {
        self.end_watch();
        // The kernel's count is lost when the processes end.
        self.container.record_oom();
        match &self.project {
            Some(project) => compose::project::stop(&self.container.client, &project.name).await,
            None => self.container.stop().await,
        }
    }

    async fn destroy(&self) -> Result<(), Failure> {
        self.end_watch();
        match &self.project {
            Some(project) => compose::project::remove(&self.container.client, &project.name).await,
            None => self.container.remove().await,
        }
    }

    async fn preserve(&self) -> Result<String, Failure> {
        self.end_watch();
        let name = self.container.preserve().await?;
        let all = match &self.project {
            Some(project) => {
                compose::project::preserve(&self.container.client, &project.name).await?.join(" ")
            }
            None => name.clone(),
        };
        Ok(format!("docker start {all} && docker exec -it {name} /bin/sh"))
    }
}
