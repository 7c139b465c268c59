//! Errors of launching and continuing runs and searches.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rollout_base::shown_path::shown;
use rollout_engine::catalog::CatalogError;
use rollout_engine::{OpenError, RunError};
use rollout_protocol::farm::InvalidFarmSettings;
use rollout_store::StoreError;
use rollout_store::host::WorkerDirError;

use crate::events::ReportError;
use crate::plan::BuildError;
use crate::results::files::RegistrationError;
use crate::results::files::store::NoStore;
use crate::sources::datasets::BundleError;
use crate::workloads::search::driver::SearchError;

/// Error that prevents a run or a search from starting or continuing.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The store that the run was started with is missing.
    #[error(transparent)]
    NoStore(#[from] NoStore),
    /// The blob store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The catalog of the run failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A run of a catalog would go on outside it.
    #[error("cannot use `--sink local`: the run is in the catalog of its store")]
    LeavesCatalog,
    /// A run in a catalog cannot be resumed.
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Resume(#[from] super::resume::ResumeError),
    /// The plan cannot be built.
    #[error(transparent)]
    Plan(#[from] BuildError),
    /// A working directory cannot be used.
    #[error(transparent)]
    Directory(#[from] WorkerDirError),
    /// The outputs cannot be started.
    #[error("cannot start the outputs")]
    Outputs(#[source] io::Error),
    /// The handlers of signals cannot be installed.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    /// The program's own file cannot be found.
    #[error("cannot find the program's own file")]
    Program(#[source] io::Error),
    /// The server cannot be used.
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Server(#[from] super::nats::ServerError),
    /// A signal came before anything was started.
    #[error("nothing was started")]
    Interrupted,
    /// The run cannot start or continue.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The search cannot start or continue.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The settings of the farm are invalid.
    #[error(transparent)]
    FarmSettings(InvalidFarmSettings),
    /// A farm has one agent.
    #[error("cannot open the farm: its job has {agents} agents; use a job with one agent")]
    FarmAgents {
        /// Agents of the job.
        agents: usize,
    },
    /// The run directory is of another farm.
    #[error(
        "cannot open the farm: {} names the farm `{name}`; use its name or another directory",
        shown(path)
    )]
    OtherFarm {
        /// The file of settings.
        path: PathBuf,
        /// The name in it.
        name: String,
    },
    /// The run is not registered in its store.
    #[error(transparent)]
    Unregistered(#[from] RegistrationError),
    /// An output of the run failed.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl LaunchError {
    /// Whether a document or a file of its tasks is invalid.
    pub fn is_config(&self) -> bool {
        let Self::Plan(error) = self else { return false };
        matches!(error, BuildError::Config(_) | BuildError::Bundle(BundleError::Config(_)))
    }

    /// Whether files of this host, or the journal or the lock of a run are the cause, as on a disk that
    /// fails.
    pub fn is_of_files(&self) -> bool {
        let is_of_run = match self {
            Self::Run(error) => is_of_run_files(error),
            Self::Search(error) => match error {
                SearchError::File { .. } | SearchError::Lock(_) | SearchError::Lost(_) => true,
                SearchError::Run(error) => is_of_run_files(error),
                _ => false,
            },
            _ => false,
        };
        is_of_run || has_file_cause(self)
    }
}

/// Whether the run directory, its journal or its lock failed a run.
fn is_of_run_files(error: &RunError) -> bool {
    matches!(
        error,
        RunError::LockLost(_)
            | RunError::Journal(_)
            | RunError::File { .. }
            | RunError::Open(
                OpenError::Directory { .. } | OpenError::Lock(_) | OpenError::Journal { .. }
            )
    )
}

/// Whether one of the causes is an error of the system that is not about a connection.
fn has_file_cause(error: &(dyn Error + 'static)) -> bool {
    let is_of_file = |error: &(dyn Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| !is_of_connection(error.kind()))
    };
    std::iter::successors(Some(error), |&error| error.source()).any(is_of_file)
}

const fn is_of_connection(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::NotConnected
            | ErrorKind::AddrInUse
            | ErrorKind::AddrNotAvailable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::BrokenPipe
            | ErrorKind::TimedOut
            | ErrorKind::UnexpectedEof
            | ErrorKind::Other
    )
}

#[cfg(test)]
mod tests {
    use rollout_engine::LockLostError;

    use super::*;

    #[test]
    fn failures_of_files_journal_and_lock_are_of_files_and_others_are_not() {
        let full = || io::Error::from(ErrorKind::StorageFull);
        let (action, path) = ("write", PathBuf::from("run.json"));
        let lost = LockLostError::TakenOver { by: "another process".to_owned() };
        for (error, expected) in [
            (LaunchError::Run(RunError::File { action, path, source: full() }), true),
            (LaunchError::Run(RunError::LockLost(lost)), true),
            (LaunchError::Outputs(full()), true),
            (LaunchError::Outputs(ErrorKind::ConnectionRefused.into()), false),
            (LaunchError::Run(RunError::PartEnded("the run")), false),
            (LaunchError::FarmAgents { agents: 2 }, false),
        ] {
            assert_eq!(error.is_of_files(), expected, "{error}");
        }
    }
}
