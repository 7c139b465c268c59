//! The engine of a run: decides, journals and settles its items, whatever they are.
//!
//! * `core`: all decisions; pure
//! * `catalog`: runs in a blob store, with a copy of the journal
//! * `journal`: the core's records on disk; `records`: the settlements; `manifest`: a summary
//! * `lock`: exclusion of other processes; `interruption`: stops before and after the event loop
//! * `open`: opening of a run directory; `open_error`: why it fails; `reopen`: trials that a session
//!   runs again; `replay`: the state that a journal gives, also for readers
//! * `event_loop`: the only select loop. It turns events into inputs of the core, hands the records
//!   to the journal, and carries out effects once their records are durable.
//! * `reconcile`: the side towards remote workers
//! * `planner`: the interface to a [`Planner`], which supplies the items; `requirements`: the
//!   properties that a worker must have to run them
//! * `concurrency`: permits for the commands of a search; `model_leases`: shares of the limits of model
//!   servers
//! * `atomic_file`: replacement of small files
//! * `testing`: journals of tests

pub mod atomic_file;
pub mod catalog;
pub mod concurrency;
pub mod core;
mod event_loop;
mod interruption;
pub mod journal;
mod lock;
mod manifest;
pub mod model_leases;
mod open;
mod open_error;
mod planner;
pub mod reconcile;
mod records;
mod reopen;
mod replay;
mod requirements;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod unsettled;

pub use event_loop::{
    DurableState, DurableStateListener, Engine, EngineInputs, EngineMessage, EngineOutcome,
    LiveExecution, PhaseHints, QueueOutage, QueuePublisher, WorkerLocation,
};
pub use interruption::Interruption;
pub use lock::{
    Fence, FileId, KvLockOptions, LockError, LockGrant, LockLostError, LockOptions, LockOwner,
    LockWaitPolicy, ObservedOwner, RunEntry, RunEntryInfo, RunLock, host_name, is_shared,
};
pub use manifest::{JournalExtent, RecordsFile, RunManifest, RunState};
pub use open::{OpenRun, RunOpenOptions, open_run};
pub use open_error::OpenError;
pub use planner::{ItemLookup, Planner, PlannerDecisions, SelectionStep};
pub use reopen::{OutcomeFilter, ReopenSelection, TrialFilter};
pub use replay::{CoreReplay, reopened_items};
pub use requirements::{UnfitReason, WorkerRequirements};

use rollout_base::shown_path::shown;
use rollout_queue::traits::QueueError;

use crate::journal::{JournalError, MirrorError};

/// Why a session cannot continue. Settled items stay settled; another session resumes the run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The run directory could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another process owns the run now.
    #[error(transparent)]
    LockLost(LockLostError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(JournalError),
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A file of the run directory cannot be written.
    #[error("cannot {action} {}", shown(path))]
    File {
        /// Attempted action.
        action: &'static str,
        /// Path.
        path: std::path::PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file of the run directory is damaged.
    #[error("{} is damaged: {reason}", shown(path))]
    Damaged {
        /// The file.
        path: std::path::PathBuf,
        /// The defect.
        reason: String,
    },
    /// A file of the run directory was written by a newer version.
    #[error("cannot read {}: it has format {found}, this version reads up to {known}", shown(path))]
    Newer {
        /// The file.
        path: std::path::PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that can be read.
        known: u32,
    },
    /// This program was built without a provider.
    #[error("this rollout was built without the `{0}` environment")]
    NotBuilt(rollout_protocol::spec::environment::ProviderKind),
    /// A provider cannot work with the settings of this host.
    #[error("{0}")]
    ProviderSettings(String),
    /// The service behind the environments did not answer before anything was started.
    #[error("cannot use the environment `{kind}`: {reason}")]
    NoAnswer {
        /// The environment.
        kind: rollout_protocol::spec::environment::ProviderKind,
        /// The service, its address and the reason.
        reason: String,
    },
    /// An internal task ended unexpectedly.
    #[error("internal error: {0} ended unexpectedly")]
    PartEnded(&'static str),
}

impl From<JournalError> for RunError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Mirror(lost @ (MirrorError::Superseded(_) | MirrorError::Exists(_))) => {
                Self::LockLost(LockLostError::TakenOver { by: lost.to_string() })
            }
            error => Self::Journal(error),
        }
    }
}
