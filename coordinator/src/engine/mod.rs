//! The engine of a run, whatever it is made of.
//!
//! `core` decides, and is pure; `journal` holds its records, `lock` keeps others away from them.
//! `event_loop` holds the only select loop: it turns what happens into inputs of the core, hands the
//! records to the journal, and carries out effects when the records made with them are durable.
//! `reconcile` is its side towards workers of other processes. A `Planner` says what there is to do.

pub(crate) mod atomic_file;
pub mod concurrency;
pub mod core;
mod event_loop;
pub mod journal;
mod lock;
mod manifest;
mod open;
mod planner;
pub mod reconcile;
mod records;
mod reopen;
mod requirements;

pub use event_loop::{
    DurableState, DurableStateListener, Engine, EngineInputs, EngineMessage, EngineOutcome,
    LiveExecution, PhaseHints, QueuePublisher, WorkerLocation,
};
pub(crate) use lock::host_name;
pub use lock::{
    Fence, FileId, KvLockOptions, LockError, LockLostError, LockOptions, LockOwner, LockWaitPolicy,
    RunEntry, RunEntryInfo, RunLock,
};
pub use manifest::{JournalExtent, RecordsFile, RunManifest, RunState};
pub use open::{OpenError, OpenRun, RunOpenOptions, open_run};
pub use planner::Planner;
pub use reopen::ReopenSelection;
pub use requirements::{UnfitReason, WorkerRequirements};

use rollout_worker::queue::traits::QueueError;

use crate::engine::journal::JournalError;

/// Why a sitting could not go on. What is settled stays settled; the same command goes on with it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The run directory could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another process has the run now.
    #[error("the lock of the run is lost")]
    LockLost(#[source] LockLostError),
    /// The journal cannot be written.
    #[error("the run cannot go on because its journal cannot be written")]
    Journal(#[from] JournalError),
    /// The queue failed.
    #[error("the run cannot go on because its queue failed")]
    Queue(#[from] QueueError),
    /// A file of the run directory cannot be written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: std::path::PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A document of the run directory is damaged.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The document.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A document of the run directory was written by a newer version.
    #[error("{} has format {found}, this version reads up to {known}", path.display())]
    Newer {
        /// The document.
        path: std::path::PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that can be read.
        known: u32,
    },
    /// This program was built without a provider.
    #[error("this rollout was built without the `{0}` environment")]
    NotBuilt(rollout_protocol::spec::environment::ProviderKind),
    /// The service that environments live in gave no answer before anything was started.
    #[error("the environment `{kind}` is not available: {reason}")]
    NoAnswer {
        /// The environment.
        kind: rollout_protocol::spec::environment::ProviderKind,
        /// The reason, and a way out.
        reason: String,
    },
    /// A part of the program ended although it should not.
    #[error("internal error: {0} ended unexpectedly")]
    PartEnded(&'static str),
}
