//! Kinds of work: one recipe for the executor each.
//!
//! All of them share `agent`, agents at work, and `readiness` and `health`, the wait for an environment
//! before its first command.

mod agent;
pub mod eval;
mod health;
pub mod ideas;
mod readiness;
pub mod trial;
