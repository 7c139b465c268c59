//! Claims that cannot be answered yet.

use rollout_protocol::wire::claim::Claim;

/// A claim that waits for its answer.
#[derive(Debug)]
pub(super) struct DeferredClaim {
    /// The names under which it was asked.
    pub(super) ids: Vec<u64>,
    pub(super) claim: Claim,
    /// When it was asked last.
    pub(super) asked: u64,
    /// When it is worth another thought.
    pub(super) due: u64,
}
