//! The kinds of work that runs consist of: the trials of a job and the evals of a search; the
//! repair of run directories; and the collection and verification of blobs.

pub mod blobs;
pub mod farm;
pub mod job;
pub mod repair;
pub mod search;
