//! Access to the hosts of an allowlist: of environments, and of this host's own fetches for others.
//!
//! An environment with an allowlist has no network but its own loopback interface. There this process
//! listens as an HTTP proxy, looks names up itself and connects to the hosts of the list only.
//!
//! * `hosts`: the decision which hosts and addresses are allowed; `addresses`: those that are public;
//! * `server`: the proxy; `connect`: its connections to hosts; `lookups`: their addresses; `forward`:
//!   requests without a tunnel;
//! * `transparent`: connections that lead to this process without a proxy; `names`, `dns`: the names that
//!   they use;
//! * `upstream`: proxies of this host on the way to them;
//! * `refused`: the hosts that were refused; `shortages`: shortages of this host, which are faults of the
//!   proxy.

mod addresses;
#[cfg(feature = "egress")]
mod connect;
#[cfg(all(feature = "egress", target_os = "linux"))]
mod dns;
#[cfg(feature = "egress")]
mod forward;
mod hosts;
mod led;
#[cfg(feature = "egress")]
mod lookups;
#[cfg(all(feature = "egress", target_os = "linux"))]
mod names;
mod refused;
#[cfg(feature = "egress")]
mod server;
#[cfg(feature = "egress")]
mod shortages;
#[cfg(all(feature = "egress", target_os = "linux"))]
mod transparent;
mod upstream;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};

use rollout_base::supervise::Task;

pub use self::addresses::{first_internal_host, is_public};
pub use self::hosts::{AllowedHosts, HostRefusal, HostTarget};
pub use self::led::{LedNetwork, LedSockets};
#[cfg(feature = "egress")]
use self::lookups::NameLookups;
#[cfg(all(feature = "egress", target_os = "linux"))]
use self::names::NameAddresses;
pub use self::refused::{RefusedHost, RefusedHosts, RefusedSummary};

use self::upstream::UpstreamProxies;

/// Hosts that scripts reach without the proxy: the loopback interface of the environment, where the
/// model gateway and services of the task listen.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";

/// The proxy of one environment under one allowlist. Dropping it ends all of its connections.
#[derive(Debug)]
pub struct EgressProxy {
    context: Arc<ProxyContext>,
    /// Its listeners, the latest last.
    listeners: Vec<(SocketAddr, Task<Infallible>)>,
    /// The tasks that serve connections and names of an environment whose connections lead here.
    led: Vec<[Task<Infallible>; 2]>,
}

/// The names that one environment asks for: their look-ups, and addresses that stand for them. Its later
/// proxies keep them: programs remember addresses, and look-ups go on, longer than a phase.
#[derive(Debug, Clone, Default)]
pub struct EgressNames {
    #[cfg(feature = "egress")]
    lookups: Arc<NameLookups>,
    #[cfg(all(feature = "egress", target_os = "linux"))]
    addresses: Arc<NameAddresses>,
}

/// State of a proxy that its connections share.
#[derive(Debug)]
#[cfg_attr(not(feature = "egress"), expect(dead_code, reason = "only connections read it"))]
struct ProxyContext {
    allowed: AllowedHosts,
    refused: Arc<RefusedHosts>,
    upstream: UpstreamProxies,
    names: EgressNames,
    /// The first bug that ended a connection, or shortage of this host that kept one from being served.
    fault: OnceLock<String>,
}

impl EgressProxy {
    /// A proxy that does not listen yet. Refused hosts are added to `refused`.
    pub fn new(allowed: AllowedHosts, refused: Arc<RefusedHosts>) -> Self {
        Self::of_environment(allowed, refused, EgressNames::default())
    }

    /// Such a proxy for an environment that had proxies before.
    pub fn of_environment(
        allowed: AllowedHosts,
        refused: Arc<RefusedHosts>,
        names: EgressNames,
    ) -> Self {
        Self::through(UpstreamProxies::default(), allowed, refused, names)
    }

    /// Such a proxy for this process, which connects through the proxies of its own environment.
    pub fn of_host(allowed: AllowedHosts, refused: Arc<RefusedHosts>) -> Self {
        let upstream = UpstreamProxies::from_variables(|name| std::env::var(name).ok());
        Self::through(upstream, allowed, refused, EgressNames::default())
    }

    fn through(
        upstream: UpstreamProxies,
        allowed: AllowedHosts,
        refused: Arc<RefusedHosts>,
        names: EgressNames,
    ) -> Self {
        let fault = OnceLock::new();
        let context = Arc::new(ProxyContext { allowed, refused, upstream, names, fault });
        Self { context, listeners: Vec::new(), led: Vec::new() }
    }

    /// Takes over a listener; earlier ones stay.
    ///
    /// # Errors
    /// Those of the system; without the feature `gateway` this is unsupported.
    pub fn listen(&mut self, socket: TcpListener) -> io::Result<()> {
        self.listeners.push(start(socket, Arc::clone(&self.context))?);
        Ok(())
    }

    /// The networks of its list, to which connections may lead here.
    pub fn networks(&self) -> Vec<LedNetwork> {
        self.context.allowed.networks()
    }

    /// Takes over sockets to which connections lead.
    ///
    /// # Errors
    /// Those of the system; without the feature `gateway`, and on other systems than Linux, this is
    /// unsupported.
    pub fn lead(&mut self, sockets: LedSockets) -> io::Result<()> {
        self.led.push(lead(sockets, &self.context)?);
        Ok(())
    }

    /// Why it could not serve, for a cause of this process, if it could not. Hosts that are refused or out
    /// of reach are no such cause.
    pub fn fault(&self) -> Option<String> {
        let ended = || {
            let is_over = self.listeners.iter().any(|(_, task)| task.is_finished())
                || self.led.iter().flatten().any(Task::is_finished);
            is_over.then(|| "its listener has ended".to_owned())
        };
        self.context.fault.get().cloned().or_else(ended)
    }

    /// Lets it fail as by a bug.
    #[cfg(any(test, feature = "testing"))]
    pub fn fail(&self, why: &str) {
        self.context.fault.set(why.to_owned()).expect("the first fault");
    }

    /// Its address, with the latest listener.
    pub fn url(&self) -> Option<String> {
        self.listeners.last().map(|(address, _)| format!("http://{address}"))
    }

    /// Variables that lead the programs of scripts to the latest listener.
    pub fn env(&self) -> BTreeMap<String, String> {
        let Some(url) = self.url() else { return BTreeMap::new() };
        let values = [("HTTP_PROXY", url.as_str()), ("HTTPS_PROXY", &url), ("NO_PROXY", NO_PROXY)];
        let both = values.into_iter().flat_map(|(name, value)| {
            [name.to_owned(), name.to_ascii_lowercase()].map(|name| (name, value.to_owned()))
        });
        both.collect()
    }
}

#[cfg(all(feature = "egress", target_os = "linux"))]
fn lead(sockets: LedSockets, context: &Arc<ProxyContext>) -> io::Result<[Task<Infallible>; 2]> {
    transparent::start(sockets, context)
}

#[cfg(not(all(feature = "egress", target_os = "linux")))]
fn lead(_: LedSockets, _: &Arc<ProxyContext>) -> io::Result<[Task<Infallible>; 2]> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this program cannot serve them"))
}

#[cfg(feature = "egress")]
fn start(
    socket: TcpListener,
    context: Arc<ProxyContext>,
) -> io::Result<(SocketAddr, Task<Infallible>)> {
    server::start(socket, context)
}

#[cfg(not(feature = "egress"))]
fn start(_: TcpListener, _: Arc<ProxyContext>) -> io::Result<(SocketAddr, Task<Infallible>)> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without `gateway`"))
}
