//! The connection, the server's incarnation, and requests over the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Event, ServerError};
use bytes::Bytes;
use rollout_base::backoff::error_chain;
use rollout_base::common_times::next_time;
use rollout_base::supervise;
use rollout_base::warning_limiter::WarningLimiter;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::error::{ApiError, NatsError};
use super::incarnation::IncarnationTracker;
use super::names::NamespaceNames;
use super::options::NatsOptions;
use super::replies::{NatsRequest, ReplyResult, ReplyRouter};
use super::tls_fault::ReconnectFailure;
use crate::traits::{ConnectionStatus, QueueError};

/// Timeout of a response of the server. It responds in milliseconds, or when its disk does.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks of the connection's state, in case its events were missed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The same for a connection that has had no events for [`SETTLED_AFTER`].
const SETTLED_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Time without events after which a connection is settled.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Subject of the request for the account. Its callers report a refusal.
const ACCOUNT_INFO: &str = "$JS.API.INFO";

/// Start of the subjects of requests to remove a consumer. Users of earlier versions may not send them, and
/// nothing depends on them: the server removes an unused consumer itself.
pub(super) const CONSUMER_DELETE: &str = "$JS.API.CONSUMER.DELETE.";

/// State shared by the implementations of the queue traits.
#[derive(Debug)]
pub(super) struct NatsClient {
    pub(super) inner: Client,
    pub(super) options: NatsOptions,
    pub(super) names: NamespaceNames,
    pub(super) replies: Arc<ReplyRouter>,
    pub(super) incarnation: IncarnationTracker,
    status: watch::Sender<ConnectionStatus>,
    /// The last refusal of a message that no caller waits for a reply to.
    refusal: Mutex<Option<String>>,
    refusals: WarningLimiter,
    /// Whether the server has refused to remove a consumer.
    keeps_consumers: Arc<AtomicBool>,
    failure: Arc<ReconnectFailure>,
}

impl NatsClient {
    pub(super) fn new(
        inner: Client,
        options: NatsOptions,
        replies: Arc<ReplyRouter>,
        failure: Arc<ReconnectFailure>,
    ) -> Self {
        let names = NamespaceNames::new(&options.namespace);
        let status = watch::Sender::new(ConnectionStatus { up: true, connections: 1 });
        let (incarnation, refusal, refusals) =
            (IncarnationTracker::default(), Mutex::default(), WarningLimiter::default());
        let keeps_consumers = Arc::default();
        Self {
            inner,
            options,
            names,
            replies,
            incarnation,
            status,
            refusal,
            refusals,
            keeps_consumers,
            failure,
        }
    }

    pub(super) fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    /// The number of the current connection.
    pub(super) fn connection(&self) -> Result<u64, NatsError> {
        // Not from the watched status, which lags behind by a moment.
        if self.inner.connection_state() == State::Connected {
            Ok(self.inner.statistics().connects.load(Ordering::Relaxed))
        } else {
            let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
            match &*refusal {
                Some(text) if text.contains("authorization") => {
                    Err(NatsError::Denied(text.clone()))
                }
                _ => Err(NatsError::Unreachable(match self.failure.get() {
                    Some(reason) => format!("not connected to the server: {reason}"),
                    None => "not connected to the server".to_owned(),
                })),
            }
        }
    }

    /// Sends all requests at once.
    pub(super) async fn request_all(
        &self,
        requests: Vec<NatsRequest>,
    ) -> Result<Vec<ReplyResult>, NatsError> {
        self.connection()?;
        Ok(self.replies.request_all(&self.inner, requests, ANSWER_TIMEOUT).await)
    }

    pub(super) async fn request(&self, request: NatsRequest) -> ReplyResult {
        let mut answers = self.request_all(vec![request]).await?;
        answers.pop().unwrap_or_else(|| Err(NatsError::Unreachable("no answer".to_owned())))
    }

    /// Calls the JetStream API.
    pub(super) async fn api_call<T: DeserializeOwned>(
        &self,
        verb: &str,
        body: &impl Serialize,
    ) -> Result<T, NatsError> {
        parse_api(&self.request(api_request(verb, body)).await?.payload)
    }

    /// Connects again, to any server of the cluster; does nothing without one.
    pub(super) async fn try_another_server(&self) {
        let server = self.inner.server_info();
        if server.cluster.is_none() {
            return;
        }
        tracing::warn!(
            "the NATS server {} does not answer: trying another one",
            server.server_name
        );
        if let Err(error) = self.inner.force_reconnect().await {
            tracing::debug!(%error, "cannot connect again");
        }
    }

    /// Sends a message that needs no reply.
    pub(super) async fn send(&self, subject: String, payload: Bytes) -> Result<(), NatsError> {
        self.connection()?;
        let sent = self.inner.publish(subject, payload).await;
        sent.map_err(|error| NatsError::Unreachable(error.to_string()))
    }

    /// Whether the server has refused to remove a consumer, as known later.
    pub(super) fn keeps_consumers(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.keeps_consumers)
    }

    /// The last refusal since the previous call, of a message that no caller waits for a reply to.
    pub(super) fn take_refusal(&self) -> Result<(), QueueError> {
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
        refusal.map_or(Ok(()), |reason| Err(QueueError::Denied { reason }))
    }

    fn handle_event(&self, event: &Event) {
        let text = match event {
            Event::ServerError(ServerError::Other(text)) => text.clone(),
            Event::ServerError(ServerError::AuthorizationViolation) | Event::ClientError(_) => {
                event.to_string()
            }
            Event::SlowConsumer(_) => {
                tracing::warn!("lost messages of the server: this process is too slow");
                return;
            }
            _ => return,
        };
        let kind = text.to_lowercase();
        if !kind.contains("violation") {
            tracing::debug!("event of the NATS client: {text}");
            return;
        }
        let subject = text.split('"').nth(1);
        let refused = format!("the server refused a message: {text}");
        if subject.is_some_and(|subject| subject.starts_with(CONSUMER_DELETE)) {
            tracing::debug!("{refused}");
            self.keeps_consumers.store(true, Ordering::Relaxed);
            return;
        }
        match subject == Some(ACCOUNT_INFO) {
            true => tracing::debug!("{refused}"),
            false => self.refusals.warn(&refused),
        }
        if let Some(subject) = subject {
            self.replies.fail_subject(subject, &text);
        }
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    }

    /// Updates the state of the connection.
    fn update_status(&self, event: Option<&Event>) {
        let up = match event {
            Some(Event::Connected) => true,
            Some(Event::Disconnected | Event::Closed) => false,
            _ => self.inner.connection_state() == State::Connected,
        };
        let connections = self.inner.statistics().connects.load(Ordering::Relaxed);
        let now = ConnectionStatus { up, connections };
        let mut changed = false;
        self.status.send_if_modified(|known| {
            changed = *known != now;
            *known = now;
            changed
        });
        if changed {
            if up {
                self.failure.clear();
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            self.replies.fail_all();
        }
    }

    /// Reports why the settings of this process or of the server prevent another connection.
    async fn report_failure(&self) {
        let Some(reason) = self.failure.take_unreported() else { return };
        let tls = self.options.tls.clone();
        // The client's error does not name the file.
        let file = supervise::blocking(move || tls.check()).await.err();
        let reason = file.map_or(reason, |error| error_chain(&error));
        let address = self.options.address();
        tracing::error!("cannot connect to {address} again: {reason}; retrying");
    }
}

/// Follows the connection. Never ends before the client does.
pub(super) async fn follow_connection(client: Arc<NatsClient>, mut events: mpsc::Receiver<Event>) {
    let (mut last_event, mut last_look) = (Instant::now(), Instant::now());
    loop {
        let is_up = client.status.borrow().up;
        let next_look = match is_up && last_event.elapsed() >= SETTLED_AFTER {
            true => next_time(SETTLED_POLL_INTERVAL),
            false => last_look + POLL_INTERVAL,
        };
        tokio::select! {
            Some(event) = events.recv() => {
                last_event = Instant::now();
                client.handle_event(&event);
                client.update_status(Some(&event));
            }
            () = tokio::time::sleep_until(next_look) => {
                last_look = Instant::now();
                client.update_status(None);
                client.report_failure().await;
            }
        }
    }
}

/// A request to the JetStream API.
pub(super) fn api_request(verb: &str, body: &impl Serialize) -> NatsRequest {
    let payload = serde_json::to_vec(body).expect("requests have only text keys");
    NatsRequest::new(format!("$JS.API.{verb}"), payload)
}

/// Parses a response of the API: an object that may be an error.
pub(super) fn parse_api<T: DeserializeOwned>(payload: &[u8]) -> Result<T, NatsError> {
    #[derive(serde::Deserialize)]
    struct ApiOutcome<'a> {
        #[serde(default)]
        error: Option<ApiError>,
        #[serde(rename = "type", default, borrow)]
        _kind: Option<&'a RawValue>,
    }
    let garbled = |error: serde_json::Error| {
        NatsError::Unreachable(format!("cannot parse a response of the server: {error}"))
    };
    let outcome: ApiOutcome<'_> = serde_json::from_slice(payload).map_err(garbled)?;
    match outcome.error {
        Some(error) => Err(NatsError::Api(error)),
        None => serde_json::from_slice(payload).map_err(garbled),
    }
}
