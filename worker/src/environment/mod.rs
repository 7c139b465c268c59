//! Environments: where tries run, and the providers that make them.
//!
//! A [`Provider`] prepares images and creates environments; an [`Environment`] is one running
//! place with a file system and processes. Every implementation passes the same contract suite.
//!
//! # Obligations of every implementation
//! * Whatever is created carries the [`EnvironmentLabels`] of its owner from the call that creates it.
//! * [`Environment::destroy`] is idempotent: something already gone is a success.
//! * An error says whether the other side refused (an answer) or could not be reached (no answer);
//!   see [`Failure`].
//! * An exit code is never an error: errors mean that the command's end is not known.
//! * Dropping a future may leave its effect done or undone, never half-known: the next call works.
//! * No asynchronous work happens in `Drop`.

pub mod build_context;
#[cfg(any(test, feature = "testing"))]
pub mod contract;
pub mod descriptor;
#[cfg(feature = "docker")]
pub mod docker;
pub mod dockerfile;
pub mod dockerignore;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod null;
#[cfg(feature = "process")]
pub mod process;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::record::{EnforcedLimits, ImageBuild};
use rollout_protocol::spec::environment::{ProviderKind, ProviderSpec};
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;
use rollout_protocol::wire::heartbeat::EnvironmentCapacity;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

use crate::dependency::Dependency;
pub use crate::host::{DeadOwners, Owner};
use crate::shortage::Shortage;

/// Makes environments.
#[async_trait]
pub trait Provider: Send + Sync + fmt::Debug {
    /// Which provider this is.
    fn kind(&self) -> ProviderKind;

    /// Whether its environments are nothing but memory of this process: such an environment cannot
    /// outlive it, so that nothing has to be noted of it and nothing is worth recording.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// The largest environment it can make, from a look at what it makes them of.
    ///
    /// # Errors
    /// [`Failure`] when it can make none at present.
    async fn capacity(&self) -> Result<EnvironmentCapacity, Failure> {
        Ok(EnvironmentCapacity::default())
    }

    /// The directory of this host in which its environments' files are, if they are on this host.
    ///
    /// # Errors
    /// [`Failure`] when that cannot be told at present.
    async fn disk(&self) -> Result<Option<PathBuf>, Failure> {
        Ok(None)
    }

    /// The service that its environments live in, where there is one that can be away.
    fn dependency(&self) -> Option<&Dependency> {
        None
    }

    /// Removes what calls of this process left when they broke off. What cannot be removed now is
    /// kept in mind for the next call.
    async fn remove_deferred(&self) {}

    /// Makes the image present: builds it once per content and host, or pulls it if absent.
    /// Concurrent calls for the same image share one build.
    ///
    /// # Errors
    /// [`Failure`] with the build log or the registry's answer.
    async fn prepare(&self, request: ImageRequest) -> Result<Image, Failure>;

    /// Says where the digests of base images that a run has chosen are kept. Images of the run that
    /// are built afterwards are built from those.
    fn set_base_digests(&self, run: RunId, digests: Arc<dyn BaseDigests>) {
        drop((run, digests));
    }

    /// Creates and starts an environment.
    ///
    /// # Errors
    /// [`Failure`]; nothing of the environment is left behind.
    async fn create(&self, request: CreateRequest) -> Result<Box<dyn Environment>, Failure>;

    /// Removes what dead owners left behind. Never touches what a living owner has, what was
    /// preserved, or another user's.
    ///
    /// # Errors
    /// When the leftovers cannot be listed; single removals that fail are counted in the answer.
    async fn reap(&self, dead: &dyn DeadOwners) -> Result<ReapReport, Failure>;
}

/// The digests of base images that a run has chosen, for all of its workers.
#[async_trait]
pub trait BaseDigests: Send + Sync + fmt::Debug {
    /// The digest of an image, if one was chosen.
    ///
    /// # Errors
    /// [`Failure`] when that cannot be said.
    async fn chosen_digest(&self, image: &str) -> Result<Option<String>, Failure>;

    /// Chooses a digest, unless another one was chosen before; which one it is.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be kept.
    async fn choose_digest(&self, image: &str, digest: String) -> Result<String, Failure>;
}

/// One running environment.
#[async_trait]
pub trait Environment: Send + Sync + fmt::Debug {
    /// Name of the environment at its provider, for people.
    fn id(&self) -> &str;

    /// Directory in which scripts run (the image's working directory).
    fn workdir(&self) -> &str;

    /// Which limits really hold.
    fn limits(&self) -> EnforcedLimits;

    /// Places files into the environment. `uploads` are applied in order, in one operation where
    /// the provider can.
    ///
    /// # Errors
    /// [`Failure`]; some of the files may be in place.
    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure>;

    /// Reads `path` (a file or directory) as an uncompressed tar stream whose names start with the
    /// base name of `path`. The content is hostile: readers must go through
    /// [`archive`](crate::archive). Dropping the stream ends the transfer.
    ///
    /// # Errors
    /// [`Failure`]; `None` when there is nothing at `path`.
    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure>;

    /// Runs a command to its end, writing what it prints to `output` as it comes. Returning early
    /// is not possible: a command is ended by [`Environment::kill_processes`] or
    /// [`Environment::destroy`], after which this returns within a few seconds.
    ///
    /// # Errors
    /// [`Failure`] when the command could not be started or its end is not known.
    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure>;

    /// Ends every process that a command started, `setsid` and double forks included, and verifies
    /// that they are gone; the environment itself (its init and keep-alive) stays usable.
    ///
    /// # Errors
    /// [`Failure`] when processes may still be alive.
    async fn kill_processes(&self) -> Result<(), Failure>;

    /// Changes what the environment may reach, within what the provider's settings allow.
    ///
    /// # Errors
    /// [`Failure`]; refused where it cannot be enforced. What holds then is at least as strict as
    /// before.
    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure>;

    /// The service that it lives in, see [`Provider::dependency`].
    fn dependency(&self) -> Option<&Dependency> {
        None
    }

    /// A service beside the environment, by its name: a place for commands and files only, which
    /// lives as long as the environment.
    fn service(&self, name: &str) -> Option<&dyn Environment> {
        let _none = name;
        None
    }

    /// Whether the memory limit has killed a process so far.
    async fn oom_killed(&self) -> bool;

    /// Measures what was written since the environment was made, where the storage limit is
    /// measured rather than enforced. Above the limit, everything that runs in it is ended.
    ///
    /// # Errors
    /// [`FailureKind::StorageExceeded`] and nothing else: what cannot be measured is no failure.
    async fn check_storage(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Ends all processes; files stay readable by [`Environment::copy_from`].
    ///
    /// # Errors
    /// [`Failure`].
    async fn stop(&self) -> Result<(), Failure>;

    /// Removes the environment and everything it holds.
    ///
    /// # Errors
    /// [`Failure`] when something is left.
    async fn destroy(&self) -> Result<(), Failure>;

    /// Marks the environment as one to keep: no reaper removes it afterwards. Returns how a person
    /// gets into it.
    ///
    /// # Errors
    /// [`Failure`].
    async fn preserve(&self) -> Result<String, Failure>;
}

/// A stream of bytes from an environment.
pub type ByteStream = Box<dyn AsyncRead + Send + Unpin>;

/// Receives what a command prints. Called from the task that runs the command; must not block.
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

/// What image an environment needs.
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// The image named by the task, unless it has to be built.
    pub source: ImageSource,
    /// Build without cache.
    pub force_build: bool,
    /// Time for the build or pull. The caller enforces it too.
    pub timeout: Duration,
    /// Where the log of a build that fails goes, bounded, into a directory that may not exist yet;
    /// its tail stands in the failure anyway.
    pub log: Option<PathBuf>,
    /// The provider's settings of the job.
    pub settings: ProviderSpec,
    /// Who asks.
    pub labels: EnvironmentLabels,
}

/// Where an image comes from.
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
    /// Whether this call built or pulled it (as opposed to finding it).
    pub made: bool,
    /// How it was built, when it was built and that is known.
    pub build: Option<ImageBuild>,
}

impl Image {
    /// An image that was present.
    pub fn found(reference: impl Into<String>) -> Self {
        Self { reference: reference.into(), made: false, build: None }
    }
}

/// What environment to create.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// Its image.
    pub image: Image,
    /// The image's source, for providers that build their environments from the context itself.
    pub source: ImageSource,
    /// Ceilings.
    pub resources: Resources,
    /// Variables of everything that runs in it, on top of the image's own.
    pub env: BTreeMap<String, String>,
    /// Directory in which scripts run; the image's when absent.
    pub workdir: Option<String>,
    /// What it may reach at first, within what the provider's settings allow.
    pub network: NetworkPolicy,
    /// Services beside it.
    pub compose: Option<ComposeFile>,
    /// Files to place before anything runs.
    pub uploads: Vec<Upload>,
    /// The provider's settings of the job.
    pub settings: ProviderSpec,
    /// Whose environment it is.
    pub labels: EnvironmentLabels,
    /// What it is for.
    pub purpose: EnvironmentPurpose,
}

/// What an environment is for. One execution has at most one of each at a time; what is named after
/// the execution has to be named after this, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum EnvironmentPurpose {
    /// The agent works in it, and mostly it is verified there, too.
    #[default]
    Agent,
    /// Nothing but the verification of what was brought there from the agent's.
    Verifier,
}

/// A description of services beside an environment, in the format of Docker Compose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposeFile {
    /// The unpacked build context, also of an environment whose own image is named.
    pub dir: PathBuf,
    /// The file, relative to it.
    pub file: PathBuf,
}

/// Whose environment something is: set in the call that creates it.
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

/// What a reaper did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReapReport {
    /// Names of what was removed.
    pub removed: Vec<String>,
    /// Names and reasons of what should have been removed but could not.
    pub failed: Vec<(String, String)>,
    /// How much was left because its owner lives or cannot be proven dead, or was preserved.
    pub kept: usize,
}

/// Files to place into an environment.
#[derive(Debug, Clone)]
pub enum Upload {
    /// An empty directory at an absolute path, open to every user, made anew: whatever was there
    /// before (a tree, a file, a link) is gone.
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
    /// The content of one of our own deterministic tar archives below an absolute path that is made
    /// anew like [`Upload::FreshDir`].
    Archive {
        /// Absolute path of the directory.
        path: String,
        /// The archive on local disk.
        tar: PathBuf,
    },
    /// The content of one of our own deterministic tar archives over what is at an absolute path:
    /// what the archive does not name stays.
    Merge {
        /// Absolute path of the directory; made when it is not there.
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
    /// Variables on top of the image's own.
    pub env: BTreeMap<String, String>,
    /// Directory; the environment's working directory when absent.
    pub workdir: Option<String>,
    /// Name or number of the user that it runs as; the environment's own when absent.
    pub user: Option<String>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandExit {
    /// The exit code; 128 + n when signal n ended it.
    pub code: i32,
}

/// Why a provider or environment could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What was tried, on what, and what the other side said.
    pub message: String,
    /// The cause, where it is an error of its own.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Kinds of [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The request itself is wrong for good: a Dockerfile that does not build, an image that does
    /// not exist or is denied, an instruction that cannot be honoured.
    Refused,
    /// The task needs something that this kind of environment, or its platform, does not have.
    Unsupported,
    /// More was asked for than the platform can give.
    Resources,
    /// The host has no open files, memory or processes left just now.
    Exhausted,
    /// The environment came up and went down, or a command could not be started in it.
    NotStarted,
    /// The environment is gone.
    Gone,
    /// The kernel or the platform forbids what is needed.
    NotPermitted,
    /// A disk of the host is full.
    DiskFull,
    /// What runs in the environment wrote more than the environment's own storage limit allows.
    StorageExceeded,
    /// What a task or an agent put into the environment cannot be used: a service that ended, a
    /// file where a directory is needed.
    Unusable,
    /// No answer: the service may be down.
    Unreachable,
    /// The time given in the request passed before the work was done.
    TimedOut,
    /// An answer that says the service has a problem of its own.
    Service,
    /// Something is left that should be gone.
    LeftBehind,
    /// A defect of ours.
    Bug,
}

impl FailureKind {
    /// The kind of a failure by what the host ran out of.
    pub fn from_shortage(shortage: Option<Shortage>) -> Option<Self> {
        shortage.map(|shortage| match shortage {
            Shortage::Disk => Self::DiskFull,
            Shortage::Host => Self::Exhausted,
        })
    }
}

impl Failure {
    /// A failure without a cause of its own.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// A failure by an error of this host: a shortage, else of `kind`.
    pub fn local(kind: FailureKind, message: impl Into<String>, error: std::io::Error) -> Self {
        let kind = FailureKind::from_shortage(Shortage::from_io_error(&error)).unwrap_or(kind);
        Self::new(kind, message).with_source(error)
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The message with the chain of causes, each said once.
    pub fn chain(&self) -> String {
        let source = self.source.as_deref().map(|source| source as _);
        crate::backoff::with_causes(self.message.clone(), source)
    }
}
