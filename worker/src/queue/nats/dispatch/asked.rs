//! What workers and users ask a coordinator: claims and commands.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::id::RunId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};

use crate::port::{PendingClaim, PendingCommand, QueueError};
use crate::queue::nats::flood::Flood;
use crate::queue::nats::link::Link;
use crate::supervise::{self, Task};

/// Answers that may wait to be followed.
const ANSWERS: usize = 1024;
/// Larger questions do not exist.
const QUESTION_BYTES: usize = 64 * 1024;

type Answer = Pin<Box<dyn Future<Output = (Subject, Bytes)> + Send>>;
type Line = Arc<tokio::sync::Mutex<Subscriber>>;

/// Lines of questions, by subject: each from its first look on.
#[derive(Debug)]
pub(super) struct Asked {
    link: Arc<Link>,
    lines: Mutex<HashMap<String, Line>>,
    answers: mpsc::Sender<Answer>,
    passed_over: Flood,
    unanswered: Flood,
    _task: Task<()>,
}

impl Asked {
    pub(super) fn start(link: Arc<Link>) -> Self {
        let (answers, incoming) = mpsc::channel(ANSWERS);
        let task = supervise::spawn("answers to workers", answer(link.clone(), incoming));
        let (passed_over, unanswered) = (Flood::default(), Flood::default());
        Self { link, lines: Mutex::default(), answers, passed_over, unanswered, _task: task }
    }

    pub(super) async fn next_claim(&self, run: RunId) -> Result<PendingClaim, QueueError> {
        let subject = self.link.names.claim(run);
        let (claim, reply) = self.next(&subject).await?;
        Ok(PendingClaim { claim, reply })
    }

    pub(super) async fn next_command(&self, run: RunId) -> Result<PendingCommand, QueueError> {
        let subject = self.link.names.command(run);
        let (command, reply) = self.next(&subject).await?;
        Ok(PendingCommand { command, reply })
    }

    /// The next question of a line that can be read and answered. May be dropped.
    async fn next<Q: DeserializeOwned, A: Serialize + Send + 'static>(
        &self,
        subject: &str,
    ) -> Result<(Q, oneshot::Sender<A>), QueueError> {
        let line = self.line(subject).await?;
        let mut line = line.lock().await;
        loop {
            let gone = || QueueError::Unreachable { reason: "the connection is closed".to_owned() };
            let message = line.next().await.ok_or_else(gone)?;
            let Some((question, reply_to)) = self.read(message) else { continue };
            let (reply, answer) = oneshot::channel::<A>();
            // Nothing is awaited after the question was taken, so that nobody loses it.
            let answer: Answer = Box::pin(async move {
                let payload = match answer.await {
                    Ok(answer) => serde_json::to_vec(&answer).expect("text keys only"),
                    // Nobody answers: the asker need not wait for it.
                    Err(_) => Vec::new(),
                };
                (reply_to, payload.into())
            });
            if self.answers.try_send(answer).is_ok() {
                return Ok((question, reply));
            }
            if let Some(more) = self.unanswered.due() {
                tracing::warn!(
                    "too many questions at once: one is left unanswered ({more} more since the \
                     last warning)"
                );
            }
        }
    }

    async fn line(&self, subject: &str) -> Result<Line, QueueError> {
        let known = |lines: &HashMap<String, Line>| lines.get(subject).cloned();
        if let Some(line) = known(&self.lines.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(line);
        }
        let subscriber = (self.link.client.subscribe(subject.to_owned()).await)
            .map_err(|error| QueueError::Unreachable { reason: error.to_string() })?;
        let line = Arc::new(tokio::sync::Mutex::new(subscriber));
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(lines.entry(subject.to_owned()).or_insert(line).clone())
    }

    fn read<Q: DeserializeOwned>(&self, message: Message) -> Option<(Q, Subject)> {
        let Message { subject, reply, payload, .. } = message;
        let why = if payload.len() > QUESTION_BYTES {
            format!("{} bytes are no question", payload.len())
        } else {
            match serde_json::from_slice(&payload) {
                Ok(question) => return Some((question, reply?)),
                Err(error) => format!("not understood: {error}"),
            }
        };
        if let Some(more) = self.passed_over.due() {
            tracing::warn!("{subject}: {why} ({more} more like it since the last warning)");
        }
        None
    }
}

/// Sends answers as they are given.
async fn answer(link: Arc<Link>, mut incoming: mpsc::Receiver<Answer>) {
    let mut given = FuturesUnordered::<Answer>::new();
    loop {
        tokio::select! {
            next = incoming.recv() => match next {
                Some(answer) => given.push(answer),
                None => return,
            },
            Some((subject, payload)) = given.next(), if !given.is_empty() => {
                if let Err(fault) = link.say(subject.into_string(), payload).await {
                    tracing::debug!("an answer is lost: {fault}");
                }
            }
        }
    }
}
