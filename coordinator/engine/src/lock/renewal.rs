//! Renewal of the run's lock in the KV store during the session, and its release at the end.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::common_times::next_time;
use rollout_base::supervise::{self, Task};
use rollout_protocol::wire::position::ReportPosition;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::directory::DirectoryOwnership;
use super::kv_lock::{KvLock, RenewError};
use crate::DurableState;
use crate::manifest::RunState;

/// Time between two renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// Durable records after which a renewal does not wait: reports can be purged only after it, and a
/// run may hold a bounded number of them.
const RENEW_AFTER_RECORDS: u64 = 8192;

/// How long the end of a session waits for the KV store.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A lock that is renewed.
#[derive(Debug)]
pub(super) struct LockRenewal {
    pub(super) state: watch::Sender<Option<DurableState>>,
    pub(super) confirmed: watch::Receiver<Option<ReportPosition>>,
    release: mpsc::Sender<ReleaseRequest>,
    _task: Task<()>,
}

/// A request to release the lock.
struct ReleaseRequest {
    state: Option<RunState>,
    /// Whether the KV store has the entry.
    done: oneshot::Sender<bool>,
}

struct LockRenewer {
    lock: KvLock,
    ownership: Arc<DirectoryOwnership>,
    state: watch::Receiver<Option<DurableState>>,
    confirmed: watch::Sender<Option<ReportPosition>>,
    release: mpsc::Receiver<ReleaseRequest>,
}

impl LockRenewal {
    pub(super) fn start(lock: KvLock, ownership: Arc<DirectoryOwnership>) -> Self {
        let (state, standings) = watch::channel(None);
        let (confirming, confirmed) = watch::channel(None);
        let (release, orders) = mpsc::channel(1);
        let renewer = LockRenewer {
            lock,
            ownership,
            state: standings,
            confirmed: confirming,
            release: orders,
        };
        let _task = supervise::spawn("run lock", renewer.run());
        Self { state, confirmed, release, _task }
    }

    /// Releases the run, and returns whether the KV store has it. When the KV store is unreachable,
    /// the next owner waits a little.
    pub(super) async fn release(&self, state: Option<RunState>) -> bool {
        let (done, released) = oneshot::channel();
        let is_sent = self.release.send(ReleaseRequest { state, done }).await.is_ok();
        // Dropped when the lock is lost.
        is_sent && matches!(released.await, Ok(true))
    }
}

impl LockRenewer {
    async fn run(mut self) {
        let (mut due, mut renewed) = (Instant::now(), None);
        loop {
            // All branches are cancel-safe: a branch that does not complete takes nothing.
            tokio::select! {
                biased;
                Some(order) = self.release.recv() => return self.release(order).await,
                () = tokio::time::sleep_until(due) => {}
                () = wait_for_backlog(&mut self.state, renewed) => {}
            }
            let standing = *self.state.borrow_and_update();
            match self.lock.renew(standing.as_ref()).await {
                Ok(position) => {
                    renewed = standing;
                    self.confirm(position);
                }
                Err(RenewError::Lost(lost)) => return self.ownership.mark_lost(lost),
                Err(RenewError::Unreachable(error)) => {
                    tracing::debug!("cannot renew the run's lock: {error}");
                }
            }
            due = next_time(RENEW_INTERVAL);
        }
    }

    fn confirm(&self, position: Option<ReportPosition>) {
        self.confirmed.send_if_modified(|confirmed| {
            let further = position.is_some() && position != *confirmed;
            *confirmed = position.or(*confirmed);
            further
        });
    }

    async fn release(mut self, order: ReleaseRequest) {
        let until = Instant::now() + RELEASE_TIMEOUT;
        let is_released = loop {
            let standing = *self.state.borrow_and_update();
            match self.lock.release(standing.as_ref(), order.state).await {
                Ok(position) => {
                    self.confirm(position);
                    break true;
                }
                Err(RenewError::Lost(lost)) => self.ownership.mark_lost(lost),
                Err(RenewError::Unreachable(_)) if Instant::now() + RENEW_INTERVAL < until => {
                    tokio::time::sleep(RENEW_INTERVAL).await;
                    continue;
                }
                Err(RenewError::Unreachable(error)) => tracing::warn!(
                    "cannot release the run's lock, so the next owner has to wait: {error}"
                ),
            }
            break false;
        };
        // The caller may be gone.
        let _no_receiver = order.done.send(is_released);
    }
}

/// Completes when many durable records are not covered by a renewal.
async fn wait_for_backlog(
    state: &mut watch::Receiver<Option<DurableState>>,
    renewed: Option<DurableState>,
) {
    loop {
        if state.changed().await.is_err() {
            return std::future::pending().await;
        }
        let records = state.borrow().map_or(0, |standing| standing.prefix.records);
        if records >= renewed.map_or(0, |renewed| renewed.prefix.records) + RENEW_AFTER_RECORDS {
            return;
        }
    }
}
