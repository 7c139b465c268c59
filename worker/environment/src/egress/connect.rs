//! Connections to allowed hosts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;

use super::ProxyContext;
use super::hosts::{AllowedHosts, HostRefusal, HostTarget};
use super::lookups::within;
use super::shortages::{is_shortage, lookup_error};

/// Longest time to connect to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses of a host that are tried.
const MAX_ADDRESSES: usize = 4;

/// Why there is no connection to a host.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// It is not allowed.
    #[error("{0}")]
    Refused(HostRefusal),
    /// This host ran out of something that a connection needs.
    #[error("this host has too few resources: {0}")]
    Shortage(io::Error),
    /// Its name has no address.
    #[error("its name cannot be looked up: {0}")]
    Lookup(io::Error),
    /// It does not answer.
    #[error("it does not answer: {0}")]
    Connect(io::Error),
}

/// Connects to a port of a host if that is allowed. `is_tls` chooses among the proxies of this host. A
/// shortage of this host becomes a fault of the proxy.
pub(super) async fn connect(
    context: &ProxyContext,
    host: &str,
    port: u16,
    is_tls: bool,
) -> Result<TcpStream, ConnectError> {
    let dial = |address: SocketAddr| within(CONNECT_TIMEOUT, TcpStream::connect(address));
    connect_by(dial, context, host, port, is_tls).await
}

/// The same with another way to connect to an address.
async fn connect_by<F: Future<Output = io::Result<TcpStream>>>(
    dial: impl Fn(SocketAddr) -> F,
    context: &ProxyContext,
    host: &str,
    port: u16,
    is_tls: bool,
) -> Result<TcpStream, ConnectError> {
    let connected = reach(dial, context, host, port, is_tls).await;
    if let Err(ConnectError::Shortage(error)) = &connected {
        context.note_fault(format!("cannot connect to {host}:{port}: {error}"));
    }
    connected
}

async fn reach<F: Future<Output = io::Result<TcpStream>>>(
    dial: impl Fn(SocketAddr) -> F,
    context: &ProxyContext,
    host: &str,
    port: u16,
    is_tls: bool,
) -> Result<TcpStream, ConnectError> {
    let allowed = &context.allowed;
    let addresses = match allowed.check_host(host, port).map_err(ConnectError::Refused)? {
        HostTarget::Address(address) => vec![address],
        HostTarget::Name(name) => {
            let found = context.names.lookups.find(&name).await;
            checked_addresses(allowed, &name, port, found)?
        }
    };
    let proxy = context.upstream.find(host, port, is_tls);
    if let Some(proxy) = proxy
        && allowed.lists(host, port)
    {
        let tunnel = proxy.tunnel(host, port).await;
        return tunnel.map_err(|error| connect_error(lookup_error(error)));
    }
    let none = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    let mut failure = ConnectError::Connect(none);
    for address in addresses.into_iter().take(MAX_ADDRESSES) {
        let connected = match proxy {
            // Not the name: the proxy would look it up again, and could get another address. Its own name is
            // looked up here.
            Some(proxy) => proxy.tunnel(&address.to_string(), port).await.map_err(lookup_error),
            None => dial(SocketAddr::new(address, port)).await,
        };
        match connected.map_err(connect_error) {
            Ok(stream) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!("cannot set TCP_NODELAY: {error}");
                }
                return Ok(stream);
            }
            // The host might have answered at the address that this host could not try.
            Err(error) if !matches!(failure, ConnectError::Shortage(_)) => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

/// The addresses of a name that may be connected to, from those that were found.
fn checked_addresses(
    allowed: &AllowedHosts,
    name: &str,
    port: u16,
    found: io::Result<Vec<IpAddr>>,
) -> Result<Vec<IpAddr>, ConnectError> {
    let has_address = found.as_ref().is_ok_and(|found| !found.is_empty());
    let found = match found {
        Err(error) if is_shortage(&error) => return Err(ConnectError::Shortage(error)),
        _ if !has_address && allowed.hides_name(name, port) => {
            return Err(ConnectError::Refused(HostRefusal::NoAddress));
        }
        found => found.map_err(ConnectError::Lookup)?,
    };
    allowed.check_addresses(name, found, port).map_err(ConnectError::Refused)
}

/// The error of a connection to a host, or to a proxy on the way to it. The lack of local ports is no shortage
/// of this host: programs behind the proxy can use up those to one address by themselves.
fn connect_error(error: io::Error) -> ConnectError {
    match is_shortage(&error) {
        true => ConnectError::Shortage(error),
        false => ConnectError::Connect(error),
    }
}

#[cfg(test)]
mod tests;
