//! Network access of a container: the engine's bridge, or nothing.
//!
//! A container in the network mode `none` can never be connected. So one that has no network at
//! first is created on the bridge and disconnected before its first process starts. Disconnecting a
//! running container removes its interface, and its open connections break. A container that may
//! reach single hosts has no network either: a proxy of the worker on its loopback interface, where
//! nothing in the container can bypass it, connects to them.

use std::net::IpAddr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use bollard::models::{NetworkConnectRequest, NetworkDisconnectRequest};
use rollout_environment::egress::{LedNetwork, LedSockets};
use rollout_environment::{Failure, FailureKind, ListenerRoute};
use rollout_protocol::spec::environment::{DockerNetwork, DockerSettings};
use rollout_protocol::spec::task::NetworkPolicy;
use tokio::sync::Mutex;

use super::container::Container;
use super::failure::says;

/// The engine's default network.
const BRIDGE: &str = "bridge";

/// The network state of a container, and the limits set by the job.
#[derive(Debug)]
pub(super) struct ContainerNetwork {
    /// The job denies every network.
    denied_by_job: bool,
    /// Whether it is on the bridge; `None` after an interrupted change. Held during changes.
    is_open: Mutex<Option<bool>>,
    /// The state requested at creation.
    initially_open: bool,
    /// Whether it cannot change after the creation.
    is_fixed: bool,
    /// Whether its connections may lead to this process.
    pub(super) is_led: AtomicBool,
}

impl ContainerNetwork {
    /// The network of a container that is about to be created.
    pub(super) fn for_policy(settings: &DockerSettings, policy: &NetworkPolicy) -> Self {
        let initially_open = policy.is_public();
        let denied_by_job = settings.network == DockerNetwork::None;
        Self {
            denied_by_job,
            is_open: Mutex::new(Some(!denied_by_job)),
            initially_open,
            is_fixed: false,
            is_led: AtomicBool::new(false),
        }
    }

    /// The network of a container among services, fixed for their lifetime.
    pub(super) fn shared(settings: &DockerSettings, open: bool) -> Self {
        let denied_by_job = settings.network == DockerNetwork::None;
        Self {
            denied_by_job,
            is_open: Mutex::new(Some(open)),
            initially_open: open,
            is_fixed: true,
            is_led: AtomicBool::new(false),
        }
    }

    /// For a container whose network does not matter.
    pub(super) fn unmanaged() -> Self {
        Self {
            denied_by_job: false,
            is_open: Mutex::new(None),
            initially_open: false,
            is_fixed: true,
            is_led: AtomicBool::new(false),
        }
    }

    /// The network mode for its creation.
    pub(super) fn mode(settings: &DockerSettings) -> &'static str {
        match settings.network {
            DockerNetwork::Bridge => BRIDGE,
            DockerNetwork::None => "none",
        }
    }
}

/// Whether a policy allows network access to an environment with services. Refuses policies between
/// all and nothing.
pub(super) fn is_open_with_services(policy: &NetworkPolicy) -> Result<bool, Failure> {
    match policy {
        NetworkPolicy::Public => Ok(true),
        NetworkPolicy::NoNetwork => Ok(false),
        NetworkPolicy::Allowlist(_) => {
            let text = "single hosts cannot be allowed in an environment with services";
            Err(Failure::new(FailureKind::Unsupported, text))
        }
    }
}

impl Container {
    /// Disconnects a container that must not have a network, before it starts.
    pub(super) async fn close_before_start(&self) -> Result<(), Failure> {
        if self.network.initially_open { Ok(()) } else { self.switch(false).await }
    }

    /// Changes the network access, within the job's limits.
    pub(super) async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        if self.network.is_fixed {
            is_open_with_services(policy)?;
        }
        self.switch(policy.is_public()).await
    }

    /// How its processes reach a listener of this process: on their loopback interface if this
    /// process may listen there, which needs no network; otherwise on the engine's host.
    pub(super) async fn listener_route(&self) -> Result<ListenerRoute, Failure> {
        #[cfg(target_os = "linux")]
        let why = match self.listen_inside().await {
            Ok(listener) => return Ok(ListenerRoute::OwnLoopback(listener)),
            Err(why) => why,
        };
        #[cfg(not(target_os = "linux"))]
        let why = "this host is not Linux";
        tracing::debug!("cannot listen in the container {}: {why}", self.name);
        match self.host_address().await {
            Ok(address) => Ok(ListenerRoute::HostAddress((address, 0).into())),
            Err(failure) if failure.kind == FailureKind::Unsupported => {
                let text = format!(
                    "{failure}, and the worker cannot listen in it: {why}; run the worker as root \
                     on the engine's host, or use the network `bridge`"
                );
                Err(Failure::new(FailureKind::Unsupported, text))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Leads its connections to sockets of this process, if it has no network and this process may.
    pub(super) async fn lead_connections(
        &self,
        networks: &[LedNetwork],
    ) -> Result<Option<LedSockets>, Failure> {
        let now = self.network.is_open.lock().await;
        if *now != Some(false) {
            return Ok(None);
        }
        #[cfg(target_os = "linux")]
        let led = self.lead(networks.to_vec()).await.map_err(|why| why.to_string());
        #[cfg(not(target_os = "linux"))]
        let led: Result<Option<LedSockets>, String> =
            Err(format!("this host is not Linux: {} networks", networks.len()));
        drop(now);
        Ok(led.unwrap_or_else(|why| {
            static NOTICE: Once = Once::new();
            NOTICE.call_once(|| {
                tracing::warn!(
                    container = self.name,
                    "programs in it and others must use the proxy, because connections cannot lead to \
                     it: {why}"
                );
            });
            None
        }))
    }

    /// Ends what [`Self::lead_connections`] has set up.
    async fn end_lead(&self) -> Result<(), Failure> {
        if !self.network.is_led.load(Ordering::Relaxed) {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        self.release().await.map_err(|why| {
            let text = format!("cannot open the network of the container {}", self.name);
            Failure::new(FailureKind::Service, text).with_source(why)
        })?;
        self.network.is_led.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The address under which its processes reach the engine's host.
    async fn host_address(&self) -> Result<IpAddr, Failure> {
        let networks = self.inspect().await?.network_settings.and_then(|found| found.networks);
        let networks = networks.unwrap_or_default();
        let mut gateways = networks.values().filter_map(|network| network.gateway.as_deref());
        gateways.find_map(|gateway| gateway.parse().ok()).ok_or_else(|| {
            let text = format!("the container {} has no network to reach its host by", self.name);
            Failure::new(FailureKind::Unsupported, text)
        })
    }

    async fn switch(&self, open: bool) -> Result<(), Failure> {
        if self.network.denied_by_job {
            return Ok(());
        }
        let mut now = self.network.is_open.lock().await;
        if *now == Some(open) {
            return Ok(());
        }
        if self.network.is_fixed {
            let text = "an environment with services keeps its initial network: network access \
                        cannot differ between phases";
            return Err(Failure::new(FailureKind::Unsupported, text));
        }
        // If this future is dropped, the state stays unknown.
        *now = None;
        if open {
            self.end_lead().await?;
            self.connect().await?;
        } else {
            self.disconnect().await?;
        }
        *now = Some(open);
        drop(now);
        Ok(())
    }

    async fn connect(&self) -> Result<(), Failure> {
        let docker = self.client.docker().await?;
        let request =
            NetworkConnectRequest { container: self.engine_id.clone(), ..Default::default() };
        match docker.connect_network(BRIDGE, request).await {
            Ok(()) => Ok(()),
            Err(error) if says(&error, "already exists") => Ok(()),
            Err(error) => Err(self.failure("cannot connect the network", error)),
        }
    }

    async fn disconnect(&self) -> Result<(), Failure> {
        let docker = self.client.docker().await?;
        let request =
            NetworkDisconnectRequest { container: self.engine_id.clone(), ..Default::default() };
        match docker.disconnect_network(BRIDGE, request).await {
            Ok(()) => {}
            Err(error) if says(&error, "is not connected to") => {}
            Err(error) => return Err(self.failure("cannot disconnect the network", error)),
        }
        // For a network that must be closed, the engine's success answer is not enough.
        let left = self.inspect().await?.network_settings.and_then(|settings| settings.networks);
        match left.filter(|networks| !networks.is_empty()) {
            None => Ok(()),
            Some(networks) => {
                let names: Vec<_> = networks.into_keys().collect();
                let text = format!("{} is still in the networks {names:?}", self.name);
                Err(Failure::new(FailureKind::Service, text))
            }
        }
    }
}
