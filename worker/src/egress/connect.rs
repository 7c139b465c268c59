//! Connections to allowed hosts.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::ProxyContext;
use super::hosts::{HostRefusal, HostTarget};
use crate::supervise;

/// Longest time to look a name up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Names that this process looks up at a time, each in a thread that other work needs, too.
const MAX_LOOKUPS: u32 = 64;
static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS as usize);

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
            let found = look_up(&name, port).await;
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

/// The addresses of a name, by the resolver of this host.
pub(super) async fn look_up(name: &str, port: u16) -> io::Result<Vec<IpAddr>> {
    let host = (name.to_owned(), port);
    let looking = async {
        let permit = LOOKUPS.acquire().await.expect("the semaphore is never closed");
        supervise::blocking(move || {
            // A look-up whose caller is gone takes its place until it ends.
            let _permit = permit;
            host.to_socket_addrs()
        })
        .await
    };
    Ok(within(LOOKUP_TIMEOUT, looking).await?.map(|address| address.ip()).collect())
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {limit:?}"));
    tokio::time::timeout(limit, work).await.map_err(timed_out)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn look_up_waits_for_earlier_ones() {
        let earlier = LOOKUPS.acquire_many(MAX_LOOKUPS).await.expect("open");
        let error = look_up("127.0.0.1", 80).await.expect_err("no place");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(earlier);
        let found = look_up("127.0.0.1", 80).await.expect("found");
        assert_eq!(found, [IpAddr::from([127, 0, 0, 1])]);
    }
}
