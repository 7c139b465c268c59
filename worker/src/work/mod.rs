//! Kinds of work: one recipe for the executor each.

mod agent;
pub mod eval;
pub mod ideas;
pub mod trial;
