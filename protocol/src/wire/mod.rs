//! Messages between coordinator and workers.
//!
//! Everything a worker says carries the identity (item, try, execution); every offer and result
//! carries the digest of the spec it was made under. JSON; fields are only added.

pub mod claim;
pub mod command;
pub mod control;
pub mod hello;
pub mod marker;
pub mod offer;
pub mod report;
pub mod stage;
