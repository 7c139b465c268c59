//! Messages between coordinator and workers.
//!
//! Every message of a worker carries the identity (item, try, execution); every offer and result
//! carries the digest of the spec it was made under. JSON; fields are only added. [`delivery`] and
//! [`position`] are the types that queues make of them.

pub mod claim;
pub mod command;
pub mod control;
pub mod delivery;
pub mod event_chunk;
pub mod heartbeat;
pub mod marker;
pub mod model_calls;
pub mod model_leases;
pub mod offer;
pub mod output;
pub mod position;
pub mod report;
pub mod stage;
pub mod trial_control;
