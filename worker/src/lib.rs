#![doc = include_str!("../README.md")]

pub mod agents;
pub mod archive;
pub mod backoff;
pub mod confined;
pub mod dependency;
pub mod digest_line;
pub mod disk;
pub mod egress;
pub mod environment;
pub mod executor;
pub mod fs_remove;
pub mod gateway;
pub mod git;
pub mod glob;
#[cfg(feature = "gateway")]
mod hop_by_hop;
pub mod host;
pub mod metrics;
pub mod open_files;
pub mod queue;
pub mod rate_limit;
pub mod regular_file;
pub mod removal_limits;
pub mod secrets;
pub mod service;
pub mod shared_limit;
pub mod shortage;
pub mod spool;
pub mod store;
pub mod supervise;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod traces;
pub mod verifier;
pub mod work;
pub mod workspace_diff;
