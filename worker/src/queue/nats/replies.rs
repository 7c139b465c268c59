//! Requests with their answers, over one subscription. A batch of requests costs one wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::Notify;

use super::fault::Fault;

/// Requests that wait for their answers at once. More only makes each wait longer.
const WINDOW: usize = 512;

/// An answer, or why there is none.
pub(super) type Answered = Result<Message, Fault>;

/// What is asked.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) subject: Subject,
    pub(super) payload: Bytes,
    pub(super) headers: Option<HeaderMap>,
}

impl Request {
    pub(super) fn new(subject: impl Into<Subject>, payload: impl Into<Bytes>) -> Self {
        Self { subject: subject.into(), payload: payload.into(), headers: None }
    }
}

/// Who waits for what.
#[derive(Debug)]
pub(super) struct Replies {
    prefix: String,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    /// What was asked, for refusals that name the subject.
    subject: Subject,
    batch: Arc<Batch>,
    index: usize,
}

#[derive(Debug)]
struct Batch {
    answers: Mutex<Answers>,
    complete: Notify,
}

#[derive(Debug)]
struct Answers {
    of: Vec<Option<Answered>>,
    missing: usize,
}

impl Batch {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, index: usize, answer: Answered) {
        let mut answers = self.answers();
        let place = &mut answers.of[index];
        if place.is_none() {
            *place = Some(answer);
            answers.missing -= 1;
            if answers.missing == 0 {
                self.complete.notify_one();
            }
        }
    }
}

/// Whoever stops waiting leaves nothing behind.
struct Asked<'a> {
    replies: &'a Replies,
    ids: std::ops::Range<u64>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut waiting = self.replies.waiting();
        for id in self.ids.clone() {
            waiting.remove(&id);
        }
    }
}

impl Replies {
    /// Asks for answers at a subject of their own.
    pub(super) async fn subscribe(client: &Client) -> Result<(Arc<Self>, Subscriber), Fault> {
        let prefix = format!("{}.", client.new_inbox());
        let subscriber = client
            .subscribe(format!("{prefix}*"))
            .await
            .map_err(|error| Fault::Unreachable(error.to_string()))?;
        let replies = Self { prefix, next: AtomicU64::new(0), waiting: Mutex::default() };
        Ok((Arc::new(replies), subscriber))
    }

    /// Hands out answers for as long as the client lives.
    pub(super) async fn deliver(self: Arc<Self>, subscriber: Subscriber) {
        let mut arriving = subscriber.ready_chunks(256);
        while let Some(messages) = arriving.next().await {
            for message in messages {
                let Some(waiting) = self.take(&message.subject) else { continue };
                let answer = if message.status == Some(StatusCode::NO_RESPONDERS) {
                    Err(Fault::NoResponders(waiting.subject.to_string()))
                } else {
                    Ok(message)
                };
                waiting.batch.put(waiting.index, answer);
            }
        }
    }

    /// Asks all of it; what was not answered in time is unreachable.
    pub(super) async fn ask(
        &self,
        client: &Client,
        requests: Vec<Request>,
        patience: Duration,
    ) -> Vec<Answered> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let window: Vec<Request> = requests.by_ref().take(WINDOW).collect();
            answers.extend(self.ask_window(client, window, patience).await);
        }
        answers
    }

    async fn ask_window(
        &self,
        client: &Client,
        requests: Vec<Request>,
        patience: Duration,
    ) -> Vec<Answered> {
        let count = requests.len();
        let of = std::iter::repeat_with(|| None).take(count).collect();
        let answers = Mutex::new(Answers { of, missing: count });
        let batch = Arc::new(Batch { answers, complete: Notify::new() });
        let first = self.next.fetch_add(count as u64, Ordering::Relaxed);
        let asked = Asked { replies: self, ids: first..first + count as u64 };
        {
            let mut waiting = self.waiting();
            for (index, request) in requests.iter().enumerate() {
                let subject = request.subject.clone();
                let batch = batch.clone();
                waiting.insert(first + index as u64, Waiting { subject, batch, index });
            }
        }
        let all = async {
            for (index, request) in requests.into_iter().enumerate() {
                let reply = format!("{}{:x}", self.prefix, first + index as u64);
                if let Err(error) = publish(client, request, reply).await {
                    batch.put(index, Err(error));
                }
            }
            batch.complete.notified().await;
        };
        let late = tokio::time::timeout(patience, all).await.is_err();
        drop(asked);
        let of = std::mem::take(&mut batch.answers().of);
        let missing = if late { "no answer in time" } else { "no answer" };
        of.into_iter()
            .map(|a| a.unwrap_or_else(|| Err(Fault::Unreachable(missing.into()))))
            .collect()
    }

    /// The connection is gone, and with it all answers.
    pub(super) fn lost(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        for waiting in waiting.into_values() {
            let fault = Fault::Unreachable("the connection was lost".to_owned());
            waiting.batch.put(waiting.index, Err(fault));
        }
    }

    /// The server refuses what goes to this subject.
    pub(super) fn refused(&self, subject: &str, text: &str) {
        let mut found = Vec::new();
        self.waiting().retain(|_, waiting| {
            let refused = waiting.subject.as_str() == subject;
            if refused {
                found.push((waiting.batch.clone(), waiting.index));
            }
            !refused
        });
        for (batch, index) in found {
            batch.put(index, Err(Fault::Denied(text.to_owned())));
        }
    }

    fn take(&self, subject: &str) -> Option<Waiting> {
        let id = u64::from_str_radix(subject.strip_prefix(&self.prefix)?, 16).ok()?;
        self.waiting().remove(&id)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn publish(client: &Client, request: Request, reply: String) -> Result<(), Fault> {
    let Request { subject, payload, headers } = request;
    let sent = match headers {
        None => client.publish_with_reply(subject, reply, payload).await,
        Some(headers) => {
            client.publish_with_reply_and_headers(subject, reply, headers, payload).await
        }
    };
    sent.map_err(|error| match error.kind() {
        async_nats::PublishErrorKind::MaxPayloadExceeded
        | async_nats::PublishErrorKind::InvalidSubject => Fault::Denied(error.to_string()),
        async_nats::PublishErrorKind::Send => Fault::Unreachable(error.to_string()),
    })
}
