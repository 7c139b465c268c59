//! Calls to a server of the API: requests, their repetition, and errors of the server.

use std::time::Duration;

use axum::body::{self, Body};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rollout_base::backoff::error_chain;
use rollout_base::regular_file;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::rustls::crypto::ring;

use super::{RemoteExecutorOptions, TokenSource};
use crate::executor::ExecutorError;

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an unused connection is kept: less than servers and load balancers keep it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest document of an answer, bytes.
const MAX_DOCUMENT: usize = 64 * 1024 * 1024;

/// Largest file with a token.
const TOKEN_BYTES: u64 = 64 * 1024;

/// First and longest pause before a call is repeated.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Time limit of calls that answer soon.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A server, with the token of its user.
pub(super) struct ApiTransport {
    base: String,
    token: Option<HeaderValue>,
    client: Client<HttpsConnector<HttpConnector>, Body>,
    patience: Duration,
}

impl std::fmt::Debug for ApiTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiTransport").field("base", &self.base).finish_non_exhaustive()
    }
}

/// A call.
#[derive(Debug, Clone)]
pub(super) struct ApiCall {
    method: Method,
    path: String,
    document: Option<Value>,
    key: Option<String>,
    /// Whether a second call has no other effect than the first.
    is_repeatable: bool,
    limit: Duration,
}

impl ApiCall {
    /// A call that reads.
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            document: None,
            key: None,
            is_repeatable: true,
            limit: CALL_TIMEOUT,
        }
    }

    /// A call that has an effect, which a second call does not change.
    pub(super) fn post(path: impl Into<String>, document: Value) -> Self {
        Self { method: Method::POST, document: Some(document), ..Self::get(path) }
    }

    /// The call with an idempotency key.
    pub(super) fn with_key(self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self }
    }

    /// The call, not repeated once it was sent, with its time limit.
    pub(super) fn once(self, limit: Duration) -> Self {
        Self { is_repeatable: false, limit, ..self }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// There was no whole answer.
    Unreachable {
        reason: String,
        /// Whether the server may have received the call.
        was_sent: bool,
    },
    /// The server answered with an error.
    Problem(ServerProblem),
}

/// An error that the server states.
#[derive(Debug)]
pub(super) struct ServerProblem {
    pub(super) status: u16,
    /// Its kind, such as `not-found`; empty if a proxy answered.
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) details: Vec<String>,
    retry_after: Option<Duration>,
}

impl ApiTransport {
    pub(super) fn new(options: &RemoteExecutorOptions) -> Result<Self, ExecutorError> {
        let refused = |reason: String| ExecutorError::Remote { reason };
        let base = options.endpoint.trim_end_matches('/').to_owned();
        let uri: Uri = base.parse().map_err(|error| refused(format!("`{base}`: {error}")))?;
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(refused(format!("`{base}` is not the URL of a server"))),
        };
        let token = options.token.as_ref().map(authorization).transpose().map_err(refused)?;
        let connector = connector(is_https)
            .map_err(|error| refused(format!("cannot read the certificates: {error}")))?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Ok(Self { base, token, client, patience: options.patience })
    }

    /// The URL of the server.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Calls until there is an answer, and returns its document.
    pub(super) async fn call(&self, call: ApiCall) -> Result<Value, CallError> {
        let mut pauses = RetryPauses::new(self.patience);
        loop {
            match self.attempt(&call).await {
                Ok(document) => return Ok(document),
                Err(error) => match pauses.after(&error, call.is_repeatable) {
                    Some(pause) => sleep(pause).await,
                    None => return Err(error),
                },
            }
        }
    }

    async fn attempt(&self, call: &ApiCall) -> Result<Value, CallError> {
        let late = |_| CallError::unreachable("the answer took too long", true);
        timeout(call.limit, async {
            let answer = self.send(call).await?;
            let bytes = body::to_bytes(answer.into_body(), MAX_DOCUMENT).await;
            let bytes = bytes.map_err(|error| CallError::unreachable(error_chain(&error), true))?;
            let invalid = |error| CallError::unreachable(format!("the answer: {error}"), true);
            serde_json::from_slice(&bytes).map_err(invalid)
        })
        .await
        .map_err(late)?
    }

    /// Opens an answer that lasts; repeats the call until there is one.
    pub(super) async fn open(&self, path: &str) -> Result<Body, CallError> {
        let call = ApiCall::get(path);
        let mut pauses = RetryPauses::new(self.patience);
        loop {
            let late = |_| CallError::unreachable("the answer took too long", true);
            let opened = timeout(call.limit, self.send(&call)).await.map_err(late);
            match opened.and_then(|sent| sent) {
                Ok(answer) => return Ok(answer.into_body()),
                Err(error) => match pauses.after(&error, true) {
                    Some(pause) => sleep(pause).await,
                    None => return Err(error),
                },
            }
        }
    }

    /// Sends a call and waits for the head of a good answer.
    async fn send(&self, call: &ApiCall) -> Result<Response<Body>, CallError> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.base, call.path))
            .header(header::USER_AGENT, concat!("rollout/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token.clone());
        }
        if let Some(key) = &call.key {
            request = request.header("idempotency-key", key);
        }
        let content = match &call.document {
            Some(document) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(document.to_string())
            }
            None => Body::empty(),
        };
        let request = request.body(content);
        let request = request.map_err(|error| CallError::unreachable(error.to_string(), false))?;
        let answer =
            self.client.request(request).await.map_err(|error| {
                CallError::unreachable(error_chain(&error), !error.is_connect())
            })?;
        let answer = answer.map(Body::new);
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(CallError::Problem(ServerProblem::read(answer).await))
    }
}

/// The header with the token of a source.
fn authorization(source: &TokenSource) -> Result<HeaderValue, String> {
    let (place, token) = match source {
        TokenSource::Variable(name) => (format!("the variable {name}"), std::env::var(name).ok()),
        TokenSource::File(path) => (
            format!("the file {}", path.display()),
            regular_file::read_any_text(path, TOKEN_BYTES).ok(),
        ),
    };
    let token = token.ok_or_else(|| format!("{place} has no token"))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|_| format!("{place} has no valid token"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn connector(is_https: bool) -> std::io::Result<HttpsConnector<HttpConnector>> {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(Duration::from_secs(60)));
    tcp.enforce_http(false);
    let provider = ring::default_provider();
    let tls = match HttpsConnectorBuilder::new().with_provider_and_native_roots(provider) {
        Ok(tls) => tls,
        Err(error) if is_https => return Err(error),
        // A host without certificates can still use servers in its own network.
        Err(_) => HttpsConnectorBuilder::new().with_tls_config(without_roots()),
    };
    Ok(tls.https_or_http().enable_http1().wrap_connector(tcp))
}

/// TLS that trusts no certificate.
fn without_roots() -> tokio_rustls::rustls::ClientConfig {
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    let provider = std::sync::Arc::new(ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions of TLS")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

impl CallError {
    fn unreachable(reason: impl Into<String>, was_sent: bool) -> Self {
        Self::Unreachable { reason: reason.into(), was_sent }
    }

    /// Whether the same call can succeed soon.
    fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Problem(problem) => matches!(problem.status, 429 | 502 | 503),
        }
    }
}

impl ServerProblem {
    /// Whether the run of the executor waits for its start.
    pub(super) fn is_not_open(&self) -> bool {
        self.kind == "not-open"
    }

    async fn read(answer: Response<Body>) -> Self {
        let status = answer.status();
        let seconds = answer.headers().get(header::RETRY_AFTER);
        let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = seconds.map(Duration::from_secs);
        let bytes = body::to_bytes(answer.into_body(), MAX_DOCUMENT).await.unwrap_or_default();
        let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        Self { retry_after, ..Self::from_document(status, &document) }
    }

    fn from_document(status: StatusCode, document: &Value) -> Self {
        let text = |key: &str| document[key].as_str();
        let kind = text("type").and_then(|kind| kind.rsplit(':').next()).unwrap_or_default();
        let details = document["details"].as_array().into_iter().flatten();
        let details: Vec<_> =
            details.filter_map(|detail| detail.as_str().map(str::to_owned)).collect();
        let reason = text("detail").or(status.canonical_reason()).unwrap_or("error").to_owned();
        let (status, kind) = (status.as_u16(), kind.to_owned());
        Self { status, kind, reason, details, retry_after: None }
    }
}

/// The pauses between the attempts of a call.
#[derive(Debug)]
pub(super) struct RetryPauses {
    patience: Duration,
    /// When the server was first out of reach, since it last answered.
    failing_since: Option<Instant>,
    next: Duration,
}

impl RetryPauses {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, failing_since: None, next: PAUSES[0] }
    }

    /// The pause after a failure; `None` when the call has failed for good. A run that waits for its
    /// start is waited for as long as that takes.
    pub(super) fn after(&mut self, error: &CallError, is_repeatable: bool) -> Option<Duration> {
        let (is_not_open, asked) = match error {
            CallError::Problem(problem) => (problem.is_not_open(), problem.retry_after),
            CallError::Unreachable { was_sent: true, .. } if !is_repeatable => return None,
            CallError::Unreachable { .. } => (false, None),
        };
        if is_not_open {
            self.failing_since = None;
        } else if !error.is_passing() {
            return None;
        } else {
            let since = *self.failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.patience {
                return None;
            }
        }
        let pause = asked.unwrap_or(self.next).clamp(PAUSES[0], PAUSES[1]);
        self.next = (self.next * 2).min(PAUSES[1]);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16, kind: &str) -> CallError {
        let document = serde_json::json!({ "type": format!("urn:rollout:problem:{kind}") });
        let status = StatusCode::from_u16(status).expect("a status");
        CallError::Problem(ServerProblem::from_document(status, &document))
    }

    #[test]
    fn passing_errors_are_retried_while_there_is_patience() {
        let mut pauses = RetryPauses::new(Duration::from_secs(60));
        let cut = CallError::unreachable("cut", true);
        assert_eq!(pauses.after(&cut, true), Some(PAUSES[0]));
        assert_eq!(pauses.after(&problem(503, "stopping"), true), Some(PAUSES[0] * 2));
        assert_eq!(pauses.after(&problem(409, "conflict"), true), None);
        assert_eq!(pauses.after(&problem(404, "not-found"), true), None);
        let mut impatient = RetryPauses::new(Duration::ZERO);
        assert_eq!(impatient.after(&cut, true), None);
        assert!(impatient.after(&problem(503, "not-open"), true).is_some());
    }

    #[test]
    fn call_that_is_no_repetition_is_sent_once() {
        let mut pauses = RetryPauses::new(Duration::from_secs(60));
        assert_eq!(pauses.after(&CallError::unreachable("cut", true), false), None);
        assert!(pauses.after(&CallError::unreachable("refused", false), false).is_some());
    }

    #[test]
    fn token_file_without_an_end_is_refused() {
        let source = TokenSource::File("/dev/zero".into());
        let error = authorization(&source).expect_err("refused");
        assert_eq!(error, "the file /dev/zero has no token");
    }
}
