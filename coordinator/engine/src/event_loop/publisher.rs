//! Publication of offers, withdrawals and commands to the queue.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_base::supervise::{self, Task};
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::PublishError;
use rollout_protocol::wire::offer::Offer;
use rollout_queue::traits::{Dispatch, QueueError};
use tokio::sync::mpsc;
use tokio::time::{Duration, sleep};

/// Maximum number of batches of offers in flight.
const MAX_BATCHES_IN_FLIGHT: usize = 4;

/// Delay before a queue that is unreachable or full is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// Messages sent together: withdrawals first, then offers, then commands.
#[derive(Debug, Default)]
pub(super) struct PublishBatch {
    pub(super) withdrawn: Vec<(ItemId, TryId)>,
    pub(super) offers: Vec<Offer>,
    pub(super) controls: Vec<ControlMessage>,
    /// Items whose results to look up in the store.
    pub(super) lookups: Vec<ItemId>,
}

impl PublishBatch {
    /// Deletes a try from the queue; one that is not sent yet is not sent at all.
    pub(super) fn withdraw(&mut self, item: ItemId, try_id: TryId) {
        self.offers.retain(|offer| (offer.item, offer.try_id) != (item, try_id));
        self.withdrawn.push((item, try_id));
    }

    fn is_empty(&self) -> bool {
        self.withdrawn.is_empty()
            && self.offers.is_empty()
            && self.controls.is_empty()
            && self.lookups.is_empty()
    }
}

/// Publisher of the engine's messages to the queue.
#[derive(Debug)]
pub struct QueuePublisher(PublishMode);

#[derive(Debug)]
enum PublishMode {
    Direct(Arc<dyn Dispatch>),
    Buffered {
        sender: mpsc::UnboundedSender<PublishBatch>,
        lookups: mpsc::UnboundedSender<ItemId>,
        published: mpsc::UnboundedReceiver<Vec<(ItemId, TryId)>>,
        task: Task<()>,
    },
}

impl QueuePublisher {
    /// A publisher for a queue inside the process, which answers at once and never fails.
    pub fn direct(dispatch: Arc<dyn Dispatch>) -> Self {
        Self(PublishMode::Direct(dispatch))
    }

    /// A publisher for a remote queue: messages that cannot be sent now are sent later, in the same
    /// order. Their number is bounded by the offers that the core has open.
    pub fn buffered(
        run: RunId,
        dispatch: Arc<dyn Dispatch>,
        lookups: mpsc::UnboundedSender<ItemId>,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (accepted, published) = mpsc::unbounded_channel();
        let batches = BatchSender { run, dispatch, accepted };
        let task = supervise::spawn("publisher", batches.send_all(receiver));
        Self(PublishMode::Buffered { sender, lookups, published, task })
    }

    /// The next offers that a remote queue has accepted. Cancel-safe.
    pub(super) async fn published(&mut self) -> Vec<(ItemId, TryId)> {
        let accepted = match &mut self.0 {
            PublishMode::Direct(_) => None,
            PublishMode::Buffered { published, .. } => published.recv().await,
        };
        match accepted {
            Some(tries) => tries,
            None => std::future::pending().await,
        }
    }

    /// Waits until everything is sent, for a limited time. Whether it was.
    pub(super) async fn finish(self, timeout: Duration) -> bool {
        match self.0 {
            PublishMode::Direct(_) => true,
            PublishMode::Buffered { sender, task, .. } => {
                drop(sender);
                tokio::time::timeout(timeout, task).await.is_ok()
            }
        }
    }

    pub(super) async fn send(
        &self,
        run: RunId,
        mut outgoing: PublishBatch,
    ) -> Result<(), QueueError> {
        if outgoing.is_empty() {
            return Ok(());
        }
        match &self.0 {
            PublishMode::Direct(dispatch) => {
                let sent = send(run, &**dispatch, outgoing).await?;
                debug_assert!(sent.refused.is_empty(), "an embedded queue has room");
                Ok(())
            }
            PublishMode::Buffered { sender, lookups, .. } => {
                for item in std::mem::take(&mut outgoing.lookups) {
                    let _whoever_looked_is_gone = lookups.send(item);
                }
                // The task lives as long as the sender.
                let _gone = sender.send(outgoing);
                Ok(())
            }
        }
    }
}

/// Offers of a batch, by the answer of the queue.
#[derive(Debug, Default)]
struct SentOffers {
    /// In the queue, or too large for it, which no retry changes.
    accepted: Vec<(ItemId, TryId)>,
    /// Those for which it had no room.
    refused: Vec<Offer>,
}

/// Sends one batch.
async fn send(
    run: RunId,
    dispatch: &dyn Dispatch,
    outgoing: PublishBatch,
) -> Result<SentOffers, QueueError> {
    let PublishBatch { withdrawn, offers, controls, .. } = outgoing;
    if !withdrawn.is_empty() {
        dispatch.withdraw(run, &withdrawn).await?;
    }
    let mut sent = SentOffers::default();
    if !offers.is_empty() {
        let answers = dispatch.offer(&offers).await?;
        for (offer, answer) in offers.into_iter().zip(answers) {
            match answer {
                Ok(_) => sent.accepted.push((offer.item, offer.try_id)),
                Err(PublishError::Full) => sent.refused.push(offer),
                Err(error @ PublishError::TooLarge { .. }) => {
                    // An offer has no part of unbounded size.
                    tracing::error!("offer of item {}: {error}", offer.item);
                    sent.accepted.push((offer.item, offer.try_id));
                }
            }
        }
    }
    for control in controls {
        dispatch.control(control).await?;
    }
    Ok(sent)
}

/// Sends batches to a remote queue.
#[derive(Debug)]
struct BatchSender {
    run: RunId,
    dispatch: Arc<dyn Dispatch>,
    accepted: mpsc::UnboundedSender<Vec<(ItemId, TryId)>>,
}

impl BatchSender {
    /// Sends until the engine ends. Batches without withdrawals overlap; one with withdrawals waits
    /// for those before it, so that an offer is sent before its withdrawal.
    async fn send_all(self, mut waiting: mpsc::UnboundedReceiver<PublishBatch>) {
        let mut flights = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(()) = flights.next(), if !flights.is_empty() => {}
                next = waiting.recv(), if flights.len() < MAX_BATCHES_IN_FLIGHT => {
                    let Some(outgoing) = next else { break };
                    if !outgoing.withdrawn.is_empty() {
                        while let Some(()) = flights.next().await {}
                        self.send_with_retry(outgoing).await;
                    } else {
                        flights.push(self.send_with_retry(outgoing));
                    }
                }
            }
        }
        while let Some(()) = flights.next().await {}
    }

    /// Sends a batch until it succeeds. Sending twice is harmless, so a failed batch is sent again
    /// whole.
    async fn send_with_retry(&self, outgoing: PublishBatch) {
        let PublishBatch { withdrawn, mut offers, controls, .. } = outgoing;
        let mut said = false;
        loop {
            let batch = PublishBatch {
                withdrawn: withdrawn.clone(),
                offers: offers.clone(),
                controls: controls.clone(),
                lookups: Vec::new(),
            };
            match send(self.run, &*self.dispatch, batch).await {
                Ok(SentOffers { accepted, refused }) => {
                    if !accepted.is_empty() {
                        // Without a receiver, the engine has ended.
                        drop(self.accepted.send(accepted));
                    }
                    if refused.is_empty() {
                        return;
                    }
                    offers = refused;
                }
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!("{error}; retrying");
                    }
                }
            }
            sleep(RETRY_DELAY).await;
        }
    }
}
