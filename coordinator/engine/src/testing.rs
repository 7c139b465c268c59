//! Journals of tests.

use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::version::RUN_FORMAT;

use super::core::{PredecessorSegment, SessionStart};

/// The run of tests that need only one.
pub const RUN: RunId = RunId::from_bytes([1; 16]);

/// The first record of a session of [`RUN`].
pub fn session_start(epoch: u32, former: Option<PredecessorSegment>) -> SessionStart {
    SessionStart {
        format: RUN_FORMAT,
        run: RUN,
        epoch,
        plan: Digest::sha256(b"plan"),
        retry: RetryPolicy::default(),
        version: "test".to_owned(),
        owner: "test".to_owned(),
        former,
        holder: None,
        takeover: None,
        pool: None,
        replaces: Vec::new(),
        reopened: Vec::new(),
        reopened_within: Vec::new(),
    }
}
