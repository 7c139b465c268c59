//! What the core is told.

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::ItemId;
use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::port::Reported;

/// The time of an input, and a random number for whoever needs one.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Milliseconds on a monotonic clock.
    pub monotonic_ms: u64,
    /// Wall clock; only ever written down, never compared.
    pub wall: Timestamp,
    /// Uniform in [0, 1).
    pub random: f64,
}

/// One input.
#[derive(Debug)]
pub enum Input {
    /// The plan's next items, in the order in which they shall be dispatched.
    Items(Vec<NewItem>),
    /// The plan has no more items.
    Exhausted,
    /// Whoever executed something in a former sitting is proven dead, and what it left was
    /// reported: every open execution is lost and every offer is gone.
    FormerExecutorsDead,
    /// A report was read.
    Reported(Box<Reported>),
    /// A worker asks whether it shall run a suspicious delivery. The reports were read to their
    /// head since it came.
    Claim {
        /// Names the question in the answer.
        id: u64,
        /// The question.
        claim: Claim,
    },
    /// Time passed.
    Tick,
    /// Stop.
    Stop(StopLevel),
}

/// An item of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewItem {
    /// Item.
    pub item: ItemId,
    /// Position in the plan's order of results.
    pub ordinal: u64,
    /// Digest of what it runs under.
    pub spec: Digest,
}
