//! The outputs that a run's events go to.

pub(super) mod files;
pub(super) mod json;
pub mod terminal;
