//! What a container may reach: the engine's bridge, or nothing.
//!
//! A container in the network mode `none` can never be connected, so one that has no network for
//! now is made on the bridge and taken off it before its first process starts. Taking a running
//! one off removes its interface: what was connected gets no further. Single hosts cannot be
//! allowed: whatever filters names would have to stand where nothing in the container can go
//! around it, and a bridge of the engine is no such place.

use bollard::models::{NetworkConnectRequest, NetworkDisconnectRequest};
use rollout_protocol::spec::environment::{DockerNetwork, DockerSettings};
use rollout_protocol::spec::task::NetworkPolicy;
use tokio::sync::Mutex;

use super::container::Container;
use super::failure::says;
use crate::environment::{Failure, FailureKind};

/// The engine's default network.
const BRIDGE: &str = "bridge";

/// What a container reaches, and may.
#[derive(Debug)]
pub(super) struct ContainerNetwork {
    /// The job says that nothing shall have a network.
    never: bool,
    /// Whether it is on the bridge; `None` when a change broke off. Held during changes.
    open: Mutex<Option<bool>>,
    /// What was asked for at the creation.
    first: bool,
    /// Whether it stays what it was at the creation.
    fixed: bool,
}

impl ContainerNetwork {
    /// The network of a container that is about to be made.
    pub(super) fn for_policy(
        settings: &DockerSettings,
        policy: &NetworkPolicy,
    ) -> Result<Self, Failure> {
        let first = is_open(policy)?;
        let never = settings.network == DockerNetwork::None;
        Ok(Self { never, open: Mutex::new(Some(!never)), first, fixed: false })
    }

    /// The network of a container among services, which share it for as long as they live.
    pub(super) fn shared(settings: &DockerSettings, open: bool) -> Self {
        let never = settings.network == DockerNetwork::None;
        Self { never, open: Mutex::new(Some(open)), first: open, fixed: true }
    }

    /// For a container whose network is of no interest.
    pub(super) fn unmanaged() -> Self {
        Self { never: false, open: Mutex::new(None), first: false, fixed: true }
    }

    /// The network mode that it is made with.
    pub(super) fn mode(settings: &DockerSettings) -> &'static str {
        match settings.network {
            DockerNetwork::Bridge => BRIDGE,
            DockerNetwork::None => "none",
        }
    }
}

/// Whether a policy lets anything through; refused when it is between all and nothing.
pub(super) fn is_open(policy: &NetworkPolicy) -> Result<bool, Failure> {
    match policy {
        NetworkPolicy::Public => Ok(true),
        NetworkPolicy::NoNetwork => Ok(false),
        NetworkPolicy::Allowlist(_) => {
            let text = "single hosts cannot be allowed: that needs a proxy that nothing in the \
                        container can go around";
            Err(Failure::new(FailureKind::Unsupported, text))
        }
    }
}

impl Container {
    /// Takes a container that is not to have a network off its network, before it starts.
    pub(super) async fn close_before_start(&self) -> Result<(), Failure> {
        if self.network.first { Ok(()) } else { self.switch(false).await }
    }

    /// Changes what it may reach, within what the job allows.
    pub(super) async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        self.switch(is_open(policy)?).await
    }

    async fn switch(&self, open: bool) -> Result<(), Failure> {
        if self.network.never {
            return Ok(());
        }
        let mut now = self.network.open.lock().await;
        if *now == Some(open) {
            return Ok(());
        }
        if self.network.fixed {
            let text = "an environment with services beside it keeps the network that it was made \
                        with: what it may reach cannot differ between phases";
            return Err(Failure::new(FailureKind::Unsupported, text));
        }
        // Whoever drops this future leaves it unknown.
        *now = None;
        if open {
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
            Err(error) => Err(self.failure("giving it a network", error)),
        }
    }

    async fn disconnect(&self) -> Result<(), Failure> {
        let docker = self.client.docker().await?;
        let request =
            NetworkDisconnectRequest { container: self.engine_id.clone(), ..Default::default() };
        match docker.disconnect_network(BRIDGE, request).await {
            Ok(()) => {}
            Err(error) if says(&error, "is not connected to") => {}
            Err(error) => return Err(self.failure("taking away its network", error)),
        }
        // The engine's word is not enough for what must not be open.
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
