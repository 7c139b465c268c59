//! Agents, and the model gateway: agents call model servers through their worker, which puts in the
//! keys and records every call.
//!
//! * [`agents`]: setup of agents in an environment and the commands they run there.
//! * [`ModelGateway`] opens a [`TryGateway`] for each execution, with a key of its own. The
//!   implementation, an HTTP proxy, is `proxy`, with the feature of that name.
//! * [`run_calls`]: pauses and policy versions of runs, and limits that a run shares with other workers.

pub mod agents;
#[cfg(feature = "proxy")]
pub mod proxy;
pub mod run_calls;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_base::secrets::Redactor;
use rollout_base::shown_path::shown;
use rollout_environment::ListenerRoute;
use rollout_protocol::id::RunId;
use rollout_protocol::record::GatewaySummary;
use rollout_protocol::spec::agent::SessionFormat;
use rollout_protocol::spec::budget::{ModelUse, TryBudget};
use rollout_protocol::spec::gateway::{ModelDialect, UpstreamSpec};

use self::run_calls::RunCallTable;

/// The gateway of a worker.
#[async_trait]
pub trait ModelGateway: Send + Sync + fmt::Debug {
    /// Opens the gateway for an execution, with a key of its own.
    ///
    /// # Errors
    /// [`GatewayError`].
    async fn open(&self, request: TryRequest) -> Result<Arc<dyn TryGateway>, GatewayError>;

    /// The model calls of its runs, which coordinators pause.
    fn run_calls(&self) -> Arc<RunCallTable>;
}

/// The needs of an execution.
#[derive(Debug)]
pub struct TryRequest {
    /// The run of the execution.
    pub run: RunId,
    /// The model servers, in the order of the job.
    pub upstreams: Vec<Upstream>,
    /// The only one that it may use; all when absent.
    pub only: Option<String>,
    /// Budget of its calls; without a limit when absent.
    pub budget: Option<TryBudget>,
    /// Whether the limits of the servers hold for all workers of the run together, within leases.
    pub is_leased: bool,
    /// Directory for the files of the calls.
    pub directory: PathBuf,
    /// Masks secrets in the files.
    pub redactor: Redactor,
    /// The agent, for its trajectory.
    pub agent: TrajectoryAgent,
}

/// The agent of a trajectory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrajectoryAgent {
    /// Its name in the job.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The model that the job asks it to use.
    pub model: Option<String>,
    /// Id of its execution.
    pub session: String,
}

/// A model server with its key. Its debug output has no key.
#[derive(Clone)]
pub struct Upstream {
    /// The server.
    pub spec: UpstreamSpec,
    /// The key, if it needs one.
    pub key: Option<String>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// The gateway of one execution.
#[async_trait]
pub trait TryGateway: Send + Sync + fmt::Debug {
    /// Makes the gateway reachable from an environment; returns the variables that clients of the
    /// model servers need there. Former ways stay.
    ///
    /// # Errors
    /// [`GatewayError`].
    async fn serve(&self, route: ListenerRoute) -> Result<BTreeMap<String, String>, GatewayError>;

    /// Calls a model as the agent itself, at a path below the prefix of a dialect.
    async fn call(&self, dialect: ModelDialect, path: &str, body: Bytes) -> GatewayReply;

    /// Time in which a model server did not answer, and in which it waited for a call during a
    /// pause or for memory that other executions held: it does not count for the agent. Times of
    /// several servers, of a pause and of such waits are added up.
    fn stopped_time(&self) -> Duration;

    /// Whether a model server does not answer, or it waits for a call during a pause, or for memory.
    fn is_stopped(&self) -> bool;

    /// Waits until all calls have ended, for a short time: connections of an agent that has ended
    /// close at once.
    async fn wait_for_calls(&self);

    /// Why the calls say nothing about the agent, if they do not: the last request of a conversation
    /// was not answered for a cause of the server, or no call was answered.
    fn call_failure(&self) -> Option<CallFailure>;

    /// The limit of its budget that its calls exceeded, in words. Calls are refused from then on.
    fn exceeded_budget(&self) -> Option<String>;

    /// Ends all calls and returns their records, with the figures of the agent's own session if there
    /// is one. Calls that come later are refused.
    async fn close(&self, session: Option<SessionFiles>) -> TryCalls;
}

/// The files of an agent's own session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFiles {
    /// An archive of `/logs`.
    pub archive: PathBuf,
    /// How they count calls.
    pub format: SessionFormat,
}

/// A reply that the gateway gives: the server's, or its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayReply {
    /// Status of HTTP; 502 for a reply that breaks off.
    pub status: u16,
    /// Time after which the call may be repeated, if the reply names one.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

/// Why calls have no reply of a model, for a reason that is none of the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFailure {
    /// The last request of a conversation and its repetitions have no answer: the server could not
    /// be reached, broke its reply off, was too busy or failed; or calls were paused.
    Unanswered,
    /// The server refused the key or the model of the job: no call of the execution was answered.
    Refused,
}

/// The calls of an execution.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TryCalls {
    /// The figures.
    pub summary: GatewaySummary,
    /// Their use at most: a call of unknown use counts as what it reserved.
    pub used: ModelUse,
    /// The files of the records.
    pub files: Vec<PathBuf>,
}

/// Why the gateway cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// An address of a model server is invalid.
    #[error("cannot use the model server `{upstream}`: `{url}` is not an http or https address")]
    Address {
        /// Name of the server.
        upstream: String,
        /// The address.
        url: String,
    },
    /// A pattern of models that cannot be read.
    #[error("cannot use the model server `{upstream}`: `{pattern}` is not a pattern of models")]
    Models {
        /// Name of the server.
        upstream: String,
        /// The pattern.
        pattern: String,
    },
    /// A key that no header can hold.
    #[error(
        "cannot use the model server `{0}`: its key has characters that an HTTP header cannot hold"
    )]
    Key(String),
    /// No certificates to verify a server with.
    #[error("cannot load the certificates of this host; install `ca-certificates`")]
    Certificates(#[source] io::Error),
    /// A file of the records.
    #[error("cannot create the records of model calls in {}", shown(directory))]
    Records {
        /// Its directory.
        directory: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A listener.
    #[error("cannot listen for model calls{}", address.map_or(String::new(), |at| format!(" on {at}")))]
    Listen {
        /// Its address, if it is one of this host.
        address: Option<SocketAddr>,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl GatewayError {
    /// The error and its causes, in one line.
    pub fn chain(&self) -> String {
        let source = std::error::Error::source(self);
        source.map_or_else(|| self.to_string(), |source| format!("{self}: {source}"))
    }
}
