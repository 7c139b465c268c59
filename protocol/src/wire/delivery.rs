//! Offers in a queue: how they are delivered, listed and refused, and the room that workers have for
//! them. None of this is sent as it is: every queue carries it in its own way.

use std::collections::BTreeMap;

use super::offer::{Offer, SizeClass};
use super::position::Incarnation;
use crate::id::{ItemId, TryId};

/// Names a delivered message (not a delivery: deliveries are not told apart).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageToken {
    /// Broker life.
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
    /// How often it was delivered, this time included.
    pub delivered: u32,
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferOutcome {
    /// It is in the queue.
    Published,
    /// It was there already.
    Present,
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

/// What a worker has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeCapacity {
    /// Free slots.
    pub slots: usize,
    /// Free shares, see [`SizeClass::shares`]; no limit when absent.
    pub shares: Option<u64>,
    /// Nothing runs: what has to run alone may be taken.
    pub idle: bool,
}

impl FreeCapacity {
    /// Room for so many of every class.
    pub const fn with_slots(slots: usize) -> Self {
        Self { slots, shares: None, idle: true }
    }

    /// How many of a class fit.
    pub fn count_for(&self, class: SizeClass) -> usize {
        if class == SizeClass::SOLO {
            return usize::from(self.idle && self.slots > 0);
        }
        let shares = self.shares.map(|shares| shares / class.shares());
        let fit = shares.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        self.slots.min(fit)
    }

    /// What is left when so many of a class were taken.
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

/// The pools of a run's earlier epochs: a name, or nothing where it is not known.
pub type PreviousPools = BTreeMap<u32, Option<String>>;

/// Why one message was not taken although the queue works.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The run has as many messages as it may: try later.
    #[error("the queue holds as many messages of this run as it may")]
    Full,
    /// The message is larger than may be.
    #[error("the message has {size_bytes} bytes, at most {max_bytes} are taken")]
    TooLarge {
        /// Its size.
        size_bytes: usize,
        /// The bound.
        max_bytes: usize,
    },
}
