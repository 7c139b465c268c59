//! The queue: its traits and their implementations.
//!
//! [`embedded`] lives in the process and needs no server; [`nats`] uses a NATS server. Every
//! implementation passes the suite in `contract`.

#[cfg(any(test, feature = "testing"))]
pub mod contract;
pub mod embedded;
#[cfg(feature = "nats")]
pub mod nats;
pub mod traits;
