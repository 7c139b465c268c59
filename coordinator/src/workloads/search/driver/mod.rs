//! A sitting of a search: its directory, its owner, and the loop that brings in ideas and results.
//!
//! [`SearchSession`] does one thing at a time: it removes what is due, applies a block of the manifest, or
//! asks its [`SearchBackend`] for ideas and results. Every block is written down before anything follows
//! from it, so that whoever opens the directory next does the same as if nothing had happened. Only
//! the owner of the run lock writes the manifest; whoever runs an eval leaves `eval_result.json` in
//! its directory, from where it is merged, once.
//!
//! A [`SearchBackend`] is what a search needs of the world: commands and a repository. [`simulated`] has one
//! that plays them.

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
pub use ideas::{COST_FILE, read_user_ideas};
pub use opening::{SearchOpenOptions, SearchOwnership, lock_and_open, open};
pub use result::EvalResult;
pub(super) use scoring::FILE as SCORES_FILE;
pub use scoring::{Scores, score};
pub use session::SearchSession;
pub use traits::{
    DesiredRepositoryState, EvalOrder, FailedRemoval, IdeasOrder, RepositoryMaintenance,
    SearchBackend, SweepFiles,
};
