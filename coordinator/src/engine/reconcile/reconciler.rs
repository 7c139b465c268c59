//! Reconciliation: what the queue holds against what is owed, at the beginning and after every outage
//! several times, and every half lease.

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

/// Rounds that follow soon after a beginning or an outage. The first comes too early to know who is
/// alive, and what is nowhere has to be so in two. Where processes die all the time there may be no
/// half lease without a beginning or an outage.
const EXTRA_ROUNDS: u8 = 4;

/// The time between those: everybody who is alive has said a hello in it.
const EXTRA_ROUND_INTERVAL: Duration = Duration::from_secs(2);

/// What rounds of reconciliation need.
#[derive(Debug)]
pub(super) struct Reconciler {
    pub(super) run: RunId,
    pub(super) dispatch: Arc<dyn Dispatch>,
    pub(super) handled: watch::Receiver<Option<ReportCursor>>,
    pub(super) lease: Duration,
    pub(super) to: mpsc::Sender<EngineMessage>,
}

impl Reconciler {
    /// Goes round until nobody listens.
    pub(super) async fn run(mut self) {
        let mut contact = self.dispatch.connection_status();
        let mut known = (contact.borrow_and_update().connections, None);
        let outage = OutageLog::new("looking at the queue");
        let mut patience = outage.backoff();
        let mut soon_again = EXTRA_ROUNDS;
        while !self.to.is_closed() {
            match self.round(&mut known).await {
                Ok(same) => {
                    patience.succeeded();
                    soon_again = if same { soon_again } else { EXTRA_ROUNDS };
                }
                Err(error) => {
                    soon_again = EXTRA_ROUNDS;
                    patience.wait_after_failure(&error).await;
                    continue;
                }
            }
            // A new connection is looked at at once.
            let connected = contact.wait_for(|now| now.up && now.connections != known.0);
            let wait = if soon_again > 0 {
                EXTRA_ROUND_INTERVAL.min(self.lease / 2)
            } else {
                self.lease / 2
            };
            soon_again = soon_again.saturating_sub(1);
            let _its_time = timeout(wait, connected).await;
        }
    }

    /// One round: whether the server is the one of the round before. What the round saw counts only
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
        let hellos = self.dispatch.heartbeats().await?;
        self.send(EngineMessage::Hellos(hellos, self.dispatch.heartbeat_retention())).await;
        wait_until_caught_up(self.run, &*self.dispatch, &mut self.handled).await?;
        let lasted = self.dispatch.connection_status().borrow().connections == connections
            && self.dispatch.incarnation().await? == incarnation;
        if lasted {
            self.send(EngineMessage::Observed(listed)).await;
        }
        Ok(same)
    }

    async fn send(&self, news: EngineMessage) {
        // Without a listener the next look ends it.
        drop(self.to.send(news).await);
    }
}
