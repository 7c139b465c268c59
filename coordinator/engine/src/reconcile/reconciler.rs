//! Reconciliation of the queue's content with the pending items: several rounds at the beginning
//! and after every outage, then one every half lease, and more while a delivery seems lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::backoff::OutageLog;
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::position::{Incarnation, ReportCursor};
use rollout_queue::traits::{Dispatch, QueueError};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::stream_head::wait_until_caught_up;
use crate::event_loop::EngineMessage;

/// Rounds that follow soon after a beginning or an outage. The first comes too early to know which
/// workers are alive, and an offer must be missing in two. Where processes die all the time there
/// may be no half lease without a beginning or an outage.
const EXTRA_ROUNDS: u8 = 4;

/// Time between those rounds: every living worker sends a heartbeat in it.
const EXTRA_ROUND_INTERVAL: Duration = Duration::from_secs(2);

/// Time to the next round while an offer was delivered and no worker shows it: the delivery may have been
/// lost with a server that was stopped, and the queue repeats it only after a lease.
const UNSHOWN_ROUND_INTERVAL: Duration = Duration::from_secs(5);

/// The findings of a round.
#[derive(Debug)]
struct RoundFindings {
    /// Whether the server is the one of the previous round.
    is_same: bool,
    /// Items whose offer was delivered and that no worker shows.
    unshown: HashSet<ItemId>,
}

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
        let mut unshown = UnshownOffers::default();
        while !self.messages.is_closed() {
            match self.round(&mut known).await {
                Ok(found) => {
                    backoff.succeeded();
                    extra_rounds = if found.is_same { extra_rounds } else { EXTRA_ROUNDS };
                    unshown.update(found.unshown);
                }
                Err(error) => {
                    extra_rounds = EXTRA_ROUNDS;
                    backoff.wait_after_failure(&error).await;
                    continue;
                }
            }
            // A new connection starts a round at once.
            let connected = contact.wait_for(|now| now.up && now.connections != known.0);
            let wait = match extra_rounds {
                1.. => EXTRA_ROUND_INTERVAL.min(self.lease / 2),
                0 if unshown.is_checked_soon => UNSHOWN_ROUND_INTERVAL.min(self.lease / 2),
                0 => self.lease / 2,
            };
            extra_rounds = extra_rounds.saturating_sub(1);
            let _its_time = timeout(wait, connected).await;
        }
    }

    /// One round. It counts only if the connection lasted.
    async fn round(
        &mut self,
        known: &mut (u64, Option<Incarnation>),
    ) -> Result<RoundFindings, QueueError> {
        let connections = self.dispatch.connection_status().borrow().connections;
        let incarnation = self.dispatch.incarnation().await?;
        let is_same = known.0 == connections && known.1.is_none_or(|before| before == incarnation);
        *known = (connections, Some(incarnation));
        if !is_same {
            self.send(EngineMessage::Reconnected).await;
        }
        wait_until_caught_up(self.run, &*self.dispatch, &mut self.handled).await?;
        let listed = self.dispatch.list(self.run).await?;
        let heartbeats = self.dispatch.heartbeats().await?;
        let unshown = unshown_items(self.run, &listed, &heartbeats);
        self.send(EngineMessage::Heartbeats(heartbeats, self.dispatch.heartbeat_retention())).await;
        wait_until_caught_up(self.run, &*self.dispatch, &mut self.handled).await?;
        let lasted = self.dispatch.connection_status().borrow().connections == connections
            && self.dispatch.incarnation().await? == incarnation;
        if lasted {
            self.send(EngineMessage::Observed(listed)).await;
        }
        Ok(RoundFindings { is_same, unshown })
    }

    async fn send(&self, message: EngineMessage) {
        // Without a receiver, the loop ends at its next turn.
        drop(self.messages.send(message).await);
    }
}

/// The items of a run whose offer was delivered and that no worker's last heartbeat shows.
fn unshown_items(
    run: RunId,
    listed: &[QueuedOffer],
    heartbeats: &[ReceivedHeartbeat],
) -> HashSet<ItemId> {
    let delivered = listed.iter().filter(|offer| offer.delivered).map(|offer| offer.item);
    let mut unshown: HashSet<ItemId> = delivered.collect();
    for execution in heartbeats.iter().flat_map(|seen| &seen.heartbeat.executions) {
        if execution.run == run {
            unshown.remove(&execution.item);
        }
    }
    unshown
}

/// The items that rounds found unshown.
#[derive(Debug, Default)]
struct UnshownOffers {
    items: HashSet<ItemId>,
    /// Whether the next round comes soon.
    is_checked_soon: bool,
}

impl UnshownOffers {
    /// Takes in the items of a round. A worker shows most of them a moment later, so one more round
    /// follows soon, and others only while some of them stay.
    fn update(&mut self, items: HashSet<ItemId>) {
        let stays = items.iter().any(|item| self.items.contains(item));
        self.is_checked_soon = stays || (!self.is_checked_soon && !items.is_empty());
        self.items = items;
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::id::{ExecId, TryId};
    use rollout_protocol::phase::Phase;
    use rollout_protocol::wire::heartbeat::{ActiveExecution, Heartbeat};

    use super::*;

    fn item(n: u8) -> ItemId {
        ItemId::from_bytes([n; 16])
    }

    #[test]
    fn delivered_offer_that_no_worker_shows_is_unshown() {
        let [run, other] = [1, 2].map(|n| RunId::from_bytes([n; 16]));
        let offer =
            |n, delivered| QueuedOffer { item: item(n), try_id: TryId::first(1), delivered };
        let shows = |run, n| ActiveExecution {
            run,
            item: item(n),
            try_id: TryId::first(1),
            exec: ExecId::from_bytes([n; 16]),
            phase: Phase::Queued,
            claiming: true,
            stage: None,
            parked: None,
        };
        let mut heartbeat =
            Heartbeat::departed("w-1".parse().expect("an id"), "h".to_owned(), "p".to_owned());
        heartbeat.executions = vec![shows(run, 1), shows(other, 2)];
        let heartbeats = [ReceivedHeartbeat { heartbeat, age: Duration::ZERO }];
        let listed = [offer(1, true), offer(2, true), offer(3, false)];
        assert_eq!(unshown_items(run, &listed, &heartbeats), HashSet::from([item(2)]));
    }

    #[test]
    fn rounds_come_soon_while_an_unshown_item_stays() {
        let mut unshown = UnshownOffers::default();
        let mut next = |items: &[u8]| {
            unshown.update(items.iter().map(|n| item(*n)).collect());
            unshown.is_checked_soon
        };
        assert!(!next(&[]));
        assert!(next(&[1]), "it may be lost");
        assert!(next(&[1, 2]), "it stays");
        assert!(next(&[2]));
        assert!(!next(&[3]), "each of them was on its way to a worker");
        assert!(next(&[4]));
        assert!(!next(&[]));
    }
}
