#![doc = include_str!("../README.md")]

pub mod agent;
pub mod archive;
pub mod environment;
pub mod eval;
pub mod exec;
pub mod git;
pub mod glob;
pub mod outage;
pub mod owner;
pub mod pacing;
pub mod port;
pub mod queue;
pub mod removal;
pub mod secrets;
pub mod service;
pub mod spool;
pub mod store;
pub mod supervise;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trial;
pub mod verifier;
