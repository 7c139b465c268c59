//! Requests and their replies, over one subscription. A batch of requests costs one wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::Notify;

use super::error::NatsError;

/// Limit on requests that wait for replies at once. More only makes each wait longer.
const MAX_WAITING_REQUESTS: usize = 512;

/// A reply, or why there is none.
pub(super) type ReplyResult = Result<Message, NatsError>;

/// A request.
#[derive(Debug)]
pub(super) struct NatsRequest {
    pub(super) subject: Subject,
    pub(super) payload: Bytes,
    pub(super) headers: Option<HeaderMap>,
}

impl NatsRequest {
    pub(super) fn new(subject: impl Into<Subject>, payload: impl Into<Bytes>) -> Self {
        Self { subject: subject.into(), payload: payload.into(), headers: None }
    }
}

/// The requests that wait for replies.
#[derive(Debug)]
pub(super) struct ReplyRouter {
    prefix: String,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, UnansweredRequest>>,
}

#[derive(Debug)]
struct UnansweredRequest {
    /// The subject of the request, for refusals that name it.
    subject: Subject,
    batch: Arc<ReplyBatch>,
    index: usize,
}

#[derive(Debug)]
struct ReplyBatch {
    answers: Mutex<BatchReplies>,
    complete: Notify,
}

#[derive(Debug)]
struct BatchReplies {
    replies: Vec<Option<ReplyResult>>,
    missing: usize,
}

impl ReplyBatch {
    fn answers(&self) -> MutexGuard<'_, BatchReplies> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_reply(&self, index: usize, answer: ReplyResult) {
        let mut answers = self.answers();
        let place = &mut answers.replies[index];
        if place.is_none() {
            *place = Some(answer);
            answers.missing -= 1;
            if answers.missing == 0 {
                self.complete.notify_one();
            }
        }
    }
}

/// Removes the waiting requests of a caller that stops waiting.
struct WaitingRequestsGuard<'a> {
    replies: &'a ReplyRouter,
    ids: std::ops::Range<u64>,
}

impl Drop for WaitingRequestsGuard<'_> {
    fn drop(&mut self) {
        let mut waiting = self.replies.waiting();
        for id in self.ids.clone() {
            waiting.remove(&id);
        }
    }
}

impl ReplyRouter {
    /// Subscribes to replies on an own inbox.
    pub(super) async fn subscribe(client: &Client) -> Result<(Arc<Self>, Subscriber), NatsError> {
        let prefix = format!("{}.", client.new_inbox());
        let subscriber = client
            .subscribe(format!("{prefix}*"))
            .await
            .map_err(|error| NatsError::Unreachable(error.to_string()))?;
        let replies = Self { prefix, next: AtomicU64::new(0), waiting: Mutex::default() };
        Ok((Arc::new(replies), subscriber))
    }

    /// Delivers replies for as long as the client lives.
    pub(super) async fn deliver_replies(self: Arc<Self>, subscriber: Subscriber) {
        let mut arriving = subscriber.ready_chunks(256);
        while let Some(messages) = arriving.next().await {
            for message in messages {
                let Some(waiting) = self.take_waiting(&message.subject) else { continue };
                let answer = if message.status == Some(StatusCode::NO_RESPONDERS) {
                    Err(NatsError::NoResponders(waiting.subject.to_string()))
                } else {
                    Ok(message)
                };
                waiting.batch.set_reply(waiting.index, answer);
            }
        }
    }

    /// Sends all requests; those without a reply in time are unreachable.
    pub(super) async fn request_all(
        &self,
        client: &Client,
        requests: Vec<NatsRequest>,
        max_wait: Duration,
    ) -> Vec<ReplyResult> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let window: Vec<NatsRequest> = requests.by_ref().take(MAX_WAITING_REQUESTS).collect();
            answers.extend(self.request_window(client, window, max_wait).await);
        }
        answers
    }

    async fn request_window(
        &self,
        client: &Client,
        requests: Vec<NatsRequest>,
        max_wait: Duration,
    ) -> Vec<ReplyResult> {
        let count = requests.len();
        let replies = std::iter::repeat_with(|| None).take(count).collect();
        let answers = Mutex::new(BatchReplies { replies, missing: count });
        let batch = Arc::new(ReplyBatch { answers, complete: Notify::new() });
        let first = self.next.fetch_add(count as u64, Ordering::Relaxed);
        let asked = WaitingRequestsGuard { replies: self, ids: first..first + count as u64 };
        {
            let mut waiting = self.waiting();
            for (index, request) in requests.iter().enumerate() {
                let subject = request.subject.clone();
                let batch = batch.clone();
                waiting.insert(first + index as u64, UnansweredRequest { subject, batch, index });
            }
        }
        let all = async {
            for (index, request) in requests.into_iter().enumerate() {
                let reply = format!("{}{:x}", self.prefix, first + index as u64);
                if let Err(error) = publish_request(client, request, reply).await {
                    batch.set_reply(index, Err(error));
                }
            }
            batch.complete.notified().await;
        };
        let late = tokio::time::timeout(max_wait, all).await.is_err();
        drop(asked);
        let of = std::mem::take(&mut batch.answers().replies);
        let missing = if late { "no response in time" } else { "no response" };
        of.into_iter()
            .map(|a| a.unwrap_or_else(|| Err(NatsError::Unreachable(missing.into()))))
            .collect()
    }

    /// Fails all requests after the connection was lost.
    pub(super) fn fail_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        for waiting in waiting.into_values() {
            let fault = NatsError::Unreachable("the connection was lost".to_owned());
            waiting.batch.set_reply(waiting.index, Err(fault));
        }
    }

    /// Fails the requests to a subject that the server refuses.
    pub(super) fn fail_subject(&self, subject: &str, text: &str) {
        let mut found = Vec::new();
        self.waiting().retain(|_, waiting| {
            let refused = waiting.subject.as_str() == subject;
            if refused {
                found.push((waiting.batch.clone(), waiting.index));
            }
            !refused
        });
        for (batch, index) in found {
            batch.set_reply(index, Err(NatsError::Denied(text.to_owned())));
        }
    }

    fn take_waiting(&self, subject: &str) -> Option<UnansweredRequest> {
        let id = u64::from_str_radix(subject.strip_prefix(&self.prefix)?, 16).ok()?;
        self.waiting().remove(&id)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, UnansweredRequest>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn publish_request(
    client: &Client,
    request: NatsRequest,
    reply: String,
) -> Result<(), NatsError> {
    let NatsRequest { subject, payload, headers } = request;
    let sent = match headers {
        None => client.publish_with_reply(subject, reply, payload).await,
        Some(headers) => {
            client.publish_with_reply_and_headers(subject, reply, headers, payload).await
        }
    };
    sent.map_err(|error| match error.kind() {
        async_nats::PublishErrorKind::MaxPayloadExceeded
        | async_nats::PublishErrorKind::InvalidSubject => NatsError::Denied(error.to_string()),
        async_nats::PublishErrorKind::Send => NatsError::Unreachable(error.to_string()),
    })
}
