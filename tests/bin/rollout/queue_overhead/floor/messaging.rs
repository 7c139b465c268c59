//! Messaging of a floor process: publications with their acknowledgements, and pulled messages.

use std::time::Duration;

use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::ReadyChunks;
use serde::Deserialize;
use serde_json::json;

use crate::queue_overhead::comparison::QueueBenchError;

/// Messages handled at once.
const MAX_MESSAGES_PER_BATCH: usize = 1024;

/// Longer than any measurement: requests never end by themselves.
const REQUEST_EXPIRY: Duration = Duration::from_secs(3600);

/// Publishes messages and receives the stream's acknowledgements.
#[derive(Debug)]
pub(super) struct FloorPublisher {
    client: Client,
    inbox: String,
    answers: ReadyChunks<Subscriber>,
}

#[derive(Deserialize)]
struct Acknowledgement {
    #[serde(default)]
    error: Option<serde_json::Value>,
}

impl FloorPublisher {
    pub(super) async fn new(client: &Client) -> Result<Self, QueueBenchError> {
        let inbox = client.new_inbox();
        let subscriber = client.subscribe(format!("{inbox}.*")).await;
        let answers = subscriber
            .map_err(QueueBenchError::from_display("subscribe"))?
            .ready_chunks(MAX_MESSAGES_PER_BATCH);
        Ok(Self { client: client.clone(), inbox, answers })
    }

    /// Publishes a message under a number.
    pub(super) async fn publish(
        &self,
        number: u64,
        subject: String,
        payload: Bytes,
    ) -> Result<(), QueueBenchError> {
        let reply = format!("{}.{number:x}", self.inbox);
        let sent = self.client.publish_with_reply(subject, reply, payload).await;
        sent.map_err(QueueBenchError::from_display("publish"))
    }

    /// Numbers of acknowledged publications. Cancel safe.
    pub(super) async fn next_acknowledged(&mut self) -> Result<Vec<u64>, QueueBenchError> {
        let answers = self.answers.next().await.ok_or(QueueBenchError::Closed)?;
        answers.iter().map(|answer| self.number(answer)).collect()
    }

    fn number(&self, answer: &Message) -> Result<u64, QueueBenchError> {
        let parsed = serde_json::from_slice(&answer.payload)
            .map_err(QueueBenchError::from_display("publish"))?;
        if let Acknowledgement { error: Some(error) } = parsed {
            return Err(QueueBenchError::Refused(error.to_string()));
        }
        let number = answer.subject.strip_prefix(&*self.inbox).and_then(|n| n.strip_prefix('.'));
        number
            .and_then(|number| u64::from_str_radix(number, 16).ok())
            .ok_or_else(|| QueueBenchError::Refused(format!("an answer to {}", answer.subject)))
    }
}

/// Takes messages from a consumer, with requests for one to two windows open at any time.
#[derive(Debug)]
pub(super) struct FloorPuller {
    client: Client,
    next: String,
    inbox: String,
    arriving: ReadyChunks<Subscriber>,
    window: usize,
    open: usize,
}

impl FloorPuller {
    pub(super) async fn new(
        client: &Client,
        stream: &str,
        consumer: &str,
        window: usize,
    ) -> Result<Self, QueueBenchError> {
        let inbox = client.new_inbox();
        let subscriber = client.subscribe(inbox.clone()).await;
        let arriving = subscriber
            .map_err(QueueBenchError::from_display("subscribe"))?
            .ready_chunks(MAX_MESSAGES_PER_BATCH);
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        Ok(Self { client: client.clone(), next, inbox, arriving, window, open: 0 })
    }

    /// Opens requests until there are enough.
    pub(super) async fn request(&mut self) -> Result<(), QueueBenchError> {
        let expires = u64::try_from(REQUEST_EXPIRY.as_nanos()).unwrap_or(u64::MAX);
        while self.open <= self.window {
            let ask = json!({ "batch": self.window, "expires": expires }).to_string();
            let (next, inbox) = (self.next.clone(), self.inbox.clone());
            let sent = self.client.publish_with_reply(next, inbox, ask.into()).await;
            sent.map_err(QueueBenchError::from_display("request messages"))?;
            self.open += self.window;
        }
        Ok(())
    }

    /// Messages that arrived. Cancel safe.
    pub(super) async fn next_messages(&mut self) -> Result<Vec<Message>, QueueBenchError> {
        let messages = self.arriving.next().await.ok_or(QueueBenchError::Closed)?;
        if let Some(status) = messages.iter().find_map(|message| message.status) {
            return Err(QueueBenchError::Refused(format!(
                "a request for messages ended with {status}"
            )));
        }
        self.open -= messages.len();
        Ok(messages)
    }
}
