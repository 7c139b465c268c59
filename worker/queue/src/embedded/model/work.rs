//! The work stream and its consumers, one per size class.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::delivery::{OfferOutcome, QueuedOffer};
use rollout_protocol::wire::offer::{Offer, SizeClass};

/// The key that may be in the stream only once.
type OfferKey = (RunId, ItemId, TryId);

#[derive(Debug)]
pub(super) struct WorkStream {
    lease: Duration,
    last_sequence: u64,
    pub(super) messages: HashMap<u64, WorkMessage>,
    sequences: HashMap<OfferKey, u64>,
    /// The offers that a pull delivers, by class, in that order. No class is empty.
    pub(super) ready: BTreeMap<SizeClass, BTreeMap<DeliveryOrder, u64>>,
    /// The deliveries in flight by the end of their lease.
    leases: BTreeSet<(Duration, u64)>,
    redeliveries: u64,
    /// The last acknowledged offers, oldest first.
    acked: VecDeque<(u64, Offer)>,
    remembered_acks: usize,
}

/// Redeliveries come before new offers, each in the order in which they became due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DeliveryOrder {
    Redelivery(u64),
    New(u64),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct WorkMessage {
    offer: Offer,
    delivered: u32,
    state: WorkMessageState,
}

#[derive(Debug, Clone, Copy)]
enum WorkMessageState {
    Ready(DeliveryOrder),
    InFlight { until: Duration },
}

fn offer_key(offer: &Offer) -> OfferKey {
    (offer.run, offer.item, offer.try_id)
}

impl WorkStream {
    pub(super) fn new(lease: Duration, remembered_acks: usize) -> Self {
        Self {
            lease,
            last_sequence: 0,
            messages: HashMap::new(),
            sequences: HashMap::new(),
            ready: BTreeMap::new(),
            leases: BTreeSet::new(),
            redeliveries: 0,
            acked: VecDeque::new(),
            remembered_acks,
        }
    }

    /// The classes that have ready offers, the largest first.
    pub(super) fn classes(&self) -> Vec<SizeClass> {
        self.ready.keys().rev().copied().collect()
    }

    pub(super) fn next_expiry(&self) -> Option<Duration> {
        self.leases.first().map(|(until, _)| *until)
    }

    pub(super) fn publish(&mut self, offer: Offer) -> OfferOutcome {
        let sequence = self.last_sequence + 1;
        match self.sequences.entry(offer_key(&offer)) {
            std::collections::hash_map::Entry::Occupied(_) => return OfferOutcome::AlreadyPresent,
            std::collections::hash_map::Entry::Vacant(free) => free.insert(sequence),
        };
        self.last_sequence = sequence;
        self.insert_new(sequence, offer);
        OfferOutcome::Published
    }

    /// Delivers the next message of a class: its sequence, offer and delivery count.
    pub(super) fn deliver(&mut self, now: Duration, class: SizeClass) -> Option<(u64, Offer, u32)> {
        let (_, sequence) = self.ready.get(&class)?.first_key_value()?;
        let sequence = *sequence;
        let delivery = self.deliver_sequence(now, sequence);
        let (offer, delivered) = delivery.expect("a ready message exists");
        Some((sequence, offer, delivered))
    }

    /// Delivers the message with this sequence if it is ready: its offer and delivery count.
    pub(super) fn deliver_sequence(
        &mut self,
        now: Duration,
        sequence: u64,
    ) -> Option<(Offer, u32)> {
        let message = self.messages.get_mut(&sequence)?;
        let WorkMessageState::Ready(turn) = message.state else { return None };
        let until = now + self.lease;
        message.delivered = message.delivered.saturating_add(1);
        message.state = WorkMessageState::InFlight { until };
        let WorkMessage { offer, delivered, .. } = *message;
        self.remove_ready(offer.class, turn);
        self.leases.insert((until, sequence));
        Some((offer, delivered))
    }

    pub(super) fn expire(&mut self, now: Duration) {
        while let Some((until, sequence)) = self.leases.first().copied()
            && until <= now
        {
            self.leases.pop_first();
            self.deliver_again(sequence);
        }
    }

    pub(super) fn progress(&mut self, now: Duration, sequence: u64) {
        if let Some(message) = self.messages.get_mut(&sequence)
            && let WorkMessageState::InFlight { until } = &mut message.state
        {
            self.leases.remove(&(*until, sequence));
            *until = now + self.lease;
            self.leases.insert((*until, sequence));
        }
    }

    pub(super) fn nak(&mut self, sequence: u64) {
        if let Some(WorkMessage { state: WorkMessageState::InFlight { until }, .. }) =
            self.messages.get(&sequence)
        {
            self.leases.remove(&(*until, sequence));
            self.deliver_again(sequence);
        }
    }

    pub(super) fn ack(&mut self, sequence: u64) {
        let Some(offer) = self.remove(sequence) else { return };
        if self.remembered_acks > 0 {
            if self.acked.len() == self.remembered_acks {
                self.acked.pop_front();
            }
            self.acked.push_back((sequence, offer));
        }
    }

    pub(super) fn withdraw(&mut self, key: &OfferKey) {
        if let Some(sequence) = self.sequences.get(key) {
            self.remove(*sequence);
        }
    }

    pub(super) fn list(&self, run: RunId) -> Vec<QueuedOffer> {
        let mut found: Vec<(u64, QueuedOffer)> = (self.messages.iter())
            .filter(|(_, message)| message.offer.run == run)
            .map(|(sequence, message)| {
                let WorkMessage { offer, delivered, .. } = message;
                let listed = QueuedOffer {
                    item: offer.item,
                    try_id: offer.try_id,
                    delivered: *delivered > 0,
                };
                (*sequence, listed)
            })
            .collect();
        found.sort_unstable_by_key(|(sequence, _)| *sequence);
        found.into_iter().map(|(_, listed)| listed).collect()
    }

    pub(super) fn restart(&mut self) {
        let in_flight = std::mem::take(&mut self.leases);
        let mut sequences: Vec<u64> = in_flight.into_iter().map(|(_, sequence)| sequence).collect();
        sequences.sort_unstable();
        for sequence in sequences {
            self.deliver_again(sequence);
        }
    }

    pub(super) fn lose_tail(&mut self, n: u64) {
        self.last_sequence = self.last_sequence.saturating_sub(n);
        let kept = self.last_sequence;
        let lost: Vec<u64> = self.messages.keys().copied().filter(|s| *s > kept).collect();
        for sequence in lost {
            self.remove(sequence);
        }
        self.acked.retain(|(sequence, _)| *sequence <= kept);
    }

    pub(super) fn lose_acks(&mut self, n: usize) {
        for _ in 0..n {
            let Some((sequence, offer)) = self.acked.pop_back() else { return };
            if self.sequences.contains_key(&offer_key(&offer)) {
                continue;
            }
            self.sequences.insert(offer_key(&offer), sequence);
            self.insert_new(sequence, offer);
        }
    }

    fn insert_new(&mut self, sequence: u64, offer: Offer) {
        let turn = DeliveryOrder::New(sequence);
        self.ready.entry(offer.class).or_default().insert(turn, sequence);
        self.messages.insert(
            sequence,
            WorkMessage { offer, delivered: 0, state: WorkMessageState::Ready(turn) },
        );
    }

    /// Makes a message ready whose lease has ended.
    fn deliver_again(&mut self, sequence: u64) {
        self.redeliveries += 1;
        let turn = DeliveryOrder::Redelivery(self.redeliveries);
        let message = self.messages.get_mut(&sequence).expect("a message in flight exists");
        message.state = WorkMessageState::Ready(turn);
        self.ready.entry(message.offer.class).or_default().insert(turn, sequence);
    }

    fn remove_ready(&mut self, class: SizeClass, order: DeliveryOrder) {
        if let Some(of_class) = self.ready.get_mut(&class) {
            of_class.remove(&order);
            if of_class.is_empty() {
                self.ready.remove(&class);
            }
        }
    }

    fn remove(&mut self, sequence: u64) -> Option<Offer> {
        let message = self.messages.remove(&sequence)?;
        self.sequences.remove(&offer_key(&message.offer));
        match message.state {
            WorkMessageState::Ready(turn) => self.remove_ready(message.offer.class, turn),
            WorkMessageState::InFlight { until } => {
                self.leases.remove(&(until, sequence));
            }
        }
        Some(message.offer)
    }
}
