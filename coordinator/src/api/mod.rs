//! The HTTP interface of the daemon: JSON under `/v1`, health checks and metrics.
//!
//! * `connections`: the listener and its bounds; `gate`: request ids, users and the form of errors;
//!   `tokens`: users by bearer tokens; `tls`: the
//!   certificate
//! * `datasets`: upload of datasets
//! * `runs`: submission, list and control of runs
//! * `items`: items of a run and their files; `output_follower`: output while it is written
//! * `trials`, `trial_documents`: trials that a user starts one by one
//! * `events`: events of a run as server-sent events; `export`: results for other tools
//! * `farms`: farms, with their groups and completions
//! * `documents`, `item_documents`: bodies; `body`, `whole_number`: their reading; `problem`: errors
//! * `metrics`: metrics of the daemon
//! * `openapi`: the description of all of it

mod body;
mod connections;
mod datasets;
mod documents;
mod events;
mod export;
mod farms;
mod gate;
mod item_documents;
mod items;
mod json_size;
mod metrics;
#[cfg(feature = "openapi")]
mod openapi;
mod output_follower;
mod problem;
mod runs;
mod tls;
mod tokens;
mod trial_documents;
mod trials;
mod whole_number;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rollout_base::shared_limit::{LimitShares, SharedLimit};
use rollout_base::supervise::{self, Task};
use rollout_protocol::exit::ExitCode;
use serde::Serialize;
use tokio::net::{TcpListener, TcpSocket};

#[cfg(feature = "openapi")]
pub use self::openapi::openapi;
pub use self::tls::TlsFiles;
pub use self::tokens::{TokenFile, TokensError};

use self::connections::Connections;
use self::metrics::ApiMetrics;
use self::problem::ApiProblem;
use crate::daemon::Daemon;

/// Large answers that are encoded at the same time. A user has one of them.
const CONCURRENT_ENCODINGS: u64 = 2;

/// Connections that wait to be accepted. With the 128 of the standard library, a burst of one client
/// makes the connections of others wait for seconds.
const LISTEN_BACKLOG: u32 = 1024;

/// How the API is served.
#[derive(Debug)]
pub struct ApiOptions {
    /// Address to listen on; port 0 chooses a free port.
    pub address: SocketAddr,
    /// Users.
    pub tokens: TokenFile,
    /// Certificate and key; without them, connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// Largest body of a request, bytes.
    pub max_body_bytes: usize,
    /// Largest archive of a dataset, bytes.
    pub max_dataset_bytes: u64,
    /// Connections at a time.
    pub max_connections: usize,
}

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The address cannot be used.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// State that requests share.
#[derive(Debug)]
struct ApiState {
    daemon: Arc<Daemon>,
    tokens: TokenFile,
    max_body_bytes: usize,
    max_dataset_bytes: u64,
    metrics: ApiMetrics,
    /// Answers that last.
    streams: Arc<SharedLimit>,
    /// Requests that are served.
    requests: Arc<SharedLimit>,
    /// Bytes of bodies that are read or used.
    body_bytes: Arc<SharedLimit>,
    /// Large bodies that are parsed at the same time.
    parses: Arc<SharedLimit>,
    /// Large answers that are encoded at the same time.
    encodings: Arc<SharedLimit>,
}

/// A server of the API. It ends when this is dropped.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    _serving: Task<()>,
}

impl ApiServer {
    /// Serves a daemon. To be called in a runtime.
    ///
    /// # Errors
    /// [`ApiError`].
    pub fn start(options: ApiOptions, daemon: Arc<Daemon>) -> Result<Self, ApiError> {
        let ApiOptions { address, tokens, tls, max_body_bytes, max_dataset_bytes, .. } = options;
        let max_connections = options.max_connections;
        let failed = |source| ApiError::Listen { address, source };
        let listener = listen(address).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let metrics = ApiMetrics::new();
        // Streams leave room for other requests.
        let shared = |places| SharedLimit::new(LimitShares::new(places as u64));
        let (streams, requests) = (shared((max_connections / 2).max(1)), shared(max_connections));
        let state = ApiState {
            daemon,
            tokens,
            max_body_bytes,
            max_dataset_bytes,
            metrics,
            streams,
            requests,
            body_bytes: body::bytes_in_flight(max_body_bytes),
            parses: body::parses(),
            encodings: SharedLimit::new(LimitShares::new(CONCURRENT_ENCODINGS)),
        };
        let router = router(Arc::new(state));
        let serving = Connections::new(max_connections, tls).serve(listener, router);
        Ok(Self { address: local, _serving: supervise::spawn("API", serving) })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn router(state: Arc<ApiState>) -> Router {
    let monitoring = metrics::monitoring(Arc::clone(&state.daemon), &state.metrics);
    Router::new()
        .route("/v1/runs", get(runs::list).post(runs::submit))
        .route("/v1/runs/{id}", get(runs::show).delete(runs::delete))
        .route("/v1/runs/{id}/cancel", post(runs::cancel))
        .route("/v1/runs/{id}/pause", post(runs::pause))
        .route("/v1/runs/{id}/continue", post(runs::resume))
        .route("/v1/runs/{id}/events", get(events::events))
        .route("/v1/runs/{id}/export", get(export::export))
        .route("/v1/runs/{id}/items", get(items::list))
        .route("/v1/runs/{id}/items/{item}", get(items::show))
        .route("/v1/runs/{id}/items/{item}/outputs", get(items::outputs))
        .route("/v1/runs/{id}/items/{item}/logs", get(items::logs))
        .route("/v1/runs/{id}/items/{item}/artifacts", get(items::artifacts))
        .route("/v1/runs/{id}/items/{item}/artifact", get(items::artifact))
        .route("/v1/runs/{id}/search", get(runs::search))
        .route("/v1/runs/{id}/finish", post(trials::finish))
        .route("/v1/runs/{id}/trials", get(trials::list).post(trials::start))
        .route("/v1/runs/{id}/trials/{item}", get(trials::status))
        .route("/v1/runs/{id}/trials/{item}/events", get(trials::events))
        .route("/v1/runs/{id}/trials/{item}/control", post(trials::control))
        .route("/v1/runs/{id}/trials/{item}/cancel", post(trials::cancel))
        .route("/v1/runs/{id}/trials/{item}/output", get(trials::output))
        .route("/v1/runs/{id}/trials/{item}/artifacts", get(trials::artifacts))
        .route("/v1/runs/{id}/blobs/{digest}", get(trials::blob))
        .route("/v1/datasets/{digest}", get(datasets::show).put(datasets::upload))
        .route("/v1/openapi.json", get(openapi_document))
        .merge(farms::router())
        .with_state(Arc::clone(&state))
        .merge(monitoring.router())
        .fallback(async || ApiProblem::not_found("cannot find this path"))
        .method_not_allowed_fallback(async || {
            let message = "cannot use this method here";
            let status = StatusCode::METHOD_NOT_ALLOWED;
            ApiProblem::new(status, "method-not-allowed", ExitCode::Usage, message)
        })
        .layer(middleware::from_fn_with_state(state, gate::pass))
}

/// The description of the API, which `openapi` makes from its types and a test compares with this.
async fn openapi_document() -> Response {
    let document = include_str!("../../../docs/openapi.json");
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}

/// An answer of JSON.
fn json(document: &impl Serialize) -> Response {
    match serde_json::to_vec(document) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!("cannot encode an answer: {error}");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            let message = "cannot encode the answer";
            ApiProblem::new(status, "internal", ExitCode::Failure, message).into_response()
        }
    }
}

/// Listens on an address, as [`TcpListener::bind`] does, with a longer queue.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn burst_of_connections_does_not_wait_to_be_accepted() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("listening");
        let address = listener.local_addr().expect("an address");
        // The host may have a shorter queue.
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a number");
        let most: usize = most.trim().parse().expect("a number");
        let connecting = async {
            let mut connections = Vec::new();
            for _ in 0..most.min(300) {
                connections.push(TcpStream::connect(address).await.expect("connected"));
            }
        };
        tokio::time::timeout(Duration::from_secs(30), connecting).await.expect("in the queue");
    }
}
