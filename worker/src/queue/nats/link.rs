//! The connection, what it is connected to, and requests over it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Event, ServerError};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};

use super::fault::{ApiError, Fault};
use super::flood::Flood;
use super::life::Life;
use super::names::Names;
use super::options::NatsOptions;
use super::replies::{Answered, Replies, Request};
use crate::queue::traits::{Contact, QueueError};

/// How long an answer of the server is waited for. It answers in milliseconds, or when its disk
/// does.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How often the state of the connection is looked at, in case that its events were missed.
const LOOK: Duration = Duration::from_millis(200);

/// Everything that the ports share.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) options: NatsOptions,
    pub(super) names: Names,
    pub(super) replies: Arc<Replies>,
    pub(super) life: Life,
    contact: watch::Sender<Contact>,
    /// The last refusal of something that nobody waits for an answer to.
    refusal: Mutex<Option<String>>,
    refusals: Flood,
}

impl Link {
    pub(super) fn new(client: Client, options: NatsOptions, replies: Arc<Replies>) -> Self {
        let names = Names::new(&options.namespace);
        let contact = watch::Sender::new(Contact { up: true, connections: 1 });
        let (life, refusal, refusals) = (Life::default(), Mutex::default(), Flood::default());
        Self { client, options, names, replies, life, contact, refusal, refusals }
    }

    pub(super) fn contact(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    /// The number of the present connection.
    pub(super) fn connection(&self) -> Result<u64, Fault> {
        // Not from `contact`, which lags behind by a moment.
        if self.client.connection_state() == State::Connected {
            Ok(self.client.statistics().connects.load(Ordering::Relaxed))
        } else {
            let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
            match &*refusal {
                Some(text) if text.contains("authorization") => Err(Fault::Denied(text.clone())),
                _ => Err(Fault::Unreachable("not connected to the server".to_owned())),
            }
        }
    }

    /// Asks all of it at once.
    pub(super) async fn ask(&self, requests: Vec<Request>) -> Result<Vec<Answered>, Fault> {
        self.connection()?;
        Ok(self.replies.ask(&self.client, requests, PATIENCE).await)
    }

    pub(super) async fn ask_one(&self, request: Request) -> Answered {
        let mut answers = self.ask(vec![request]).await?;
        answers.pop().unwrap_or_else(|| Err(Fault::Unreachable("no answer".to_owned())))
    }

    /// Asks the JetStream API.
    pub(super) async fn api<T: DeserializeOwned>(
        &self,
        verb: &str,
        body: &impl Serialize,
    ) -> Result<T, Fault> {
        parse_api(&self.ask_one(api_request(verb, body)).await?.payload)
    }

    /// Says something that needs no answer.
    pub(super) async fn say(&self, subject: String, payload: Bytes) -> Result<(), Fault> {
        self.connection()?;
        let sent = self.client.publish(subject, payload).await;
        sent.map_err(|error| Fault::Unreachable(error.to_string()))
    }

    /// What the server refused since the last time this was asked, of what nobody waits for.
    pub(super) fn take_refusal(&self) -> Result<(), QueueError> {
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
        refusal.map_or(Ok(()), |reason| Err(QueueError::Denied { reason }))
    }

    fn note(&self, event: &Event) {
        let text = match event {
            Event::ServerError(ServerError::Other(text)) => text.clone(),
            Event::ServerError(ServerError::AuthorizationViolation) | Event::ClientError(_) => {
                event.to_string()
            }
            Event::SlowConsumer(_) => {
                tracing::warn!("messages of the server are lost: this process is too slow");
                return;
            }
            _ => return,
        };
        let kind = text.to_lowercase();
        if !kind.contains("violation") {
            tracing::debug!("the server's client says: {text}");
            return;
        }
        match self.refusals.due() {
            Some(0) => tracing::warn!("the server refuses: {text}"),
            Some(more) => {
                tracing::warn!("the server refuses: {text} ({more} more since the last warning)");
            }
            None => tracing::debug!("the server refuses: {text}"),
        }
        if let Some(subject) = text.split('"').nth(1) {
            self.replies.refused(subject, &text);
        }
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    }

    /// Brings the state of the connection up to date.
    fn look(&self, event: Option<&Event>) {
        let up = match event {
            Some(Event::Connected) => true,
            Some(Event::Disconnected | Event::Closed) => false,
            _ => self.client.connection_state() == State::Connected,
        };
        let connections = self.client.statistics().connects.load(Ordering::Relaxed);
        let now = Contact { up, connections };
        let mut lost = false;
        self.contact.send_if_modified(|known| {
            lost = *known != now;
            *known = now;
            lost
        });
        if lost {
            if up {
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            self.replies.lost();
        }
    }
}

/// Follows the connection for as long as it is wanted.
pub(super) async fn follow(link: Arc<Link>, mut events: mpsc::Receiver<Event>) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(event) = events.recv() => {
                link.note(&event);
                link.look(Some(&event));
            }
            _ = looks.tick() => link.look(None),
        }
    }
}

/// A request to the JetStream API.
pub(super) fn api_request(verb: &str, body: &impl Serialize) -> Request {
    let payload = serde_json::to_vec(body).expect("requests have only text keys");
    Request::new(format!("$JS.API.{verb}"), payload)
}

/// What the API answered: an object that may be an error.
pub(super) fn parse_api<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Fault> {
    #[derive(serde::Deserialize)]
    struct Outcome<'a> {
        #[serde(default)]
        error: Option<ApiError>,
        #[serde(rename = "type", default, borrow)]
        _kind: Option<&'a RawValue>,
    }
    let garbled = |error: serde_json::Error| {
        Fault::Unreachable(format!("an answer of the server is not understood: {error}"))
    };
    let outcome: Outcome<'_> = serde_json::from_slice(payload).map_err(garbled)?;
    match outcome.error {
        Some(error) => Err(Fault::Api(error)),
        None => serde_json::from_slice(payload).map_err(garbled),
    }
}
