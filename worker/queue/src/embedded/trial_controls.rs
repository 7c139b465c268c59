//! Requests for controls of trials, on their way to the worker and back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::wire::output::{TrialAnswer, TrialRequest};
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlRequest};
use tokio::sync::{mpsc, oneshot};

use crate::traits::{PendingTrialRequest, QueueError};

/// Requests that the worker has not taken yet: people send them one by one.
const CAPACITY: usize = 256;

/// Requests for controls, and those who wait for a receipt.
#[derive(Debug)]
pub(super) struct TrialControls {
    requests: mpsc::Sender<PendingTrialRequest>,
    pending: tokio::sync::Mutex<mpsc::Receiver<PendingTrialRequest>>,
    next_reply: AtomicU64,
    replies: Mutex<HashMap<String, oneshot::Sender<TrialControlReceipt>>>,
}

/// A place for a receipt. It is given up when it is dropped.
struct ReplySlot<'a> {
    controls: &'a TrialControls,
    reply_to: String,
}

impl Drop for ReplySlot<'_> {
    fn drop(&mut self) {
        self.controls.replies().remove(&self.reply_to);
    }
}

impl Default for TrialControls {
    fn default() -> Self {
        let (requests, pending) = mpsc::channel(CAPACITY);
        let (pending, next_reply) = (tokio::sync::Mutex::new(pending), AtomicU64::new(0));
        Self { requests, pending, next_reply, replies: Mutex::default() }
    }
}

impl TrialControls {
    /// Sends a request and waits this long for its receipt.
    pub(super) async fn ask(
        &self,
        request: TrialControlRequest,
        wait: Duration,
    ) -> Result<Option<TrialControlReceipt>, QueueError> {
        let reply_to = self.next_reply.fetch_add(1, Ordering::Relaxed).to_string();
        let (reply, receipt) = oneshot::channel();
        self.replies().insert(reply_to.clone(), reply);
        let slot = ReplySlot { controls: self, reply_to: reply_to.clone() };
        let request = TrialRequest::Control(request);
        self.requests.try_send(PendingTrialRequest { request, reply_to }).map_err(|_| {
            QueueError::Unreachable { reason: "too many controls of trials wait".to_owned() }
        })?;
        let receipt = tokio::time::timeout(wait, receipt).await;
        drop(slot);
        Ok(receipt.ok().and_then(Result::ok))
    }

    /// The next request. Cancel-safe.
    pub(super) async fn next(&self) -> PendingTrialRequest {
        match self.pending.lock().await.recv().await {
            Some(pending) => pending,
            None => std::future::pending().await,
        }
    }

    /// Hands a receipt to the sender of its request, if it still waits. Output is not requested
    /// here: it is read from files of the process.
    pub(super) fn answer(&self, reply_to: &str, answer: TrialAnswer) {
        let TrialAnswer::Control(receipt) = answer else { return };
        if let Some(reply) = self.replies().remove(reply_to) {
            let _no_longer_waiting = reply.send(receipt);
        }
    }

    fn replies(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<TrialControlReceipt>>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
