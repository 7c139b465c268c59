//! Health checks and metrics of a process over HTTP.
//!
//! | Path | Answer |
//! | --- | --- |
//! | `/healthz` | 200 while the process serves requests |
//! | `/readyz` | 200 while it works, else 503 with the reason |
//! | `/metrics` | its metrics in the text format of OpenMetrics 1.0 |

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use rollout_base::supervise::{self, Task};
use tokio::net::TcpListener;

use super::listener::BoundedListener;

/// The media type of the answer of `/metrics`.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Prefix of the names of all metrics.
const PREFIX: &str = "rollout";

/// Answers whether the process works; otherwise the reason.
pub type ReadinessCheck = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The state that a process shows.
pub struct Monitoring {
    registry: Registry,
    readiness: ReadinessCheck,
}

impl fmt::Debug for Monitoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitoring").field("registry", &self.registry).finish_non_exhaustive()
    }
}

impl Monitoring {
    /// Shows the metrics that `register` adds, and the readiness that its result checks.
    pub fn new(register: impl FnOnce(&mut Registry) -> ReadinessCheck) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let readiness = register(&mut registry);
        Self { registry, readiness }
    }

    /// Its routes.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(Arc::new(self))
    }
}

async fn readyz(State(shown): State<Arc<Monitoring>>) -> Response {
    match (shown.readiness)() {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response()
        }
    }
}

async fn metrics(State(shown): State<Arc<Monitoring>>) -> Response {
    let mut body = String::new();
    match text::encode(&mut body, &shown.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPENMETRICS)], body).into_response(),
        Err(error) => {
            let message = format!("cannot encode the metrics: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
        }
    }
}

/// A server of health checks and metrics. It ends when this is dropped.
#[derive(Debug)]
pub struct MonitoringServer {
    address: SocketAddr,
    _serving: Task<()>,
}

impl MonitoringServer {
    /// Listens on `address`; port 0 chooses a free port.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub async fn start(address: SocketAddr, monitoring: Monitoring) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let serving = supervise::spawn("monitoring", async move {
            let listener = BoundedListener::new(listener);
            if let Err(error) = axum::serve(listener, monitoring.router()).await {
                tracing::error!("health checks and metrics ended: {error}");
            }
        });
        Ok(Self { address, _serving: serving })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use prometheus_client::metrics::counter::Counter;

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
        let url = format!("http://{address}{path}");
        supervise::blocking(move || {
            let agent = ureq::Agent::config_builder().http_status_as_error(false).build();
            let mut response = agent.new_agent().get(&url).call().expect("an answer");
            let media_type = response.headers().get("content-type");
            let media_type = media_type.map(|text| text.to_str().expect("text").to_owned());
            let body = response.body_mut().read_to_string().expect("text");
            (response.status().as_u16(), media_type.unwrap_or_default(), body)
        })
        .await
    }

    #[tokio::test]
    async fn server_answers_checks_and_metrics() {
        let is_ready = Arc::new(AtomicBool::new(false));
        let (checked, counter) = (Arc::clone(&is_ready), Counter::<u64>::default());
        let counted = counter.clone();
        let monitoring = Monitoring::new(move |registry| {
            registry.register("seen", "A count", counted);
            Box::new(move || {
                let is_ready = checked.load(Ordering::Relaxed);
                if is_ready { Ok(()) } else { Err("still starting".to_owned()) }
            })
        });
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = MonitoringServer::start(local, monitoring).await.expect("a free port");
        let address = server.address();
        assert_eq!(get(address, "/healthz").await.0, 200);
        let (status, _, body) = get(address, "/readyz").await;
        assert_eq!((status, &*body), (503, "not ready: still starting\n"));
        is_ready.store(true, Ordering::Relaxed);
        assert_eq!(get(address, "/readyz").await.0, 200);
        counter.inc_by(7);
        let (status, media_type, body) = get(address, "/metrics").await;
        assert_eq!((status, &*media_type), (200, OPENMETRICS));
        assert!(body.contains("\nrollout_seen_total 7\n") && body.ends_with("# EOF\n"), "{body}");
        assert_eq!(get(address, "/other").await.0, 404);

        let taken = Monitoring::new(|_| Box::new(|| Ok(())));
        let error = MonitoringServer::start(address, taken).await.expect_err("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(server);
    }
}
