//! Environments in which tries run, and what the providers that make them share.
//!
//! A [`Provider`] prepares images and creates environments. An [`Environment`] has a file system
//! and runs processes. Every implementation passes the same contract suite.
//!
//! * [`descriptor`]: what each kind of provider can do; `contract`: the suite that each passes. Providers are
//!   the crates `rollout-docker`, `rollout-process` and `rollout-kubernetes`, [`null`], and for tests `fake`
//! * [`dockerfile`], [`dockerignore`], [`build_context`], [`image_reference`], [`image_access`]: what images
//!   are made of, and where from; [`single_flight`], [`failed_builds`], [`registry_failure`]: their builds
//!   and pulls, with failures; [`compose`], [`compose_limits`], [`compose_place`]: compose files;
//!   [`service_hosts`]: names of services
//! * [`egress`]: what an environment may reach, and the proxy that holds it
//! * [`start`], [`time_limit`], [`kill`]: commands of environments; [`upload`]: files of environments;
//!   [`proxies`]: proxies of the host
//!
//! # Obligations of every implementation
//! * Every object carries the [`EnvironmentLabels`] of its owner from the call that creates it.
//! * [`Environment::destroy`] is idempotent: an object that no longer exists is a success.
//! * An error says whether the other side refused (an answer) or could not be reached (no answer);
//!   see [`Failure`].
//! * An exit code is never an error: errors mean that the outcome of the command is not known.
//! * Dropping a future may leave its effect done or undone, never half-known: the next call works.
//! * No asynchronous work happens in `Drop`.

pub mod build_context;
mod ca_bundle;
pub mod compose;
mod compose_file;
pub mod compose_limits;
pub mod compose_place;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
pub mod descriptor;
pub mod dockerfile;
pub mod dockerignore;
pub mod egress;
pub mod failed_builds;
mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod image_access;
pub mod image_reference;
mod install;
pub mod kill;
pub mod null;
mod own_health;
pub mod proxies;
mod proxy_key;
pub mod registry_failure;
pub mod registry_lookups;
pub mod service_hosts;
pub mod single_flight;
pub mod start;
pub mod time_limit;
pub mod upload;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::dependency::Dependency;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::record::{EnforcedLimits, ImageBuild};
use rollout_protocol::spec::environment::{ProviderKind, ProviderSpec};
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;
use rollout_protocol::wire::heartbeat::EnvironmentCapacity;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

pub use self::ca_bundle::CaBundle;
pub use self::compose_file::{ComposeFile, compose_fault};
pub use self::failure::with_words;
pub use self::failure::{Failure, FailureKind};
pub use self::install::InstallRequest;
pub use self::own_health::{ImageHealthcheck, OwnHealthcheck};
pub use self::proxies::{BuildProxies, HostProxies};
pub use self::proxy_key::ProxyKey;
use crate::egress::{LedNetwork, LedSockets};
pub use rollout_store::host::{DeadOwners, Owner};

/// Creates environments.
#[async_trait]
pub trait Provider: Send + Sync + fmt::Debug {
    /// The provider's kind.
    fn kind(&self) -> ProviderKind;

    /// Whether its environments exist only in this process's memory. They cannot outlive the
    /// process, so nothing about them has to be recorded.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Checks the settings of this host that it uses. Asks no service.
    ///
    /// # Errors
    /// A refusal that says what to correct.
    fn check_settings(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// The largest environment that it can create, from a query of its platform.
    ///
    /// # Errors
    /// [`Failure`] when it can create none at present.
    async fn capacity(&self) -> Result<EnvironmentCapacity, Failure> {
        Ok(EnvironmentCapacity::default())
    }

    /// The directory of this host that holds its environments' files, if they are on this host.
    ///
    /// # Errors
    /// [`Failure`] when the directory cannot be determined at present.
    async fn disk(&self) -> Result<Option<PathBuf>, Failure> {
        Ok(None)
    }

    /// The external service that its environments need, if there is one that can be unavailable.
    fn dependency(&self) -> Option<&Dependency> {
        None
    }

    /// The proxies that this host gives to environments with these settings, unless a document names
    /// some.
    fn proxies(&self, settings: &ProviderSpec) -> HostProxies {
        let _has_none = settings;
        HostProxies::default()
    }

    /// Removes objects that interrupted calls of this process left behind. Those that cannot be
    /// removed now are retried in the next call.
    async fn remove_deferred(&self) {}

    /// Longest time to make an image present, waits included, when its build may take `build`.
    fn prepare_limit(&self, build: Duration) -> Duration {
        build
    }

    /// Makes the image present: builds it once per content and host, or pulls it if absent.
    /// Concurrent calls for the same image share one build.
    ///
    /// # Errors
    /// [`Failure`] with the build log or the registry's answer.
    async fn prepare(&self, request: ImageRequest) -> Result<Image, Failure>;

    /// Makes an image with an agent installed on top of a present one, once per content and host.
    /// `None` if this provider cannot do so: the agent is installed in each environment then.
    ///
    /// # Errors
    /// [`Failure`], also when the script fails.
    async fn install(
        &self,
        base: &Image,
        request: InstallRequest,
    ) -> Result<Option<Image>, Failure> {
        drop((base, request));
        Ok(None)
    }

    /// Sets the store of the base image digests that a run has chosen. Images of the run that are
    /// built afterwards use these digests.
    fn set_base_digests(&self, run: RunId, digests: Arc<dyn BaseDigests>) {
        drop((run, digests));
    }

    /// Makes the images of an environment's services present, before its creation, which cannot be
    /// interrupted.
    ///
    /// # Errors
    /// [`Failure`], as in the creation.
    async fn prepare_services(&self, request: &CreateRequest) -> Result<(), Failure> {
        let _has_none = request;
        Ok(())
    }

    /// Longest time to create and start an environment. Docker needs a fifth of a second, and a minute
    /// when sixty start at once.
    fn start_limit(&self) -> Duration {
        Duration::from_secs(600)
    }

    /// Creates and starts an environment.
    ///
    /// # Errors
    /// [`Failure`]; nothing of the environment is left behind.
    async fn create(&self, request: CreateRequest) -> Result<Box<dyn Environment>, Failure>;

    /// Removes objects of dead owners. Never touches those of a live owner, preserved ones, or
    /// another user's.
    ///
    /// # Errors
    /// When the objects cannot be listed; single removals that fail are in the report.
    async fn reap(&self, dead: &dyn DeadOwners) -> Result<ReapReport, Failure>;
}

/// The digests of base images that a run has chosen, shared by all of its workers.
#[async_trait]
pub trait BaseDigests: Send + Sync + fmt::Debug {
    /// The chosen digest of an image, if any.
    ///
    /// # Errors
    /// [`Failure`] when the digest cannot be looked up.
    async fn chosen_digest(&self, image: &str) -> Result<Option<String>, Failure>;

    /// Chooses a digest unless one was chosen before; returns the chosen one.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be stored.
    async fn choose_digest(&self, image: &str, digest: String) -> Result<String, Failure>;
}

/// One running environment.
#[async_trait]
pub trait Environment: Send + Sync + fmt::Debug {
    /// Name of the environment at its provider, shown to people.
    fn id(&self) -> &str;

    /// Directory in which scripts run (the image's working directory).
    fn workdir(&self) -> &str;

    /// The limits that are enforced.
    fn limits(&self) -> EnforcedLimits;

    /// Places files into the environment. `uploads` are applied in order, in one operation where
    /// the provider can.
    ///
    /// # Errors
    /// [`Failure`]; some of the files may be in place.
    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure>;

    /// Reads `path` (a file or directory) as an uncompressed tar stream whose names start with the
    /// base name of `path`. The content is hostile: readers must go through
    /// [`archive`](rollout_store::archive). Dropping the stream ends the transfer.
    ///
    /// # Errors
    /// [`Failure`]; `None` when there is nothing at `path`.
    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure>;

    /// Runs a command to its end, writing its output to `output` as it arrives. Returning early is
    /// not possible: a command is ended by [`Environment::kill_processes`] or
    /// [`Environment::destroy`], after which this returns within a few seconds.
    ///
    /// # Errors
    /// [`Failure`] when the command could not be started or its outcome is not known.
    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure>;

    /// Kills every process that a command started, `setsid` and double forks included, and verifies
    /// that they have ended. The environment itself (its init and keep-alive) stays usable.
    ///
    /// # Errors
    /// [`Failure`] when processes may still be alive.
    async fn kill_processes(&self) -> Result<(), Failure>;

    /// Changes the environment's network access, within the provider's settings.
    ///
    /// # Errors
    /// [`Failure`]; refused where it cannot be enforced. The access is then at least as strict as
    /// before.
    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure>;

    /// The external service that it needs, see [`Provider::dependency`].
    fn dependency(&self) -> Option<&Dependency> {
        None
    }

    /// A service of the environment, by name. It accepts only commands and files, and lives as long
    /// as the environment.
    fn service(&self, name: &str) -> Option<&dyn Environment> {
        let _none = name;
        None
    }

    /// How its processes reach a listener of this process.
    ///
    /// # Errors
    /// [`Failure`]; refused where there is no way.
    async fn listener_route(&self) -> Result<ListenerRoute, Failure> {
        let text = "processes of this kind of environment cannot reach a listener of the worker";
        Err(Failure::new(FailureKind::Unsupported, text))
    }

    /// Leads connections of its processes to sockets of this process: those to `networks`, and those to
    /// names, whose queries lead there too. Everything else is refused. Only for an environment
    /// without a network; replaces what an earlier call set up. `None` where that is not possible.
    ///
    /// # Errors
    /// [`Failure`].
    async fn lead_connections(
        &self,
        networks: &[LedNetwork],
    ) -> Result<Option<LedSockets>, Failure> {
        let _nowhere = networks;
        Ok(None)
    }

    /// Whether programs of its image or its task run in it from its start, which may still be
    /// starting when it has been created.
    fn has_own_programs(&self) -> bool {
        false
    }

    /// The healthcheck that it has besides that of its task, where the ENTRYPOINT of its image runs in it.
    fn own_healthcheck(&self) -> Option<OwnHealthcheck> {
        None
    }

    /// Whether the memory limit has killed a process so far.
    async fn oom_killed(&self) -> bool;

    /// Measures the data written since the environment was created, where the storage limit is
    /// measured rather than enforced. Above the limit, all its processes are killed.
    ///
    /// # Errors
    /// [`FailureKind::StorageExceeded`] and nothing else: a measurement that is not possible is no
    /// failure.
    async fn check_storage(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether it still runs, where programs of its own can end it. Asked before the first command, which
    /// would fail as if it were at fault.
    ///
    /// # Errors
    /// [`FailureKind::NotStarted`] with the reason, or the [`Failure`] of the question.
    async fn check_running(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether its files are still where they were made, where something else on this host can remove
    /// them. Programs that run meanwhile fail as if they were at fault.
    ///
    /// # Errors
    /// [`FailureKind::Gone`] and nothing else.
    async fn check_exists(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Ends all processes; files stay readable by [`Environment::copy_from`].
    ///
    /// # Errors
    /// [`Failure`].
    async fn stop(&self) -> Result<(), Failure>;

    /// Removes the environment with all its contents.
    ///
    /// # Errors
    /// [`Failure`] when something is left.
    async fn destroy(&self) -> Result<(), Failure>;

    /// Marks the environment as preserved: no reaper removes it afterwards. Returns instructions
    /// for entering it.
    ///
    /// # Errors
    /// [`Failure`].
    async fn preserve(&self) -> Result<String, Failure>;
}

/// A way from the processes of an environment to a listener of this process.
#[derive(Debug)]
pub enum ListenerRoute {
    /// An address of this host, to listen on: processes reach it under this address. Port 0 is any
    /// free one.
    HostAddress(SocketAddr),
    /// A listener on the loopback interface of the environment's own network, whose connections
    /// this process accepts. Nothing else reaches it.
    OwnLoopback(TcpListener),
}

/// A stream of bytes from an environment.
pub type ByteStream = Box<dyn AsyncRead + Send + Unpin>;

/// Receives a command's output. Called from the task that runs the command; must not block.
pub trait OutputSink: Send + Sync {
    /// More bytes of a stream.
    fn write(&self, stream: OutputStream, bytes: &[u8]);
}

/// A standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Request for an environment's image.
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// The image named by the task, unless it has to be built.
    pub source: ImageSource,
    /// Build without cache.
    pub force_build: bool,
    /// Timeout of the build or pull. The caller enforces it too.
    pub timeout: Duration,
    /// Path for the bounded log of a failed build; the directory may not exist yet. The log's tail
    /// is in the failure anyway.
    pub log: Option<PathBuf>,
    /// Proxies for the commands of a build, where the provider can pass them on.
    pub proxies: BuildProxies,
    /// The provider's settings in the job.
    pub settings: ProviderSpec,
    /// Labels of the requester.
    pub labels: EnvironmentLabels,
}

/// Source of an image.
#[derive(Debug, Clone)]
pub enum ImageSource {
    /// A reference to pull if it is absent.
    Named(String),
    /// A build context: a directory holding a deterministic copy of the task's `environment/`.
    Context {
        /// Digest of the context's archive: equal digests mean equal images.
        digest: Digest,
        /// The unpacked context.
        dir: PathBuf,
    },
}

/// An image that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The provider's reference.
    pub reference: String,
    /// Whether this call built or pulled it; false if it was present.
    pub made: bool,
    /// Build info, if it was built and the info is known.
    pub build: Option<ImageBuild>,
}

impl Image {
    /// An image that was present.
    pub fn found(reference: impl Into<String>) -> Self {
        Self { reference: reference.into(), made: false, build: None }
    }
}

/// Request for an environment.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// Its image.
    pub image: Image,
    /// The image's source, for providers that build their environments from the context itself.
    pub source: ImageSource,
    /// Resource limits.
    pub resources: Resources,
    /// Environment variables of all its commands, on top of the image's own.
    pub env: BTreeMap<String, String>,
    /// Directory in which scripts run; the image's when absent.
    pub workdir: Option<String>,
    /// Initial network access, within the provider's settings.
    pub network: NetworkPolicy,
    /// Its services.
    pub compose: Option<ComposeFile>,
    /// Files to place before anything runs.
    pub uploads: Vec<Upload>,
    /// The provider's settings in the job.
    pub settings: ProviderSpec,
    /// Labels of its owner.
    pub labels: EnvironmentLabels,
    /// Its purpose.
    pub purpose: EnvironmentPurpose,
}

/// Purpose of an environment. One execution has at most one environment of each purpose at a time,
/// so names derived from the execution must include the purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum EnvironmentPurpose {
    /// Runs the agent, and usually the verifier too.
    #[default]
    Agent,
    /// Runs only the verifier, on files copied from the agent's environment.
    Verifier,
}

/// Labels that identify the owner of an object, set in the call that creates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentLabels {
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Worker.
    pub worker: WorkerId,
    /// Proof of life of the owning process.
    pub owner: Owner,
}

/// Result of a reap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReapReport {
    /// Names of the removed objects.
    pub removed: Vec<String>,
    /// Names of the objects that could not be removed, with the reason.
    pub failed: Vec<(String, String)>,
    /// Number of objects that were kept because their owner is alive or cannot be proven dead, or
    /// because they were preserved.
    pub kept: usize,
}

/// Files to place into an environment.
#[derive(Debug, Clone)]
pub enum Upload {
    /// An empty directory at an absolute path, open to every user. Any tree, file or link there is
    /// replaced.
    FreshDir {
        /// Absolute path.
        path: String,
    },
    /// A directory that must exist and be open to every user; its content stays.
    Dir {
        /// Absolute path.
        path: String,
    },
    /// A file.
    File {
        /// Absolute path; missing parents are made.
        path: String,
        /// Content.
        bytes: bytes::Bytes,
        /// Whether it can be executed.
        executable: bool,
    },
    /// The content of a deterministic tar archive of this program below an absolute path that is
    /// replaced like [`Upload::FreshDir`].
    Archive {
        /// Absolute path of the directory.
        path: String,
        /// The archive on local disk.
        tar: PathBuf,
    },
    /// The content of a deterministic tar archive of this program, merged into an absolute path:
    /// other files there stay.
    Merge {
        /// Absolute path of the directory; made if absent.
        path: String,
        /// The archive on local disk.
        tar: PathBuf,
    },
}

/// A command to run in an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment variables on top of the environment's own.
    pub env: BTreeMap<String, String>,
    /// Directory; the environment's working directory when absent.
    pub workdir: Option<String>,
    /// Name or number of the user that runs it; the environment's own user when absent.
    pub user: Option<String>,
}

/// Outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandExit {
    /// The exit code; 128 + n when signal n ended it.
    pub code: i32,
}
