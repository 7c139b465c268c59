//! Work that runs are made of: the trials of a job, the evals of a search.

pub mod job;
pub mod repair;
pub mod search;
