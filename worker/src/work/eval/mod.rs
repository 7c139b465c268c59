//! Evals: one idea tried on one commit of a repository, and measured.
//!
//! [`run`] makes one execution of an [`EvalSpec`]:
//!
//! ```text
//! mirror (cached, filled from bundles) -> slot -> checkout -> environment
//!   -> implement -> tests? -> review? -> everything is ended, the tree is taken out
//!   -> commit (outside, see `candidate`) -> sweep -> results, logs -> environment gone
//! ```
//!
//! A sweep with an environment of its own gets it between the commit and the sweep: the first one's
//! logs are taken out, it is removed, and another is made with the files of the commit.
//!
//! # For whoever runs evals
//! * A worker opens [`Repositories`] once, in a directory of its own, beside its
//!   [`TrialServices`](crate::executor::TrialServices), and calls [`run`] per execution. The answer is
//!   a [`Finished`](crate::executor::Finished), whose `store` stores the files and gives the record.
//!   The scratch directory can go after that.
//! * [`EvalRecord::verdict`](rollout_protocol::record::EvalRecord::verdict) is what the engine
//!   counts. `stopped` means that the eval stays owed.
//! * Commands find everything by the variables of [`variables`]. The sweep's output directory is
//!   named after the execution and made anew just before the sweep: tries never share one, and no
//!   command before the sweep can have written results.
//! * Whatever the agent did to the `.git` of its checkout is of no consequence: it is thrown away.

mod candidate;
mod checkout;
mod checkout_slots;
mod collect;
mod compare;
mod environment;
pub(in crate::work) mod failure;
mod local_dir;
mod mirror;
mod phases;
mod record;
mod run;
pub mod variables;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rollout_protocol::spec::eval::{EvalSpec, EvalStage};

use crate::archive::ArchiveError;
use crate::environment::Upload;
use crate::executor::ExecutionContext;
use crate::git::GitError;
use crate::store::{BlobStore, StoreError};

pub use self::candidate::{Candidate, CandidateOutcome, ExtractedTree};
pub use self::checkout::Checkout;
pub use self::checkout_slots::{CheckoutSlot, CheckoutSlots};
pub use self::mirror::{Mirror, Mirrors};
pub use self::run::run;

/// Repositories of a worker.
#[derive(Debug)]
pub struct Repositories {
    /// Cached ones.
    pub mirrors: Mirrors,
    /// Places for checkouts.
    pub slots: CheckoutSlots,
}

impl Repositories {
    /// Those of a directory that belongs to one process. Of the cached ones, those used last are
    /// kept within `max_bytes`.
    ///
    /// # Errors
    /// Of the local disk, and when another process has the directory.
    pub fn open(dir: &Path, store: Arc<dyn BlobStore>, max_bytes: u64) -> std::io::Result<Self> {
        let mirrors = Mirrors::open(&dir.join("mirrors"), store, max_bytes)?;
        Ok(Self { mirrors, slots: CheckoutSlots::open(&dir.join("slots"))? })
    }

    /// Checks out a commit into a slot, which becomes `slot`, and gives what places its files at
    /// `to` in an environment.
    ///
    /// # Errors
    /// Of the repository and of the local disk.
    pub(in crate::work) async fn check_out(
        &self,
        mirror: &Mirror,
        commit: &str,
        slot: &mut Option<CheckoutSlot>,
        to: &str,
    ) -> Result<(Checkout, Vec<Upload>), EvalFilesError> {
        let slot = slot.insert(self.slots.acquire(commit).await?);
        let checkout = Checkout::new(mirror, commit, slot).await?;
        let uploads = checkout.uploads(to).await?;
        slot.mark_complete(commit);
        Ok((checkout, uploads))
    }
}

/// The inputs of one execution.
#[derive(Debug, Clone)]
pub struct EvalContext {
    /// The execution.
    pub execution: ExecutionContext,
    /// The eval.
    pub eval: Arc<EvalSpec>,
    /// Asked before every command.
    pub tickets: Arc<dyn StagePermits>,
}

/// Says when commands may begin. Unless something else is said, they may at once.
#[async_trait]
pub trait StagePermits: Send + Sync + fmt::Debug {
    /// Waits until the command of a stage may begin, for as long as that takes. Who gives up has no
    /// ticket.
    async fn acquire(&self, _stage: EvalStage) {}

    /// The command of a stage that was begun has ended, or will not run.
    fn release(&self, _stage: EvalStage) {}
}

/// No limits.
impl StagePermits for () {}

/// Why a commit's files are not at hand, or cannot become a commit.
#[derive(Debug, thiserror::Error)]
pub enum EvalFilesError {
    /// Git.
    #[error("the repository")]
    Git(#[from] GitError),
    /// The store does not give something.
    #[error("fetching {what}")]
    Store {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// An archive cannot be made or unpacked.
    #[error("packing {what}")]
    Archive {
        /// Of what.
        what: &'static str,
        /// Why.
        #[source]
        source: ArchiveError,
    },
    /// Commits that do not follow each other.
    #[error("the commits are no chain: {reason}")]
    Chain {
        /// Where.
        reason: String,
    },
    /// A commit is larger than commits may be.
    #[error("commit {commit} has {size_bytes} bytes, at most {max_bytes} are accepted")]
    TooLarge {
        /// The commit.
        commit: String,
        /// Its size.
        size_bytes: u64,
        /// The bound.
        max_bytes: u64,
    },
    /// What an agent left is more than a commit may be.
    #[error("the checkout cannot become a commit: {reason}")]
    NotCommittable {
        /// Why not.
        reason: String,
    },
    /// What an agent left could not be read to its end.
    #[error("the checkout could not be read: {reason}")]
    Torn {
        /// Why.
        reason: String,
    },
    /// The local disk.
    #[error("{action} {path}")]
    Disk {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl EvalFilesError {
    fn disk_error(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Disk { action, path: path.to_owned(), source }
    }

    /// The message with the chain of causes.
    pub fn chain(&self) -> String {
        crate::backoff::error_chain(self)
    }
}
