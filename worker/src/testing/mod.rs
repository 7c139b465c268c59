//! What tests of this crate and of its users share.

mod sample;
mod store;

pub use self::sample::{Sample, draft};
pub use self::store::FaultyStore;
