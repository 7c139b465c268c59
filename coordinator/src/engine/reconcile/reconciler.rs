//! Reconciliation of the queue's content with the pending items: several rounds at the beginning
//! and after every outage, then one every half lease.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::{Incarnation, ReportCursor};
use rollout_worker::backoff::OutageLog;
use rollout_worker::queue::traits::{Dispatch, QueueError};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::stream_head::wait_until_caught_up;
use crate::engine::event_loop::EngineMessage;

/// Rounds that follow soon after a beginning or an outage. The first comes too early to know which
/// workers are alive, and an offer must be missing in two. Where processes die all the time there
/// may be no half lease without a beginning or an outage.
const EXTRA_ROUNDS: u8 = 4;

/// Time between those rounds: every living worker sends a heartbeat in it.
const EXTRA_ROUND_INTERVAL: Duration = Duration::from_secs(2);

/// State of the reconciliation rounds.
#[derive(Debug)]
pub(super) struct Reconciler {
    pub(super) run: RunId,
    pub(super) dispatch: Arc<dyn Dispatch>,
    pub(super) handled: watch::Receiver<Option<ReportCursor>>,
    pub(super) lease: Duration,
    pub(super) messages: mpsc::Sender<EngineMessage>,
}

impl Reconciler {
    /// Runs rounds until the engine ends.
    pub(super) async fn run(mut self) {
        let mut contact = self.dispatch.connection_status();
        let mut known = (contact.borrow_and_update().connections, None);
        let outage = OutageLog::new("reconciling with the queue");
        let mut backoff = outage.backoff();
        let mut extra_rounds = EXTRA_ROUNDS;
        while !self.messages.is_closed() {
            match self.round(&mut known).await {
                Ok(same) => {
                    backoff.succeeded();
                    extra_rounds = if same { extra_rounds } else { EXTRA_ROUNDS };
                }
                Err(error) => {
                    extra_rounds = EXTRA_ROUNDS;
                    backoff.wait_after_failure(&error).await;
                    continue;
                }
            }
            // A new connection starts a round at once.
            let connected = contact.wait_for(|now| now.up && now.connections != known.0);
            let wait = if extra_rounds > 0 {
                EXTRA_ROUND_INTERVAL.min(self.lease / 2)
            } else {
                self.lease / 2
            };
            extra_rounds = extra_rounds.saturating_sub(1);
            let _its_time = timeout(wait, connected).await;
        }
    }

    /// One round. Returns whether the server is the one of the previous round. A round counts only
    /// if the connection lasted.
    async fn round(&mut self, known: &mut (u64, Option<Incarnation>)) -> Result<bool, QueueError> {
        let connections = self.dispatch.connection_status().borrow().connections;
        let incarnation = self.dispatch.incarnation().await?;
        let same = known.0 == connections && known.1.is_none_or(|before| before == incarnation);
        *known = (connections, Some(incarnation));
        if !same {
            self.send(EngineMessage::Reconnected).await;
        }
        wait_until_caught_up(self.run, &*self.dispatch, &mut self.handled).await?;
        let listed = self.dispatch.list(self.run).await?;
        let heartbeats = self.dispatch.heartbeats().await?;
        self.send(EngineMessage::Heartbeats(heartbeats, self.dispatch.heartbeat_retention())).await;
        wait_until_caught_up(self.run, &*self.dispatch, &mut self.handled).await?;
        let lasted = self.dispatch.connection_status().borrow().connections == connections
            && self.dispatch.incarnation().await? == incarnation;
        if lasted {
            self.send(EngineMessage::Observed(listed)).await;
        }
        Ok(same)
    }

    async fn send(&self, message: EngineMessage) {
        // Without a receiver, the loop ends at its next turn.
        drop(self.messages.send(message).await);
    }
}
