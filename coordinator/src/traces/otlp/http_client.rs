//! HTTP client of the exporter. It blocks: the exporter has a thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};

use crate::https;

/// Largest answer that is read. Collectors answer with a few bytes.
const MAX_ANSWER: u64 = 64 * 1024;

/// The reason of the last failure, which the exporter does not pass on. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    /// The reason, once.
    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, reason: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// The client.
#[derive(Debug)]
pub(super) struct UreqClient {
    agent: ureq::Agent,
    timeout: Duration,
    failure: LastFailure,
}

impl UreqClient {
    /// A client whose requests end within `timeout`.
    pub(super) fn new(timeout: Duration, failure: LastFailure) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            // Headers may be secrets of this one address.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
            .tls_config(https::tls_config())
            .build();
        Self { agent: ureq::Agent::new_with_config(config), timeout, failure }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let response = self.agent.run(Request::from_parts(head, &*body))?;
        let (head, mut body) = response.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }

    /// The reason of a failure, without the address, which may hold a password.
    fn reason(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Io(error) => format!("cannot reach the collector: {error}"),
            ureq::Error::Timeout(_) => {
                format!("the collector gave no complete answer within {:?}", self.timeout)
            }
            ureq::Error::HostNotFound => "the collector's host was not found".to_owned(),
            ureq::Error::ConnectionFailed => "cannot connect to the collector".to_owned(),
            _ => "the request to the collector failed".to_owned(),
        }
    }
}

#[async_trait]
impl HttpClient for UreqClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.send(request).map_err(|error| {
            let reason = self.reason(&error);
            tracing::debug!("{reason}");
            self.failure.set(Some(reason.clone()));
            reason
        })?;
        let status = response.status();
        let reason = format!("the collector answered {status}");
        self.failure.set((!status.is_success()).then_some(reason));
        Ok(response)
    }
}
