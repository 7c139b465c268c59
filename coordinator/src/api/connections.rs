//! Connections of the API. Their number is bounded: when all are taken, a new one takes the place of
//! the oldest one that waits for a request, so idle clients keep no client out.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::Service as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rollout_base::supervise::{self, Task};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use super::gate::RequestPlace;
use super::tls::{self, TlsFiles};

/// Time in which a client must send the head of its next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest head of a request, bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;

/// Time after which an answer that is not taken no longer protects its connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes that the system takes from the answers of a connection before its client reads them. It would
/// take some MiB: an answer that no client reads would be sent for this program, and hold no place.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// Pause after an accept that failed, usually because this process may open no more files.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Marks an answer that lasts as long as its client wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct LongAnswer;

/// The connections of a server.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    tls: Option<TlsFiles>,
    open: Mutex<BTreeMap<u64, OpenConnection>>,
}

#[derive(Debug)]
struct OpenConnection {
    activity: Arc<Activity>,
    /// Dropping it closes the connection.
    _serving: Task<()>,
}

/// The request that a connection serves.
#[derive(Debug, Default)]
struct Activity(Mutex<ActivityState>);

#[derive(Debug, Clone, Copy, Default)]
enum ActivityState {
    /// It waits for a request.
    #[default]
    Idle,
    /// It serves one.
    Busy { since: Instant },
    /// It serves one that may last.
    Long,
}

impl Activity {
    fn set(&self, state: ActivityState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn is_idle(&self) -> bool {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            ActivityState::Idle => true,
            ActivityState::Busy { since } => since.elapsed() > ANSWER_TIMEOUT,
            ActivityState::Long => false,
        }
    }
}

impl Connections {
    pub(super) fn new(most: usize, tls: Option<TlsFiles>) -> Arc<Self> {
        Arc::new(Self { most, tls, open: Mutex::default() })
    }

    /// Accepts connections as long as the future is polled.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener, router: Router) {
        let mut number = 0_u64;
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    // Events are small.
                    let _best_effort = stream.set_nodelay(true);
                    let _best_effort = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
                    number += 1;
                    self.open(number, stream, from, &router);
                }
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    fn open(self: &Arc<Self>, number: u64, stream: TcpStream, from: SocketAddr, router: &Router) {
        let Some(mut open) = self.with_room() else {
            tracing::warn!("refused a connection of {from}: all {} are busy", self.most);
            return;
        };
        let activity = Arc::new(Activity::default());
        let (connections, router) = (Arc::downgrade(self), router.clone());
        let acceptor = self.tls.as_ref().map(TlsFiles::acceptor);
        let of_task = Arc::clone(&activity);
        let serving = supervise::spawn("API connection", async move {
            let served = match acceptor {
                Some(acceptor) => match timeout(HEAD_TIMEOUT, tls::accept(&acceptor, stream)).await
                {
                    Ok(Ok(stream)) => converse(stream, router, of_task).await,
                    Ok(Err(error)) => Err(error),
                    Err(_) => Err(tls::late()),
                },
                None => converse(stream, router, of_task).await,
            };
            if let Err(error) = served {
                tracing::debug!("a connection of {from} ended: {error}");
            }
            if let Some(connections) = connections.upgrade() {
                connections.entries().remove(&number);
            }
        });
        open.insert(number, OpenConnection { activity, _serving: serving });
    }

    /// The connections with room for one more; `None` if all of them serve requests.
    fn with_room(&self) -> Option<MutexGuard<'_, BTreeMap<u64, OpenConnection>>> {
        let mut open = self.entries();
        if open.len() >= self.most {
            let idle = open.iter().find(|(_, connection)| connection.activity.is_idle());
            let oldest = idle.map(|(number, _)| *number)?;
            open.remove(&oldest);
        }
        Some(open)
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, OpenConnection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn converse<S>(stream: S, router: Router, activity: Arc<Activity>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let busy = BusyConnection::begin(&activity);
        let answer = service.call(request.map(Body::new));
        async move {
            let mut answer = answer.await?;
            let place = answer.extensions_mut().remove::<RequestPlace>();
            if answer.extensions().get::<LongAnswer>().is_some() {
                busy.0.set(ActivityState::Long);
            }
            Ok::<_, std::convert::Infallible>(answer.map(|inner| BusyBody {
                inner,
                _busy: busy,
                _place: place,
            }))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    serving.await.map_err(io::Error::other)
}

/// A connection that serves a request as long as this lives.
struct BusyConnection(Arc<Activity>);

impl BusyConnection {
    fn begin(activity: &Arc<Activity>) -> Self {
        activity.set(ActivityState::Busy { since: Instant::now() });
        Self(Arc::clone(activity))
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        self.0.set(ActivityState::Idle);
    }
}

/// The body of an answer, until all of it is sent.
struct BusyBody {
    inner: Body,
    _busy: BusyConnection,
    _place: Option<RequestPlace>,
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
