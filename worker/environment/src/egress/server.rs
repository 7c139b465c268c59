//! The HTTP proxy: tunnels by `CONNECT`, and plain requests.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rollout_base::supervise::{self, Task};
use tokio::net::{TcpListener, TcpStream};

use super::ProxyContext;
use super::connect::{ConnectError, connect};
use super::forward::{ForwardedBody, forward};

/// Connections of one listener; more wait in the kernel.
const MAX_CONNECTIONS: usize = 256;

/// Longest time to send the headers of a request, also on a connection that is idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// Most bytes of the headers of a request.
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Pause after a connection that could not be accepted, for instance for lack of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Port of plain requests that name none.
const HTTP_PORT: u16 = 80;

type ProxyResponse = Response<Either<Full<Bytes>, ForwardedBody>>;

/// A tunnel that begins when the reply to its request is sent.
type PendingTunnel = Mutex<Option<(OnUpgrade, TcpStream)>>;

/// Serves a listener. The task never ends by itself.
pub(super) fn start(
    socket: StdListener,
    context: Arc<ProxyContext>,
) -> io::Result<(SocketAddr, Task<Infallible>)> {
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(socket)?;
    let address = socket.local_addr()?;
    let shared = Arc::clone(&context);
    let serve = move |stream| serve(stream, Arc::clone(&shared));
    Ok((address, supervise::spawn("egress-listener", accept(socket, context, serve))))
}

/// Serves the connections of a listener, each by `serve`.
pub(super) async fn accept<F: Future<Output = ()> + Send + 'static>(
    socket: TcpListener,
    context: Arc<ProxyContext>,
    serve: impl Fn(TcpStream) -> F,
) -> Infallible {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = socket.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.push(supervise::spawn("egress-connection", serve(stream)));
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection to an allowed host: {error}");
                    context.note_shortage("accept a connection", &error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = connections.next() => {
                if let Err(panic) = ended {
                    tracing::error!("a connection of the egress proxy ended by a bug: {panic}");
                    context.note_fault(panic.to_string());
                }
            }
        }
    }
}

async fn serve(stream: TcpStream, context: Arc<ProxyContext>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    let tunnel = PendingTunnel::default();
    let answer = service_fn(|request: Request<Incoming>| {
        let (context, tunnel) = (&context, &tunnel);
        async move { Ok::<_, Infallible>(answer(context, request, tunnel).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    server.max_buf_size(MAX_HEADER_BYTES);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), answer).with_upgrades().await
    {
        return tracing::debug!("a connection to the egress proxy broke off: {error}");
    }
    let pending = tunnel.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some((upgrade, host)) = pending
        && let Err(error) = run_tunnel(upgrade, host).await
    {
        tracing::debug!("a tunnel to an allowed host broke off: {error}");
    }
}

async fn run_tunnel(upgrade: OnUpgrade, mut host: TcpStream) -> io::Result<()> {
    let client = upgrade.await.map_err(io::Error::other)?;
    tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut host).await.map(drop)
}

async fn answer(
    context: &ProxyContext,
    mut request: Request<Incoming>,
    tunnel: &PendingTunnel,
) -> ProxyResponse {
    let Some((host, port)) = target(&request) else {
        let text = "this is a proxy: send `CONNECT host:port` or an absolute `http://` address";
        return reply(StatusCode::BAD_REQUEST, text);
    };
    let shown = format!("{host}:{port}");
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // Some programs ask for tunnels to plain servers, too.
    let is_tls = request.method() == Method::CONNECT && port != HTTP_PORT;
    let stream = match connect(context, host, port, is_tls).await {
        Ok(stream) => stream,
        Err(ConnectError::Refused(refusal)) => {
            context.refused.add(&shown, refusal);
            let text = format!("the host {shown} is refused: {refusal}");
            return reply(StatusCode::FORBIDDEN, &text);
        }
        Err(error) => {
            return reply(StatusCode::BAD_GATEWAY, &format!("cannot reach {shown}: {error}"));
        }
    };
    if request.method() == Method::CONNECT {
        let upgrade = hyper::upgrade::on(&mut request);
        *tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some((upgrade, stream));
        return Response::new(Either::Left(Full::default()));
    }
    match forward(stream, request).await {
        Ok(response) => response.map(Either::Right),
        Err(error) => {
            context.note_shortage(&format!("get an answer from {shown}"), &error);
            reply(StatusCode::BAD_GATEWAY, &format!("cannot get an answer from {shown}: {error}"))
        }
    }
}

/// The host and port that a request asks for.
fn target(request: &Request<Incoming>) -> Option<(String, u16)> {
    let uri = request.uri();
    let host = uri.host()?.to_owned();
    let port = if request.method() == Method::CONNECT {
        uri.port_u16()?
    } else {
        (uri.scheme_str()? == "http").then(|| uri.port_u16().unwrap_or(HTTP_PORT))?
    };
    Some((host, port))
}

fn reply(status: StatusCode, text: &str) -> ProxyResponse {
    let mut response = Response::new(Either::Left(Full::from(format!("rollout: {text}\n"))));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests;
