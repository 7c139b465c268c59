//! Requests to the coordinator of a run that wait for an answer: claims and commands.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::id::RunId;
use tokio::sync::{Notify, oneshot};

use crate::traits::QueueError;

/// How long a request waits for an answer. A worker sends its claim again after that.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests that no coordinator took yet, by run.
#[derive(Debug)]
pub(super) struct PendingRequests<Q, A> {
    waiting: Mutex<HashMap<RunId, VecDeque<PendingRequest<Q, A>>>>,
    added: Notify,
}

/// A request and the sender of its answer.
type PendingRequest<Q, A> = (Q, oneshot::Sender<A>);

impl<Q, A> Default for PendingRequests<Q, A> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), added: Notify::new() }
    }
}

impl<Q, A> PendingRequests<Q, A> {
    pub(super) async fn ask(&self, run: RunId, request: Q) -> Result<A, QueueError> {
        let (reply, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            let queue = waiting.entry(run).or_default();
            // Removes requests whose senders stopped waiting.
            queue.retain(|(_, reply)| !reply.is_closed());
            queue.push_back((request, reply));
        }
        self.added.notify_waiters();
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(QueueError::NoAnswer { run }),
            Err(_) => Err(QueueError::NoAnswerInTime { run }),
        }
    }

    pub(super) async fn next(&self, run: RunId) -> PendingRequest<Q, A> {
        loop {
            let mut added = std::pin::pin!(self.added.notified());
            added.as_mut().enable();
            if let Some(pending) = self.take(run) {
                return pending;
            }
            added.await;
        }
    }

    fn take(&self, run: RunId) -> Option<PendingRequest<Q, A>> {
        let mut waiting = self.waiting();
        let line = waiting.get_mut(&run)?;
        let pending = std::iter::from_fn(|| line.pop_front()).find(|(_, reply)| !reply.is_closed());
        if line.is_empty() {
            waiting.remove(&run);
        }
        pending
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<RunId, VecDeque<PendingRequest<Q, A>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
