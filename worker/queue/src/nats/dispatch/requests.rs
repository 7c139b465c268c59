//! Requests to a coordinator: claims of workers and commands of users.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{FuturesUnordered, SelectAll};
use rollout_base::supervise::{self, Task};
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::claim::Claim;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};

use super::pools::ExpectedPools;
use crate::nats::client::NatsClient;
use crate::traits::{PendingClaim, PendingCommand, QueueError};

/// Capacity of the queue of answers that wait to be sent.
const REPLY_CAPACITY: usize = 1024;
/// Larger requests do not exist.
const MAX_REQUEST_BYTES: usize = limits::COORDINATOR_REQUEST_BYTES as usize;

/// The prefix of every inbox, whatever prefix a client adds to its own.
const INBOX_PREFIX: &str = "_INBOX.";

type ReplyFuture = Pin<Box<dyn Future<Output = (Subject, Bytes)> + Send>>;
type RequestQueue = Arc<tokio::sync::Mutex<SelectAll<Subscriber>>>;

/// Queues of requests, by the first of their subjects. Each is subscribed at its first use.
#[derive(Debug)]
pub(super) struct IncomingRequests {
    client: Arc<NatsClient>,
    pools: Arc<ExpectedPools>,
    queues: Mutex<HashMap<String, RequestQueue>>,
    answers: mpsc::Sender<ReplyFuture>,
    malformed: WarningLimiter,
    dropped: WarningLimiter,
    wrong_pool: WarningLimiter,
    _task: Task<()>,
}

impl IncomingRequests {
    pub(super) fn start(client: Arc<NatsClient>, pools: Arc<ExpectedPools>) -> Self {
        let (answers, incoming) = mpsc::channel(REPLY_CAPACITY);
        let task = supervise::spawn("answers to workers", send_replies(client.clone(), incoming));
        Self {
            client,
            pools,
            queues: Mutex::default(),
            answers,
            malformed: WarningLimiter::default(),
            dropped: WarningLimiter::default(),
            wrong_pool: WarningLimiter::default(),
            _task: task,
        }
    }

    pub(super) async fn next_claim(&self, run: RunId) -> Result<PendingClaim, QueueError> {
        let names = &self.client.names;
        let is_of_pool = |subject: &str, claim: &Claim| {
            let pool = names.parse_claim(subject, run);
            let counts =
                pool.is_some_and(|pool| self.pools.for_run(run).accepts(pool, claim.try_id));
            if !counts && let Some(more) = self.wrong_pool.record() {
                tracing::warn!(
                    "ignored a claim from `{subject}`, to whose pool its try was not offered \
                     ({more} more like it since the last warning)"
                );
            }
            counts
        };
        let (claim, reply) = self.next_request(&names.claims(run), is_of_pool).await?;
        Ok(PendingClaim { claim, reply })
    }

    pub(super) async fn next_command(&self, run: RunId) -> Result<PendingCommand, QueueError> {
        let subject = self.client.names.command(run);
        let (command, reply) = self.next_request(&[subject], |_, _| true).await?;
        Ok(PendingCommand { command, reply })
    }

    /// The next request of a queue that can be parsed, is accepted and can be answered.
    /// Cancel-safe.
    async fn next_request<Q: DeserializeOwned, A: Serialize + Send + 'static>(
        &self,
        subjects: &[String],
        accepts: impl Fn(&str, &Q) -> bool,
    ) -> Result<(Q, oneshot::Sender<A>), QueueError> {
        let queue = self.request_queue(subjects).await?;
        let mut line = queue.lock().await;
        loop {
            let closed =
                || QueueError::Unreachable { reason: "the connection is closed".to_owned() };
            let message = line.next().await.ok_or_else(closed)?;
            let subject = message.subject.clone();
            let Some((request, reply_to)) = self.parse_request(message) else { continue };
            if !accepts(&subject, &request) {
                continue;
            }
            let (reply, answer) = oneshot::channel::<A>();
            // Nothing is awaited after the request was taken, so that a dropped call does not lose
            // it.
            let answer: ReplyFuture = Box::pin(async move {
                let payload = match answer.await {
                    Ok(answer) => serde_json::to_vec(&answer).expect("text keys only"),
                    // There will be no answer: the sender need not wait for it.
                    Err(_) => Vec::new(),
                };
                (reply_to, payload.into())
            });
            if self.answers.try_send(answer).is_ok() {
                return Ok((request, reply));
            }
            if let Some(more) = self.dropped.record() {
                tracing::warn!(
                    "too many requests at once: ignored one ({more} more since the last warning)"
                );
            }
        }
    }

    async fn request_queue(&self, subjects: &[String]) -> Result<RequestQueue, QueueError> {
        let first = subjects.first().map_or("", String::as_str);
        let known = |lines: &HashMap<String, RequestQueue>| lines.get(first).cloned();
        if let Some(queue) = known(&self.queues.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(queue);
        }
        let mut line = SelectAll::new();
        for subject in subjects {
            let subscriber = (self.client.inner.subscribe(subject.clone()).await)
                .map_err(|error| QueueError::Unreachable { reason: error.to_string() })?;
            line.push(subscriber);
        }
        let line = Arc::new(tokio::sync::Mutex::new(line));
        let mut lines = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(lines.entry(first.to_owned()).or_insert(line).clone())
    }

    fn parse_request<Q: DeserializeOwned>(&self, message: Message) -> Option<(Q, Subject)> {
        let Message { subject, reply, payload, .. } = message;
        let why = if payload.len() > MAX_REQUEST_BYTES {
            format!("request of {} bytes is too large", payload.len())
        } else {
            match (serde_json::from_slice(&payload), reply) {
                (Ok(question), Some(reply)) if is_inbox(&reply) => return Some((question, reply)),
                (Ok(_), Some(reply)) => format!("reply subject `{reply}` is not an inbox"),
                (Ok(_), None) => "request has no reply subject".to_owned(),
                (Err(error), _) => format!("cannot parse the request: {error}"),
            }
        };
        if let Some(more) = self.malformed.record() {
            tracing::warn!("{subject}: {why} ({more} more like it since the last warning)");
        }
        None
    }
}

/// Whether a subject is an inbox, at which clients receive answers. An answer is published with the
/// coordinator's permissions, so the sender of a request must not choose any other subject for it:
/// one of the server's own could purge a stream, or write the state of a run.
pub(in crate::nats) fn is_inbox(subject: &str) -> bool {
    // Between clusters, the server adds the return route as a prefix: `_GR_.<cluster>.<server>.`.
    let local = match subject.strip_prefix("_GR_.") {
        Some(routed) => routed.splitn(3, '.').nth(2).unwrap_or_default(),
        None => subject,
    };
    local.starts_with(INBOX_PREFIX)
}

/// Sends answers as they become available.
async fn send_replies(client: Arc<NatsClient>, mut incoming: mpsc::Receiver<ReplyFuture>) {
    let mut pending = FuturesUnordered::<ReplyFuture>::new();
    loop {
        tokio::select! {
            next = incoming.recv() => match next {
                Some(answer) => pending.push(answer),
                None => return,
            },
            Some((subject, payload)) = pending.next(), if !pending.is_empty() => {
                if let Err(fault) = client.send(subject.into_string(), payload).await {
                    tracing::debug!("cannot send an answer: {fault}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_inbox;

    #[test]
    fn reply_subject_that_is_no_inbox_is_refused() {
        for inbox in ["_INBOX.a", "_INBOX.user.b.c", "_GR_.x.y._INBOX.a.b"] {
            assert!(is_inbox(inbox), "{inbox}");
        }
        for other in ["$JS.API.STREAM.PURGE.X", "$KV.B.k", "_GR_.x.y.$KV.B.k", "_GR_._INBOX.a", ""]
        {
            assert!(!is_inbox(other), "{other}");
        }
    }
}
