//! Sample messages for tests, distinguished by numbers.

use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::report::Report;

/// The first offer of an item.
pub fn offer(run: u8, item: u8) -> Offer {
    super::offer(run, item, super::FIRST)
}

/// A report of an execution that began.
pub fn report(run: u8, exec: u8) -> Report {
    super::report(run, exec)
}

/// A claim of an execution.
pub fn claim(run: u8, exec: u8) -> Claim {
    super::messages::claim(run, exec)
}

/// The heartbeat of a worker that runs nothing.
pub fn heartbeat(worker: &str) -> Heartbeat {
    super::messages::heartbeat(worker, 1)
}
