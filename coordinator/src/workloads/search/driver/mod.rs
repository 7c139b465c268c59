//! A session of a search: its directory, its owner, and its main loop.
//!
//! [`SearchSession`] does one thing at a time: it performs due removals, applies a block of the
//! manifest, or requests ideas and results from its [`SearchBackend`]. Every block is durable
//! before any action that depends on it, so the next session of the directory continues at the same
//! point. Only the owner of the run lock writes the manifest; the backend writes `eval_result.json`
//! to the directory of an eval, from where it is merged once.
//!
//! A [`SearchBackend`] provides commands and a repository. [`simulated`] has one that simulates
//! them.

mod baseline;
mod cleanup;
mod clock;
mod context_digests;
mod context_pack;
mod directory;
mod error;
mod garbage;
mod ideas;
mod merge;
mod opening;
mod result;
mod resume;
mod rewind;
mod scoring;
mod session;
pub mod simulated;
#[cfg(test)]
mod tests;
mod traits;

pub use baseline::check_baseline;
pub use clock::ManifestClock;
pub use directory::SearchDirectory;
pub use error::{BackendError, SearchError};
pub use garbage::{GarbageReport, collect_garbage};
pub use ideas::{CALLS_FILE, COST_FILE, read_user_ideas};
pub use opening::{SearchOpenOptions, SearchOwnership, check_existing, lock_and_open, open};
pub use result::EvalResult;
pub(super) use scoring::FILE as SCORES_FILE;
pub use scoring::{ScoreError, Scores, score};
pub use session::SearchSession;
pub use traits::{
    DesiredRepositoryState, EvalOrder, FailedRemoval, IdeasOrder, RepositoryMaintenance,
    SearchBackend, SweepFiles,
};
