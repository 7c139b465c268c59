//! Why a search could not go on.

use std::path::{Path, PathBuf};

use crate::engine::{LockError, LockLostError, OpenError, RunError};
use crate::workloads::search::backend::SearchPlanError;
use rollout_protocol::search::NodeId;

/// Why a search could not go on. What is written down stays; the same command goes on with it.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// A file or directory.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another process has the search.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Another process took it over.
    #[error("the lock of the search is lost")]
    Lost(#[from] LockLostError),
    /// A file of the search is not what it has to be.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is no search.
    #[error("there is no search in {}", root.display())]
    Nothing {
        /// The directory.
        root: PathBuf,
    },
    /// There is one already.
    #[error("there is a search in {} already", root.display())]
    Exists {
        /// The directory.
        root: PathBuf,
    },
    /// The search in the directory is another one.
    #[error("the search in {} began with another configuration", root.display())]
    Changed {
        /// The directory.
        root: PathBuf,
        /// What differs, a line each.
        differences: Vec<String>,
    },
    /// The results of the root cannot be compared with.
    #[error("the baseline {} cannot be used", path.display())]
    Baseline {
        /// The file.
        path: PathBuf,
        /// The parts that are missing, a line each.
        missing: Vec<String>,
    },
    /// What the generator wrote for a node cannot be used.
    #[error("the ideas of node {node} cannot be used: {reason}")]
    Ideas {
        /// The node.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// Commands or repository.
    #[error(transparent)]
    Work(#[from] BackendError),
    /// What evals run under cannot be prepared.
    #[error("the evals of the search cannot be prepared")]
    Plan(#[from] SearchPlanError),
    /// The run that evals are items of.
    #[error(transparent)]
    Run(Box<RunError>),
}

/// Why something outside of the search was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// A user asked for a stop.
    #[error("stopped on request")]
    Stopped,
    /// Evals could not be run, through no fault of their ideas.
    #[error("{} could not be run", count(evals))]
    Unable {
        /// Which, and why.
        evals: Vec<String>,
    },
    /// It failed.
    #[error("{what}: {reason}")]
    Failed {
        /// What was to be done.
        what: String,
        /// Why it was not.
        reason: String,
    },
}

impl SearchError {
    /// An error of the system at a path.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }
}

impl From<RunError> for SearchError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::File { action, path, source } => Self::File { action, path, source },
            RunError::LockLost(lost) => Self::Lost(lost),
            RunError::Open(OpenError::Lock(error)) => Self::Lock(error),
            other => Self::Run(Box::new(other)),
        }
    }
}

fn count(evals: &[String]) -> String {
    if let [_] = evals { "an eval".to_owned() } else { format!("{} evals", evals.len()) }
}
