//! Fixtures for tests of this crate and of its users.

mod faulty_store;
mod raw_entry;

pub use self::faulty_store::{FaultyStore, StoreCall, StoreFault};
pub use self::raw_entry::{raw_entry, raw_entry_with_mode};
