//! The listener of the API server, which can stop and resume on its port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rollout_base::supervise::{self, Task};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use super::cluster::Cluster;
use super::rest::{self, DroppedConnection};
use crate::net::free_port;

/// Time between two tries to listen on the port again.
const LISTEN_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Time in which a connection that was told to end closes its socket.
const CONNECTION_END: std::time::Duration = std::time::Duration::from_secs(1);

/// Whether the port should be open, and whether it is.
#[derive(Debug)]
pub(super) struct PortSwitch {
    pub(super) wanted: watch::Receiver<bool>,
    pub(super) is_open: watch::Sender<bool>,
}

/// Serves the cluster on a thread's runtime until `stopped` is ready.
pub(super) fn run(
    cluster: &Arc<Cluster>,
    token: Arc<str>,
    listener: StdListener,
    port: PortSwitch,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::select! {
            _ = stopped => {}
            () = serve(Arc::clone(cluster), token, listener, port) => {}
        }
        cluster.stop_all_pods().await;
    });
    runtime.shutdown_background();
}

async fn serve(
    cluster: Arc<Cluster>,
    token: Arc<str>,
    listener: StdListener,
    mut port: PortSwitch,
) {
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("a socket");
    let mut listener = Some(TcpListener::from_std(listener).expect("a socket"));
    let mut connections: Vec<Task<()>> = Vec::new();
    loop {
        if !*port.wanted.borrow_and_update() {
            drop(listener.take());
            for connection in std::mem::take(&mut connections) {
                end_connection(connection).await;
            }
            port.is_open.send_replace(false);
            if port.wanted.changed().await.is_err() {
                return;
            }
            continue;
        }
        let open = match listener.take() {
            Some(open) => open,
            None => listen(address).await,
        };
        port.is_open.send_replace(true);
        tokio::select! {
            accepted = open.accept() => {
                if let Ok((socket, _)) = accepted {
                    connections.retain(|connection| !connection.is_finished());
                    let connection = connection(Arc::clone(&cluster), Arc::clone(&token), socket);
                    connections.push(supervise::spawn("kube-connection", connection));
                }
            }
            changed = port.wanted.changed() => if changed.is_err() { return },
        }
        listener = Some(open);
    }
}

/// Ends a connection and waits until its socket is closed.
async fn end_connection(connection: Task<()>) {
    let mut connection = connection;
    drop(tokio::time::timeout(CONNECTION_END, &mut connection).await);
}

async fn listen(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            // Connections of the earlier listener may still hold the port.
            Err(_) => tokio::time::sleep(LISTEN_PAUSE).await,
        }
    }
}

async fn connection(cluster: Arc<Cluster>, token: Arc<str>, socket: TcpStream) {
    // Latency of small messages matters, not their number.
    drop(socket.set_nodelay(true));
    let mut epochs = cluster.epochs();
    epochs.mark_unchanged();
    let service = service_fn(move |request: Request<Incoming>| {
        let (cluster, token) = (Arc::clone(&cluster), Arc::clone(&token));
        async move { answer(cluster, token, request).await }
    });
    let served =
        http1::Builder::new().serve_connection(TokioIo::new(socket), service).with_upgrades();
    tokio::select! {
        _ = epochs.changed() => {}
        // An error is the client's end of the connection.
        _ = served => {}
    }
}

async fn answer(
    cluster: Arc<Cluster>,
    token: Arc<str>,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let behind = cluster.with(|state| state.faults.clock_behind);
    let mut response = rest::handle(cluster, token, request.map(Body::new)).await;
    if response.extensions().get::<DroppedConnection>().is_some() {
        return Err(io::Error::from(io::ErrorKind::ConnectionAborted));
    }
    if !behind.is_zero() {
        let now = Timestamp::now() - behind;
        let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        response.headers_mut().insert(header::DATE, date.parse().expect("a header"));
    }
    Ok(response)
}

/// A listener on a free port.
pub(super) fn bind() -> (StdListener, SocketAddr) {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, free_port())).expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}
