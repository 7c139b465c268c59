//! Keeps the lock on a board: renews it while the sitting goes on, and lets it go at the end.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::wire::position::ReportPosition;
use rollout_worker::supervise::{self, Task};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::Lost;
use super::board::{BoardLock, RenewError};
use super::directory::Held;
use crate::engine::Standing;
use crate::engine::manifest::RunState;

/// Time between two renewals.
const RENEW: Duration = Duration::from_secs(1);

/// Durable records after which a renewal does not wait: reports can be forgotten only after it, and
/// a run may hold a bounded number of them.
const RECORDS: u64 = 8192;

/// How long the end of a sitting waits for the board.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A lock that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) standing: watch::Sender<Option<Standing>>,
    pub(super) confirmed: watch::Receiver<Option<ReportPosition>>,
    release: mpsc::Sender<Release>,
    _task: Task<()>,
}

/// The order to let go.
struct Release {
    state: Option<RunState>,
    done: oneshot::Sender<()>,
}

struct Keeper {
    lock: BoardLock,
    held: Arc<Held>,
    standing: watch::Receiver<Option<Standing>>,
    confirmed: watch::Sender<Option<ReportPosition>>,
    release: mpsc::Receiver<Release>,
}

impl Kept {
    pub(super) fn start(lock: BoardLock, held: Arc<Held>) -> Self {
        let (standing, standings) = watch::channel(None);
        let (confirming, confirmed) = watch::channel(None);
        let (release, orders) = mpsc::channel(1);
        let keeper =
            Keeper { lock, held, standing: standings, confirmed: confirming, release: orders };
        let _task = supervise::spawn("run lock", keeper.keep());
        Self { standing, confirmed, release, _task }
    }

    /// Lets the run go. When the board cannot be reached, those who want it next wait a little.
    pub(super) async fn release(&self, state: Option<RunState>) {
        let (done, released) = oneshot::channel();
        if self.release.send(Release { state, done }).await.is_ok() {
            // Dropped when the lock is lost.
            drop(released.await);
        }
    }
}

impl Keeper {
    async fn keep(mut self) {
        let (mut due, mut renewed) = (Instant::now(), None);
        loop {
            // All are safe to cancel: nothing is taken by one that does not end.
            tokio::select! {
                biased;
                Some(order) = self.release.recv() => return self.let_go(order).await,
                () = tokio::time::sleep_until(due) => {}
                () = gathered(&mut self.standing, renewed) => {}
            }
            let standing = *self.standing.borrow_and_update();
            match self.lock.renew(standing.as_ref()).await {
                Ok(position) => {
                    renewed = standing;
                    self.confirm(position);
                }
                Err(RenewError::Lost(lost)) => return self.held.lose(lost),
                Err(RenewError::Unreachable(error)) => {
                    tracing::debug!("the run's lock could not be renewed: {error}");
                }
            }
            due = Instant::now() + RENEW;
        }
    }

    fn confirm(&self, position: Option<ReportPosition>) {
        self.confirmed.send_if_modified(|confirmed| {
            let further = position.is_some() && position != *confirmed;
            *confirmed = position.or(*confirmed);
            further
        });
    }

    async fn let_go(mut self, order: Release) {
        let until = Instant::now() + LAST_WORDS;
        loop {
            let standing = *self.standing.borrow_and_update();
            match self.lock.release(standing.as_ref(), order.state).await {
                Ok(position) => self.confirm(position),
                Err(RenewError::Lost(Lost { by })) => self.held.lose(Lost { by }),
                Err(RenewError::Unreachable(_)) if Instant::now() + RENEW < until => {
                    tokio::time::sleep(RENEW).await;
                    continue;
                }
                Err(RenewError::Unreachable(error)) => tracing::warn!(
                    "the run could not be let go, who goes on with it elsewhere waits: {error}"
                ),
            }
            // Whoever asked may have gone.
            let _nobody_waits = order.done.send(());
            return;
        }
    }
}

/// Comes back when much is durable that was not renewed.
async fn gathered(standing: &mut watch::Receiver<Option<Standing>>, renewed: Option<Standing>) {
    loop {
        if standing.changed().await.is_err() {
            return std::future::pending().await;
        }
        let records = standing.borrow().map_or(0, |standing| standing.head.records);
        if records >= renewed.map_or(0, |renewed| renewed.head.records) + RECORDS {
            return;
        }
    }
}
