//! The connection to a Docker engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use tokio::sync::OnceCell;

use super::failure;
use crate::environment::{Failure, FailureKind};

/// Where an engine listens when nothing else is said.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// How long an answer to an ordinary call may take to begin. An overloaded engine needs seconds to
/// start a container; one that says nothing for two minutes is not there.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// The same for calls that work on many files: removing a layer of 200,000 files was seen to take
/// 20 seconds, and a large archive is extracted before the answer begins.
const SLOW_ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// The oldest Engine API with everything that is used (Docker 20.10).
const OLDEST_API: (usize, usize) = (1, 41);

/// A lazily made connection to one engine: an engine that is down when a worker starts may come up
/// later.
#[derive(Debug)]
pub(super) struct Client {
    host: String,
    docker: OnceCell<Docker>,
    calls: Arc<AtomicU64>,
}

impl Client {
    /// A client of the engine at `host`: `unix:///path`, the path of a socket, `tcp://host:port`,
    /// or, when absent, what `DOCKER_HOST` says.
    pub(super) fn new(host: Option<String>) -> Self {
        let host = host
            .or_else(|| std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()))
            .unwrap_or_else(|| DEFAULT_HOST.to_owned());
        let host = if host.starts_with('/') { format!("unix://{host}") } else { host };
        Self { host, docker: OnceCell::new(), calls: Arc::default() }
    }

    /// Where the engine listens.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Number of requests sent so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The connection; made, checked and its version agreed on by the first call.
    pub(super) async fn docker(&self) -> Result<&Docker, Failure> {
        self.docker.get_or_try_init(|| self.connect()).await
    }

    /// The connection for calls whose answer may take long to begin.
    pub(super) async fn slow(&self) -> Result<Docker, Failure> {
        self.with_patience(SLOW_ANSWER_WITHIN).await
    }

    /// The connection for calls whose answer begins within `patience`.
    pub(super) async fn with_patience(&self, patience: Duration) -> Result<Docker, Failure> {
        Ok(self.docker().await?.clone().with_timeout(patience))
    }

    /// The failure of `what`, with what the engine said.
    pub(super) fn failure(&self, what: &str, error: bollard::errors::Error) -> Failure {
        failure::of_call(&self.host, what, error)
    }

    async fn connect(&self) -> Result<Docker, Failure> {
        let what = "connecting to the Docker engine";
        let seconds = ANSWER_WITHIN.as_secs();
        let docker = match self.host.split_once("://") {
            Some(("unix", _)) => {
                Docker::connect_with_unix(&self.host, seconds, API_DEFAULT_VERSION)
            }
            Some(("tcp" | "http", _)) => {
                Docker::connect_with_http(&self.host, seconds, API_DEFAULT_VERSION)
            }
            _ => {
                return Err(Failure::new(
                    FailureKind::Refused,
                    format!(
                        "the Docker engine's address `{}` is not supported: expected \
                         unix:///path/to/socket or tcp://host:port (see DOCKER_HOST)",
                        self.host
                    ),
                ));
            }
        };
        let calls = Arc::clone(&self.calls);
        let docker = docker.map_err(|e| self.failure(what, e))?.with_request_modifier(move |r| {
            calls.fetch_add(1, Ordering::Relaxed);
            r
        });
        let docker = docker.negotiate_version().await.map_err(|e| self.failure(what, e))?;
        let version = docker.client_version();
        if (version.major_version, version.minor_version) < OLDEST_API {
            let (major, minor) = OLDEST_API;
            return Err(Failure::new(
                FailureKind::Refused,
                format!(
                    "the Docker engine at {} speaks API {version}; {major}.{minor} (Docker 20.10) \
                     or newer is needed",
                    self.host
                ),
            ));
        }
        Ok(docker)
    }
}
