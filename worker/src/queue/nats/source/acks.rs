//! What a worker says of deliveries. It is said only to the life of the server that made them, over
//! a connection on which that was found out: a late word would act on another message of the same
//! sequence.
//!
//! A server that was killed may have forgotten that it delivered something, and ignores what is
//! said of that: the message comes again, although it was said that it is done with. So what was
//! said last of all is remembered, and said again whenever the message comes. It is known by what it
//! asks for: a server that lost the end of a stream gives its sequences to other messages.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::Subject;
use bytes::Bytes;
use lru::LruCache;
use rollout_protocol::id::{ItemId, TryId};
use rollout_protocol::wire::delivery::MessageToken;
use rollout_protocol::wire::position::Incarnation;

use crate::queue::nats::client::NatsClient;

/// Deliveries whose way back is known. Beyond it those are forgotten that nothing was said of for
/// the longest time; a worker runs far fewer.
const MAX_KNOWN_DELIVERIES: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// What is said. Later ones replace earlier ones that were not said yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AckKind {
    Progress,
    Nak,
    Ack,
}

impl AckKind {
    fn payload(self) -> Bytes {
        Bytes::from_static(match self {
            Self::Progress => b"+WPI",
            Self::Nak => b"-NAK",
            Self::Ack => b"+ACK",
        })
    }
}

/// What a delivery asks for.
type DeliveredTry = (ItemId, TryId);

/// Ways back of deliveries, and what could not be said yet.
#[derive(Debug)]
pub(super) struct DeliveryAcks(Mutex<DeliveryAckState>);

#[derive(Debug)]
struct DeliveryAckState {
    life: Option<Incarnation>,
    /// By sequence.
    ways: LruCache<u64, (Subject, DeliveredTry)>,
    /// What is done with, by sequence, as far as it was said.
    done: LruCache<u64, DeliveredTry>,
    unsaid: BTreeMap<u64, AckKind>,
}

impl Default for DeliveryAcks {
    fn default() -> Self {
        let (ways, done) =
            (LruCache::new(MAX_KNOWN_DELIVERIES), LruCache::new(MAX_KNOWN_DELIVERIES));
        Self(Mutex::new(DeliveryAckState { life: None, ways, done, unsaid: BTreeMap::new() }))
    }
}

impl DeliveryAcks {
    /// The server's life is this: what belonged to another means nothing any more.
    pub(super) fn enter_incarnation(&self, life: Incarnation) {
        let mut state = self.state();
        if state.life != Some(life) {
            state.life = Some(life);
            state.ways.clear();
            state.done.clear();
            state.unsaid.clear();
        }
    }

    /// How to answer to a delivery of the present life. Whether there is anything to do for it: if
    /// not, that is about to be said again.
    pub(super) fn register(&self, sequence: u64, way: Subject, asked: DeliveredTry) -> bool {
        let mut state = self.state();
        state.ways.put(sequence, (way, asked));
        let done = state.done.get(&sequence) == Some(&asked);
        if done {
            state.unsaid.insert(sequence, AckKind::Ack);
        }
        !done
    }

    pub(super) async fn send(&self, link: &NatsClient, kind: AckKind, tokens: &[MessageToken]) {
        {
            let mut state = self.state();
            let DeliveryAckState { life, ways, unsaid, .. } = &mut *state;
            for token in tokens.iter().filter(|token| Some(token.incarnation) == *life) {
                // Keeps it among the known ones.
                if ways.get(&token.sequence).is_some() {
                    let said = unsaid.entry(token.sequence).or_insert(kind);
                    *said = kind.max(*said);
                }
            }
        }
        self.send_pending(link).await;
    }

    /// Says what was not said yet, if it can be said.
    pub(super) async fn send_pending(&self, link: &NatsClient) {
        let Some(life) = link.known_incarnation() else { return };
        self.enter_incarnation(life);
        let words: Vec<(Subject, AckKind)> = {
            let mut state = self.state();
            let DeliveryAckState { ways, done, unsaid, .. } = &mut *state;
            std::mem::take(unsaid)
                .into_iter()
                .filter_map(|(sequence, kind)| {
                    let (way, asked) = match kind {
                        AckKind::Ack => ways.pop(&sequence)?,
                        AckKind::Nak | AckKind::Progress => ways.get(&sequence)?.clone(),
                    };
                    if kind == AckKind::Ack {
                        done.put(sequence, asked);
                    }
                    Some((way, kind))
                })
                .collect()
        };
        for (way, kind) in words {
            if let Err(error) = link.client.publish(way, kind.payload()).await {
                tracing::debug!("a delivery is not answered: {error}");
            }
        }
    }

    /// Says what could not be said, after each reconnection.
    pub(super) async fn resend_after_reconnect(self: Arc<Self>, link: Arc<NatsClient>) {
        let mut contact = link.connection_status();
        loop {
            let life = link.wait_for_incarnation().await;
            self.enter_incarnation(life);
            self.send_pending(&link).await;
            if contact.changed().await.is_err() {
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, DeliveryAckState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
