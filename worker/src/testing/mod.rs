//! What tests of this crate and of its users share.

mod sample;
mod store;

pub use self::sample::{Sample, passed, record};
pub use self::store::{Call, Fault, FaultyStore};
