//! Listeners of the gateway. Dropping one ends its connections.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rollout_base::supervise::{self, Task};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit};

use super::{OpenTry, TryTable, headers, route};
use crate::GatewayError;

/// Longest time to send the headers of a request, also on a connection that is idle: clients open a
/// new one without loss.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);

/// Longest time to the first request with a valid key. A connection without one counts for no
/// execution, and may not keep others out.
const KEY_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections of one listener. The oldest without a valid key is closed for a new one; if all have
/// one, more wait in the kernel.
const MAX_CONNECTIONS: usize = 8192;

/// Pause after a connection that could not be accepted, for instance for lack of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The executions that may use a listener.
#[derive(Debug, Clone)]
pub(super) enum ListenerScope {
    /// All of this worker.
    All(Arc<TryTable>),
    /// One.
    One(std::sync::Weak<OpenTry>),
}

impl ListenerScope {
    /// The execution with a key.
    pub(super) fn find(&self, key: &str) -> Option<Arc<OpenTry>> {
        match self {
            Self::All(tries) => tries.find(key),
            Self::One(opened) => opened.upgrade().filter(|opened| opened.key == key),
        }
    }
}

/// A listener that accepts connections.
#[derive(Debug)]
pub(super) struct Listener {
    address: SocketAddr,
    _task: Task<Infallible>,
}

impl Listener {
    fn new(socket: TcpListener, scope: ListenerScope) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let task = supervise::spawn("gateway-listener", accept(socket, scope, MAX_CONNECTIONS));
        Ok(Self { address, _task: task })
    }

    /// Takes over a listener of one execution.
    pub(super) fn of_try(socket: StdListener, opened: &Arc<OpenTry>) -> Result<Self, GatewayError> {
        let scope = ListenerScope::One(Arc::downgrade(opened));
        let listener = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        let listener = listener.and_then(|listener| Self::new(listener, scope));
        listener.map_err(|source| GatewayError::Listen { address: None, source })
    }

    /// Its address.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The listeners at addresses of this host, each made when it is first needed.
#[derive(Debug, Clone, Default)]
pub(super) struct HostListeners(Arc<Mutex<HashMap<SocketAddr, Listener>>>);

impl HostListeners {
    /// The address of the listener at an address, whose port may be 0 for any free one.
    pub(super) async fn at(
        &self,
        wanted: SocketAddr,
        tries: &Arc<TryTable>,
    ) -> Result<SocketAddr, GatewayError> {
        let mut listeners = self.0.lock().await;
        if let Some(listener) = listeners.get(&wanted) {
            return Ok(listener.address());
        }
        let failed = |source| GatewayError::Listen { address: Some(wanted), source };
        let socket = TcpListener::bind(wanted).await.map_err(failed)?;
        let scope = ListenerScope::All(Arc::clone(tries));
        let listener = Listener::new(socket, scope).map_err(failed)?;
        let address = listener.address();
        listeners.insert(wanted, listener);
        Ok(address)
    }
}

/// A connection that is served.
#[derive(Debug, Default)]
struct Connection {
    /// Its place among those of the execution whose valid key it sent last.
    place: StdMutex<Option<ConnectionPlace>>,
    closed: Notify,
}

/// A place among the connections of an execution.
#[derive(Debug)]
struct ConnectionPlace {
    key: String,
    _permit: OwnedSemaphorePermit,
}

/// The execution has as many connections as it may have.
struct TooManyConnections;

impl Connection {
    fn place(&self) -> MutexGuard<'_, Option<ConnectionPlace>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_key(&self) -> bool {
        self.place().is_some()
    }

    /// Counts it for the execution whose key a request has, if that is a valid one.
    fn check_key<B>(
        &self,
        scope: &ListenerScope,
        request: &Request<B>,
    ) -> Result<(), TooManyConnections> {
        let Some(opened) = headers::sent_key(request).and_then(|key| scope.find(key)) else {
            return Ok(());
        };
        let mut place = self.place();
        if place.as_ref().is_some_and(|place| place.key == opened.key) {
            return Ok(());
        }
        let permit = Arc::clone(&opened.connections).try_acquire_owned();
        let permit = permit.map_err(|_| TooManyConnections)?;
        *place = Some(ConnectionPlace { key: opened.key.clone(), _permit: permit });
        drop(place);
        Ok(())
    }

    /// Waits until it must end: it is closed, or has had no valid key for too long.
    async fn wait_until_closed(&self) {
        let _too_long = tokio::time::timeout(KEY_TIMEOUT, self.closed.notified()).await;
        if self.has_key() {
            std::future::pending::<()>().await;
        }
    }
}

/// Accepts and serves at most `most` connections. Never ends.
async fn accept(socket: TcpListener, scope: ListenerScope, most: usize) -> Infallible {
    let mut tasks = FuturesUnordered::new();
    // In the order in which they came.
    let mut connections = BTreeMap::<u64, Arc<Connection>>::new();
    let mut number = 0;
    loop {
        tokio::select! {
            accepted = socket.accept(), if connections.len() < most => match accepted {
                Ok((stream, _)) => {
                    if connections.len() + 1 == most {
                        close_oldest_without_key(&connections);
                    }
                    number += 1;
                    let connection = Arc::<Connection>::default();
                    let served = serve(stream, scope.clone(), Arc::clone(&connection));
                    connections.insert(number, connection);
                    let task = supervise::spawn("gateway-connection", served);
                    tasks.push(async move { (number, task.await) });
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection for a model call: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some((number, ended)) = tasks.next() => {
                connections.remove(&number);
                if let Err(panic) = ended {
                    tracing::error!("a connection of the gateway ended by a bug: {panic}");
                }
            }
        }
    }
}

fn close_oldest_without_key(connections: &BTreeMap<u64, Arc<Connection>>) {
    if let Some(oldest) = connections.values().find(|connection| !connection.has_key()) {
        oldest.closed.notify_one();
    }
}

async fn serve(stream: TcpStream, scope: ListenerScope, connection: Arc<Connection>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    let answer = service_fn(|request: Request<Incoming>| {
        let counted = connection.check_key(&scope, &request);
        let scope = scope.clone();
        async move {
            Ok::<_, Infallible>(match counted {
                Ok(()) => route::answer(&scope, request).await,
                Err(TooManyConnections) => route::too_many_connections(&request),
            })
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let served = tokio::select! {
        served = server.serve_connection(TokioIo::new(stream), answer) => served,
        () = connection.wait_until_closed() => {
            return tracing::debug!("a connection to the gateway without a key was closed");
        }
    };
    // The agent's end: it may break off at any moment.
    if let Err(error) = served {
        tracing::debug!("a connection of an agent to the gateway broke off: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Weak;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A listener for no execution.
    async fn listen(most: usize) -> (SocketAddr, Task<Infallible>) {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = socket.local_addr().expect("an address");
        let accepting = accept(socket, ListenerScope::One(Weak::new()), most);
        (address, supervise::spawn("listener", accepting))
    }

    async fn connect(address: SocketAddr) -> TcpStream {
        TcpStream::connect(address).await.expect("connected")
    }

    #[tokio::test]
    async fn full_listener_closes_oldest_connection_without_key() {
        let (address, _task) = listen(2).await;
        let (mut first, mut second) = (connect(address).await, connect(address).await);
        assert_eq!(first.read(&mut [0]).await.expect("closed"), 0);
        let mut third = connect(address).await;
        assert_eq!(second.read(&mut [0]).await.expect("closed"), 0);
        assert!(third.try_read(&mut [0]).is_err(), "it is open");
        let _fourth = connect(address).await;
        assert_eq!(third.read(&mut [0]).await.expect("closed"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_key_ends_early() {
        let began = tokio::time::Instant::now();
        let (address, _task) = listen(8).await;
        let mut connection = connect(address).await;
        assert_eq!(connection.read(&mut [0]).await.expect("closed"), 0);
        assert!((KEY_TIMEOUT..HEADER_TIMEOUT).contains(&began.elapsed()));
    }
}
