//! Offers in a queue: delivery, listing and refusal, and the free capacity of workers. These types
//! have no wire form: every queue encodes them in its own way.

use std::collections::BTreeMap;

use super::offer::{Offer, SizeClass};
use super::position::Incarnation;
use crate::id::{ItemId, TryId};

/// Identifies a delivered message (not a delivery: deliveries of one message are not
/// distinguished).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageToken {
    /// Broker incarnation.
    pub incarnation: Incarnation,
    /// Sequence of the message in the work stream.
    pub sequence: u64,
}

/// An offer handed to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The offer.
    pub offer: Offer,
    /// How to acknowledge it.
    pub token: MessageToken,
    /// Number of deliveries, including this one.
    pub delivered: u32,
}

/// Result of publishing an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferOutcome {
    /// It is in the queue.
    Published,
    /// It was already there.
    AlreadyPresent,
}

/// An offer found in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuedOffer {
    /// Item.
    pub item: ItemId,
    /// Try.
    pub try_id: TryId,
    /// Whether it was ever delivered.
    pub delivered: bool,
}

/// Free capacity of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeCapacity {
    /// Free slots.
    pub slots: usize,
    /// Free shares, see [`SizeClass::shares`]; no limit when absent.
    pub shares: Option<u64>,
    /// Nothing runs: an item that must run alone may be taken.
    pub idle: bool,
}

impl FreeCapacity {
    /// Capacity for this many items of every class.
    pub const fn with_slots(slots: usize) -> Self {
        Self { slots, shares: None, idle: true }
    }

    /// How many items of a class fit.
    pub fn count_for(&self, class: SizeClass) -> usize {
        if class == SizeClass::SOLO {
            return usize::from(self.idle && self.slots > 0);
        }
        let shares = self.shares.map(|shares| shares / class.shares());
        let fit = shares.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        self.slots.min(fit)
    }

    /// The capacity left after `taken` items of a class.
    #[must_use]
    pub fn without(self, class: SizeClass, taken: usize) -> Self {
        if class == SizeClass::SOLO && taken > 0 {
            return Self { slots: 0, shares: self.shares, idle: false };
        }
        let used = class.shares().saturating_mul(taken as u64);
        Self {
            slots: self.slots.saturating_sub(taken),
            shares: self.shares.map(|shares| shares.saturating_sub(used)),
            idle: self.idle && taken == 0,
        }
    }
}

/// The pools of a run's earlier epochs: a name, or `None` if it is not known.
pub type PreviousPools = BTreeMap<u32, Option<String>>;

/// Why one message was refused although the queue works.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The run has the maximum number of messages: try later.
    #[error("the queue already holds the maximum number of messages of this run")]
    Full,
    /// The message is too large.
    #[error("the message has {size_bytes} bytes, at most {max_bytes} are accepted")]
    TooLarge {
        /// Its size.
        size_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
}
