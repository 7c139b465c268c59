//! The connection to a Docker engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, Docker};
use rollout_base::dependency::{Dependency, Probe};
use rollout_environment::{Failure, FailureKind};
use tokio::sync::OnceCell;

use super::failure;

/// Default address of the engine.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// Timeout for the start of an answer to an ordinary call. An overloaded engine needs seconds to
/// start a container; one that is silent for two minutes is down.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// The same for calls that work on many files. Removing a layer of 200,000 files took 20 seconds in
/// a measurement, and a large archive is extracted before the answer begins.
pub(super) const SLOW_ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// Timeout of a ping.
const PING_WITHIN: Duration = Duration::from_secs(10);

/// The oldest Engine API that has all calls used here (Docker 20.10).
const OLDEST_API: (usize, usize) = (1, 41);

/// A lazy connection to one engine: an engine that is down when a worker starts may come up later.
#[derive(Debug)]
pub(super) struct DockerClient {
    host: String,
    docker: OnceCell<Docker>,
    calls: Arc<AtomicU64>,
    no_buildkit: AtomicBool,
    /// Set once the kind of the engine is known.
    kind_known: OnceCell<()>,
    engine: Dependency,
}

/// The transport of an engine's address.
#[derive(Debug, Clone, Copy)]
enum Transport {
    Unix,
    Http,
}

/// Pings the engine on its own connection.
#[derive(Debug)]
struct EngineProbe {
    host: String,
}

#[async_trait]
impl Probe for EngineProbe {
    async fn probe(&self) -> Result<(), String> {
        let transport = Transport::for_address(&self.host).ok_or("its address is not supported")?;
        let docker = open_connection(transport, &self.host, PING_WITHIN.as_secs());
        let docker = docker.map_err(|error| failure::outage_cause(&error))?;
        docker.ping().await.map(drop).map_err(|error| failure::outage_cause(&error))
    }
}

impl DockerClient {
    /// A client of the engine at `host`: `unix:///path`, the path of a socket or `tcp://host:port`.
    /// If absent, the value of `DOCKER_HOST`.
    pub(super) fn new(host: Option<String>) -> Self {
        let host = host
            .or_else(|| std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()))
            .unwrap_or_else(|| DEFAULT_HOST.to_owned());
        let host = if host.starts_with('/') { format!("unix://{host}") } else { host };
        let name = format!("the Docker engine at {host}");
        let engine = Dependency::new(name, Box::new(EngineProbe { host: host.clone() }));
        Self {
            host,
            docker: OnceCell::new(),
            calls: Arc::default(),
            no_buildkit: AtomicBool::new(false),
            kind_known: OnceCell::new(),
            engine,
        }
    }

    /// The engine as a dependency, with its availability.
    pub(super) fn engine(&self) -> &Dependency {
        &self.engine
    }

    /// The engine's address.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Checks that the address is of a supported kind; sends nothing.
    pub(super) fn check_address(&self) -> Result<(), Failure> {
        supported_transport(&self.host).map(|_| ())
    }

    /// Number of requests sent so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Counts a request that was sent on another connection.
    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the engine may have BuildKit: true until a build shows that it does not.
    pub(super) fn has_buildkit(&self) -> bool {
        !self.no_buildkit.load(Ordering::Relaxed)
    }

    /// Records that the engine has no BuildKit.
    pub(super) fn disable_buildkit(&self, why: &str) {
        if !self.no_buildkit.swap(true, Ordering::Relaxed) {
            let host = &self.host;
            tracing::warn!(
                "the engine at {host} has no BuildKit: using its classic builder: {why}"
            );
        }
    }

    /// Warns once, before work of users of a server, of an engine that shows their images to each other.
    pub(super) async fn warn_of_shared_images(&self) {
        let look = || async {
            let docker = self.docker().await.map_err(drop)?;
            let version = docker.version().await.map_err(drop)?;
            if is_podman(&version) {
                tracing::warn!(
                    "the engine at {} is Podman, which finds a local image of any name by its digest: \
                     users of a server can read images of others whose digest they know. Use Docker \
                     where users do not trust each other",
                    self.host
                );
            }
            Ok::<(), ()>(())
        };
        // An engine that does not answer is asked again. The work that follows fails for that cause.
        let _asked = self.kind_known.get_or_try_init(look).await;
    }

    /// The connection. The first call makes and checks it and negotiates the API version.
    pub(super) async fn docker(&self) -> Result<&Docker, Failure> {
        self.docker.get_or_try_init(|| self.connect()).await
    }

    /// The connection for calls whose answer may take long to begin.
    pub(super) async fn slow(&self) -> Result<Docker, Failure> {
        self.with_timeout(SLOW_ANSWER_WITHIN).await
    }

    /// The connection for calls with another timeout for the start of the answer.
    pub(super) async fn with_timeout(&self, timeout: Duration) -> Result<Docker, Failure> {
        Ok(self.docker().await?.clone().with_timeout(timeout))
    }

    /// The failure of `what`, with the engine's error.
    pub(super) fn failure(&self, what: &str, error: Error) -> Failure {
        let slow = matches!(error, Error::RequestTimeoutError);
        let cause = failure::outage_cause(&error);
        let failure = failure::call_failure(&self.host, what, error);
        // A slow answer is no outage: the next call to the engine decides.
        if failure.kind == FailureKind::Unreachable && !slow {
            self.engine.mark_failed(&cause);
        }
        failure
    }

    async fn connect(&self) -> Result<Docker, Failure> {
        let what = failure::CONNECT;
        let docker = connection(&self.host, ANSWER_WITHIN.as_secs())?;
        let calls = Arc::clone(&self.calls);
        let docker = docker.with_request_modifier(move |r| {
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

/// Whether an engine with this version is Podman.
fn is_podman(version: &SystemVersion) -> bool {
    let mut components = version.components.iter().flatten();
    components.any(|component| component.name == "Podman Engine")
}

impl Transport {
    /// The transport of an address; `None` if addresses of this kind are not supported.
    fn for_address(host: &str) -> Option<Self> {
        match host.split_once("://")?.0 {
            "unix" => Some(Self::Unix),
            "tcp" | "http" => Some(Self::Http),
            _ => None,
        }
    }
}

/// The transport of the address `host`, which is refused if it is not supported.
fn supported_transport(host: &str) -> Result<Transport, Failure> {
    Transport::for_address(host).ok_or_else(|| {
        Failure::new(
            FailureKind::Refused,
            format!(
                "cannot use the Docker engine: the address `{host}` in `DOCKER_HOST` is not \
                 supported: use unix:///path/to/socket or tcp://host:port"
            ),
        )
    })
}

/// A connection to the engine at `host`; sends nothing yet.
fn connection(host: &str, seconds: u64) -> Result<Docker, Failure> {
    let docker = open_connection(supported_transport(host)?, host, seconds);
    docker.map_err(|error| failure::call_failure(host, failure::CONNECT, error))
}

fn open_connection(transport: Transport, host: &str, seconds: u64) -> Result<Docker, Error> {
    match transport {
        Transport::Unix => Docker::connect_with_unix(host, seconds, API_DEFAULT_VERSION),
        Transport::Http => Docker::connect_with_http(host, seconds, API_DEFAULT_VERSION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_unsupported_is_refused_without_probe() {
        let client = DockerClient::new(Some("ssh://h".to_owned()));
        let refused = client.check_address().expect_err("not supported");
        assert_eq!(refused.kind, FailureKind::Refused);
        assert_eq!(
            refused.chain(),
            "cannot use the Docker engine: the address `ssh://h` in `DOCKER_HOST` is not \
             supported: use unix:///path/to/socket or tcp://host:port"
        );
        let connected = client.docker().await.map(|_| ()).expect_err("not supported");
        assert_eq!((connected.kind, connected.chain()), (refused.kind, refused.chain()));
        assert!(!client.engine().is_down());
    }

    #[test]
    fn address_supported_is_accepted_without_engine() {
        for host in ["/no/such.sock", "unix:///no/such.sock", "tcp://127.0.0.1:1", "http://h:1"] {
            let client = DockerClient::new(Some(host.to_owned()));
            assert!(client.check_address().is_ok(), "{host}");
        }
    }

    #[test]
    fn podman_is_told_from_docker_by_its_components() {
        let version = |component: &str| -> SystemVersion {
            let components = serde_json::json!([
                {"Name": component, "Version": "4.3.1", "Details": {"APIVersion": "4.3.1"}},
                {"Name": "Conmon", "Version": "2.1.6"},
            ]);
            let text = serde_json::json!({"Version": "4.3.1", "Components": components});
            serde_json::from_value(text).expect("a version")
        };
        assert!(is_podman(&version("Podman Engine")));
        assert!(!is_podman(&version("Engine")));
        assert!(!is_podman(&SystemVersion::default()));
    }
}
