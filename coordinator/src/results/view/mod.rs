//! Views of a run for commands that only read: the state of a run that is live in another process,
//! stopped, finished, or whose owner was killed.
//!
//! * `fold`: the state of a run, record by record. Pure: it takes the documents of the run as bytes
//!   and the records of its journal in order, wherever they come from.
//! * `directory`: the source of both in a run directory. It takes no lock and writes nothing.
//! * `run`: the snapshot of a run; `status`: its document; `trials`: its rows; `detail`: all about
//!   one trial
//! * `events`: the durable events, with their numbers
//! * `hook_events`: logs of hook events of one trial, also while it runs; `hook_event_reader`: the
//!   events in them
//! * `jobs_dir`: the runs in a directory of jobs
//! * `captured`: outputs and logs in the blob store; `recorded`: executions with their records
//!
//! The journal is the truth. It is replayed by the code that resumes a run, so a reader counts as a
//! new session would. While the owner may live, only records that are known to be durable are read.
//!
//! Memory: one small row for each item, and all executions of one watched trial.

mod captured;
mod detail;
mod directory;
mod documents;
mod events;
mod fold;
mod hook_event_reader;
mod hook_events;
mod jobs_dir;
mod recorded;
mod run;
mod sessions;
mod status;
#[cfg(test)]
mod tests;
mod trials;

use std::path::PathBuf;

use rollout_base::shown_path::shown;
use rollout_engine::RunError;
use rollout_engine::journal::JournalError;

pub use captured::{
    CapturedError, CapturedFile, CapturedSource, LogFile, captured_files, list_logs, read_captured,
    record_of,
};
pub use detail::{ExecutionRole, ExecutionView, TrialDetail};
pub use directory::RunDirectory;
pub use documents::RunDocuments;
pub(crate) use documents::parse_plan;
pub use events::NumberedEvent;
pub use fold::{EventReader, RunFold};
pub use hook_event_reader::{HookEventRead, HookLogCursor, HookLogRead};
pub use hook_events::{
    AnnouncedLogs, HookEventLogs, HookLog, HookLogContent, announced_logs, resolve_hook_logs,
};
pub use jobs_dir::{RunFacts, RunSummary, list_runs};
pub use recorded::{LogsView, RecordedExecution};
pub use run::{ItemCounts, OwnerView, RunHeaderView, RunKind, RunView, RunViewState};
pub use status::RunStatus;
pub use trials::{ErrorSummary, TrialFilter, TrialLookupError, TrialRow, TrialState, find_trial};

/// Why a run cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RunViewError {
    /// The directory is not a run directory.
    #[error("{} is not a run directory: {what} is missing", shown(path))]
    NotRunDirectory {
        /// The directory.
        path: PathBuf,
        /// The missing file.
        what: &'static str,
    },
    /// A directory cannot be listed.
    #[error("cannot list {}", shown(path))]
    List {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A document of the run cannot be read.
    #[error(transparent)]
    Document(#[from] RunError),
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}
