//! Specs: fully resolved, immutable descriptions of work, named by digest. The coordinator's
//! configuration passes make them from the user's job and task files.

pub mod agent;
pub mod budget;
pub mod environment;
pub mod eval;
pub mod gateway;
pub mod guardrail;
pub mod harness;
pub mod ideas;
pub mod metric;
pub mod prompt;
pub mod resources;
pub mod settings;
pub mod task;
pub mod timeout;
pub mod trial;
