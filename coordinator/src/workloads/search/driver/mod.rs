//! A sitting of a search: its directory, its owner, and the loop that brings in ideas and results.
//!
//! [`Sitting`] does one thing at a time: it removes what is due, applies a block of the manifest, or
//! asks its [`Workshop`] for ideas and results. Every block is written down before anything follows
//! from it, so that whoever opens the directory next does the same as if nothing had happened. Only
//! the owner of the run lock writes the manifest; whoever runs an eval leaves `eval_result.json` in
//! its directory, from where it is merged, once.
//!
//! A [`Workshop`] is what a search needs of the world: commands and a repository. [`simulated`] has one
//! that plays them.

mod baseline;
mod begin;
mod cleanup;
mod clock;
mod contexts;
mod directory;
mod error;
mod ideas;
mod merge;
mod pack;
mod result;
mod resume;
mod rewind;
mod scoring;
pub mod simulated;
mod sitting;
#[cfg(test)]
mod tests;
mod tidy;
mod workshop;

pub use baseline::check_baseline;
pub use begin::{Opening, Owned, begin, open};
pub use clock::Clock;
pub use directory::Directory;
pub use error::{TreeError, WorkError};
pub use ideas::{COST_FILE, usable};
pub use result::EvalResult;
pub(super) use scoring::FILE as SCORES_FILE;
pub use scoring::{Scores, score};
pub use sitting::Sitting;
pub use tidy::{Tidied, tidy};
pub use workshop::{EvalOrder, IdeasOrder, Keeper, Left, Sweep, Wanted, Workshop};
