//! Acknowledgements of deliveries. They are sent only to the server's incarnation that made the
//! deliveries, over a connection on which it was checked: a late acknowledgement would act on
//! another message with the same sequence.
//!
//! A server that was killed may have forgotten a delivery, and ignores its acknowledgement: the
//! message comes again although it is done. So final acknowledgements are remembered and sent again
//! whenever the message comes. It is recognised by its try: a server that lost the end of a stream
//! gives its sequences to other messages.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::Subject;
use bytes::Bytes;
use lru::LruCache;
use rollout_protocol::id::{ItemId, TryId};
use rollout_protocol::wire::delivery::MessageToken;
use rollout_protocol::wire::position::Incarnation;

use crate::nats::client::NatsClient;

/// Limit on remembered deliveries. Beyond it the least recently used are forgotten; a worker runs
/// far fewer.
const MAX_KNOWN_DELIVERIES: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Kinds of acknowledgements. Later variants replace earlier ones that were not sent yet.
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

/// The try that a delivery offers.
type DeliveredTry = (ItemId, TryId);

/// Reply subjects of deliveries, and acknowledgements that could not be sent yet.
#[derive(Debug)]
pub(super) struct DeliveryAcks(Mutex<DeliveryAckState>);

#[derive(Debug)]
struct DeliveryAckState {
    incarnation: Option<Incarnation>,
    /// Reply subject and try of each delivery, by sequence.
    reply_subjects: LruCache<u64, (Subject, DeliveredTry)>,
    /// Tries whose final acknowledgement was sent, by sequence.
    done: LruCache<u64, DeliveredTry>,
    pending: BTreeMap<u64, AckKind>,
}

impl Default for DeliveryAcks {
    fn default() -> Self {
        let (reply_subjects, done) =
            (LruCache::new(MAX_KNOWN_DELIVERIES), LruCache::new(MAX_KNOWN_DELIVERIES));
        Self(Mutex::new(DeliveryAckState {
            incarnation: None,
            reply_subjects,
            done,
            pending: BTreeMap::new(),
        }))
    }
}

impl DeliveryAcks {
    /// Sets the server's incarnation, and forgets everything of another one.
    pub(super) fn enter_incarnation(&self, incarnation: Incarnation) {
        let mut state = self.state();
        if state.incarnation != Some(incarnation) {
            state.incarnation = Some(incarnation);
            state.reply_subjects.clear();
            state.done.clear();
            state.pending.clear();
        }
    }

    /// Registers a delivery of the current incarnation. Returns whether its try must run: if not,
    /// its acknowledgement will be sent again.
    pub(super) fn register(
        &self,
        sequence: u64,
        reply_subject: Subject,
        try_key: DeliveredTry,
    ) -> bool {
        let mut state = self.state();
        state.reply_subjects.put(sequence, (reply_subject, try_key));
        let done = state.done.get(&sequence) == Some(&try_key);
        if done {
            state.pending.insert(sequence, AckKind::Ack);
        }
        !done
    }

    pub(super) async fn send(&self, client: &NatsClient, kind: AckKind, tokens: &[MessageToken]) {
        {
            let mut state = self.state();
            let DeliveryAckState { incarnation, reply_subjects, pending, .. } = &mut *state;
            for token in tokens.iter().filter(|token| Some(token.incarnation) == *incarnation) {
                // Marks it as recently used.
                if reply_subjects.get(&token.sequence).is_some() {
                    let said = pending.entry(token.sequence).or_insert(kind);
                    *said = kind.max(*said);
                }
            }
        }
        self.send_pending(client).await;
    }

    /// Sends the pending acknowledgements that can be sent.
    pub(super) async fn send_pending(&self, client: &NatsClient) {
        let Some(incarnation) = client.known_incarnation() else { return };
        self.enter_incarnation(incarnation);
        let words: Vec<(Subject, AckKind)> = {
            let mut state = self.state();
            let DeliveryAckState { reply_subjects, done, pending, .. } = &mut *state;
            std::mem::take(pending)
                .into_iter()
                .filter_map(|(sequence, kind)| {
                    let (way, asked) = match kind {
                        AckKind::Ack => reply_subjects.pop(&sequence)?,
                        AckKind::Nak | AckKind::Progress => reply_subjects.get(&sequence)?.clone(),
                    };
                    if kind == AckKind::Ack {
                        done.put(sequence, asked);
                    }
                    Some((way, kind))
                })
                .collect()
        };
        for (way, kind) in words {
            if let Err(error) = client.inner.publish(way, kind.payload()).await {
                tracing::debug!("cannot acknowledge a delivery: {error}");
            }
        }
    }

    /// Sends pending acknowledgements after each reconnection.
    pub(super) async fn resend_after_reconnect(self: Arc<Self>, client: Arc<NatsClient>) {
        let mut contact = client.connection_status();
        loop {
            let incarnation = client.wait_for_incarnation().await;
            self.enter_incarnation(incarnation);
            self.send_pending(&client).await;
            if contact.changed().await.is_err() {
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, DeliveryAckState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
