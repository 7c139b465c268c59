//! Kinds of work: one recipe for the executor each.

mod agent;
pub mod eval;
mod health;
pub mod ideas;
mod readiness;
pub mod trial;
