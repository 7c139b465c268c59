//! Kinds of work: one recipe for the executor each.

pub mod eval;
pub mod ideas;
pub mod trial;
