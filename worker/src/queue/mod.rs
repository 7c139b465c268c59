//! The queue: its traits, and implementations of them.
//!
//! [`embedded`] lives in the process and needs nothing; [`nats`] is a server. Every implementation
//! passes the suite in `contract`.

#[cfg(any(test, feature = "testing"))]
pub mod contract;
pub mod embedded;
#[cfg(feature = "nats")]
pub mod nats;
pub mod traits;
