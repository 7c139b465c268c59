#![doc = include_str!("../README.md")]

pub mod disk;
pub mod executor;
pub mod service;
pub mod spool;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verifier;
pub mod work;
pub mod workspace_diff;
