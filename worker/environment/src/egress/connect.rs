//! Connections to allowed hosts.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use super::ProxyContext;
use super::hosts::{HostRefusal, HostTarget};
use super::lookups::within;

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
    /// Its name has no address.
    #[error("its name cannot be looked up: {0}")]
    Lookup(io::Error),
    /// It does not answer.
    #[error("it does not answer: {0}")]
    Connect(io::Error),
}

/// Connects to a port of a host if that is allowed. `is_tls` chooses among the proxies of this host.
pub(super) async fn connect(
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
            let has_address = found.as_ref().is_ok_and(|found| !found.is_empty());
            if !has_address && allowed.hides_name(&name, port) {
                return Err(ConnectError::Refused(HostRefusal::NoAddress));
            }
            let found = found.map_err(ConnectError::Lookup)?;
            allowed.check_addresses(&name, found, port).map_err(ConnectError::Refused)?
        }
    };
    let proxy = context.upstream.find(host, port, is_tls);
    if let Some(proxy) = proxy
        && allowed.lists(host, port)
    {
        return proxy.tunnel(host, port).await.map_err(ConnectError::Connect);
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    for address in addresses.into_iter().take(MAX_ADDRESSES) {
        let connected = match proxy {
            // Not the name: the proxy would look it up again, and could get another address.
            Some(proxy) => proxy.tunnel(&address.to_string(), port).await,
            None => {
                let connecting = TcpStream::connect(SocketAddr::new(address, port));
                within(CONNECT_TIMEOUT, connecting).await
            }
        };
        match connected {
            Ok(stream) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!("cannot set TCP_NODELAY: {error}");
                }
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(ConnectError::Connect(last))
}
