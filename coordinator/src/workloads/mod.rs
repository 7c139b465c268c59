//! The kinds of work that runs consist of: the trials of a job and the evals of a search; and the
//! repair of run directories.

pub mod job;
pub mod repair;
pub mod search;
