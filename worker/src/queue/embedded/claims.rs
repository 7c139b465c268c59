//! Claims that wait for an answer of their coordinator.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::id::RunId;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use tokio::sync::{Notify, oneshot};

use crate::queue::traits::{PendingClaim, QueueError};

/// How long a claim waits for an answer. The worker sends it again after that.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Claims that no coordinator took yet, by run.
#[derive(Debug, Default)]
pub(super) struct PendingClaims {
    waiting: Mutex<HashMap<RunId, VecDeque<PendingClaim>>>,
    added: Notify,
}

impl PendingClaims {
    pub(super) async fn ask(&self, claim: Claim) -> Result<ClaimAnswer, QueueError> {
        let run = claim.run;
        let (reply, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            let queue = waiting.entry(run).or_default();
            // Removes claims whose workers stopped waiting.
            queue.retain(|pending| !pending.reply.is_closed());
            queue.push_back(PendingClaim { claim, reply });
        }
        self.added.notify_waiters();
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(QueueError::NoAnswer { run }),
        }
    }

    pub(super) async fn next(&self, run: RunId) -> PendingClaim {
        loop {
            let mut added = std::pin::pin!(self.added.notified());
            added.as_mut().enable();
            if let Some(pending) = self.take(run) {
                return pending;
            }
            added.await;
        }
    }

    fn take(&self, run: RunId) -> Option<PendingClaim> {
        let mut waiting = self.waiting();
        let line = waiting.get_mut(&run)?;
        let pending = std::iter::from_fn(|| line.pop_front()).find(|p| !p.reply.is_closed());
        if line.is_empty() {
            waiting.remove(&run);
        }
        pending
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<RunId, VecDeque<PendingClaim>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
