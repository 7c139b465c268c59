//! Evals: one idea tried on one commit of a repository, and measured.
//!
//! [`run`] makes one execution of an [`EvalSpec`]:
//!
//! ```text
//! mirror (cached, filled from bundles) -> slot -> checkout -> environment
//!   -> implement -> tests? -> review? -> all processes are killed, the tree is extracted
//!   -> commit (outside, see `candidate`) -> sweep -> results, logs -> environment removed
//! ```
//!
//! A sweep with an environment of its own gets it between the commit and the sweep: the first
//! environment's logs are collected, it is removed, and another is created with the files of the
//! commit. The first command in either waits for the environment as that of a trial does.
//!
//! # Use
//! * A worker opens [`Repositories`] once, in a directory of its own, beside its
//!   [`ExecutionServices`](crate::executor::ExecutionServices), and calls [`run`] per execution.
//!   The result is a [`Finished`](crate::executor::Finished), whose `store` stores the files and
//!   returns the record. The scratch directory can be removed after that.
//! * [`EvalRecord::verdict`](rollout_protocol::record::EvalRecord::verdict) is the result that the
//!   engine counts. `stopped` means that the eval stays pending.
//! * Commands find everything by the variables of [`variables`]. The sweep's output directory is
//!   named after the execution and recreated just before the sweep: tries never share one, and no
//!   command before the sweep can have written results.
//! * Changes of the agent to the `.git` of its checkout have no effect: it is thrown away.

mod agents;
mod candidate;
mod checkout;
mod checkout_slots;
mod collect;
mod compare;
mod decision;
mod environment;
pub(in crate::work) mod failure;
mod local_dir;
mod mirror;
mod phases;
mod record;
mod run;
pub mod variables;

#[cfg(test)]
pub(in crate::work) mod testing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rollout_base::shown_path::shown;
use rollout_environment::Upload;
use rollout_protocol::spec::eval::{EvalSpec, EvalStage};
use rollout_store::archive::ArchiveError;
use rollout_store::git::GitError;
use rollout_store::{BlobStore, StoreError};

use crate::executor::ExecutionContext;

pub use self::candidate::{Candidate, CandidateOutcome, ExtractedTree};
pub use self::checkout::Checkout;
pub use self::checkout_slots::{CheckoutSlot, CheckoutSlots};
pub use self::mirror::{Mirror, Mirrors};
pub use self::run::run;

/// The repositories of a worker.
#[derive(Debug)]
pub struct Repositories {
    /// Cached repositories.
    pub mirrors: Mirrors,
    /// Slots for checkouts.
    pub slots: CheckoutSlots,
}

impl Repositories {
    /// Opens a directory that belongs to one process. The most recently used cached repositories
    /// are kept within `max_bytes`.
    ///
    /// # Errors
    /// Errors of the local disk, and when another process uses the directory.
    pub fn open(dir: &Path, store: Arc<dyn BlobStore>, max_bytes: u64) -> std::io::Result<Self> {
        let mirrors = Mirrors::open(&dir.join("mirrors"), store, max_bytes)?;
        Ok(Self { mirrors, slots: CheckoutSlots::open(&dir.join("slots"))? })
    }

    /// Checks out a commit into a slot, which becomes `slot`, and returns the uploads that place
    /// its files at `to` in an environment.
    ///
    /// # Errors
    /// Errors of the repository and of the local disk.
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
    /// Permits for commands.
    pub permits: Arc<dyn StagePermits>,
}

/// Permits for the commands of stages. By default, commands may begin at once.
#[async_trait]
pub trait StagePermits: Send + Sync + fmt::Debug {
    /// Waits until the command of a stage may begin, however long that takes. A cancelled wait
    /// holds no permit.
    async fn acquire(&self, _stage: EvalStage) {}

    /// Releases a permit: the command of the stage has ended, or will not run.
    fn release(&self, _stage: EvalStage) {}

    /// The execution starts over: its stages begin again. It needs no permit that it still holds:
    /// its environments were removed, or are as soon as their engine answers.
    fn start_over(&self) {}
}

/// No limits.
impl StagePermits for () {}

/// Why a commit's files are not available, or cannot become a commit.
#[derive(Debug, thiserror::Error)]
pub enum EvalFilesError {
    /// Git failed.
    #[error("cannot use the repository")]
    Git(#[from] GitError),
    /// The store failed.
    #[error("cannot fetch {what}")]
    Store {
        /// The requested data.
        what: &'static str,
        /// The cause.
        #[source]
        source: StoreError,
    },
    /// An archive cannot be packed or unpacked.
    #[error("cannot pack or unpack {what}")]
    Archive {
        /// Its content.
        what: &'static str,
        /// The cause.
        #[source]
        source: ArchiveError,
    },
    /// The commits do not follow each other.
    #[error("the commits are not a chain: {reason}")]
    BrokenChain {
        /// The first gap.
        reason: String,
    },
    /// A commit exceeds the size limit.
    #[error("commit {commit} has {size_bytes} bytes, at most {max_bytes} are accepted")]
    TooLarge {
        /// The commit.
        commit: String,
        /// Its size.
        size_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The agent's changes cannot become a commit.
    #[error("cannot commit the checkout: {reason}")]
    NotCommittable {
        /// The reason.
        reason: String,
    },
    /// The agent's changes could not be read completely.
    #[error("cannot read the checkout: {reason}")]
    Unreadable {
        /// The reason.
        reason: String,
    },
    /// The local disk failed.
    #[error("cannot {action} {}", shown(path))]
    Disk {
        /// The action that failed.
        action: &'static str,
        /// Its path.
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
        rollout_base::backoff::error_chain(self)
    }
}
