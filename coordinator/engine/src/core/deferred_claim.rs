//! Deferred claims.

use rollout_protocol::wire::claim::Claim;

/// A claim that waits for its answer.
#[derive(Debug)]
pub(super) struct DeferredClaim {
    /// Ids of its requests.
    pub(super) ids: Vec<u64>,
    pub(super) claim: Claim,
    /// Time of its last request.
    pub(super) requested_at: u64,
    /// When to decide again.
    pub(super) retry_at: u64,
}
