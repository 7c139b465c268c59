//! Errors of a search.

use std::path::{Path, PathBuf};

use rollout_base::shown_path::shown;

use crate::results::files::{FileError, RegistrationError};
use crate::workloads::search::backend::SearchPlanError;
use rollout_engine::{LockError, LockLostError, OpenError, RunError};
use rollout_protocol::search::NodeId;

/// An error that ends the session of a search. The manifest keeps all decisions; another
/// session resumes it.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// A file or directory failed.
    #[error("cannot {action} {}", shown(path))]
    File {
        /// The action, an infinitive.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The search is not registered in its blob store.
    #[error(transparent)]
    Unregistered(#[from] RegistrationError),
    /// Another process owns the search.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Another process took the search over.
    #[error("the lock of the search is lost")]
    Lost(#[from] LockLostError),
    /// A file of the search is invalid.
    #[error("{} is damaged: {reason}", shown(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// No search in the directory.
    #[error("`{}` is not a search directory: `manifest.json` is missing", shown(root))]
    NotFound {
        /// The directory.
        root: PathBuf,
    },
    /// The directory of a job.
    #[error("`{}` is the directory of a job, not of a search", shown(root))]
    Job {
        /// The directory.
        root: PathBuf,
    },
    /// A search exists already.
    #[error("`{}` already contains a search", shown(root))]
    Exists {
        /// The directory.
        root: PathBuf,
    },
    /// The configuration of the search has changed.
    #[error("the search in `{}` began with another configuration", shown(root))]
    Changed {
        /// The directory.
        root: PathBuf,
        /// The differences, a line each.
        differences: Vec<String>,
    },
    /// The root's results cannot be a baseline.
    #[error("cannot use the baseline `{}`", shown(path))]
    Baseline {
        /// The file.
        path: PathBuf,
        /// The faults, a line each.
        missing: Vec<String>,
    },
    /// The ideas written for a node are unusable.
    #[error("cannot use the ideas of node {node}: {reason}")]
    Ideas {
        /// The node.
        node: NodeId,
        /// The reason.
        reason: String,
    },
    /// Commands or repository failed.
    #[error(transparent)]
    Backend(BackendError),
    /// The spec of evals cannot be prepared.
    #[error("cannot prepare the evals of the search")]
    Plan(#[from] SearchPlanError),
    /// The run that executes the evals failed.
    #[error(transparent)]
    Run(Box<RunError>),
}

/// An operation of the backend that was not completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// A user requested a stop.
    #[error("stopped on request")]
    Stopped,
    /// Another process took the search over.
    #[error("the lock of the search is lost")]
    Lost(#[from] LockLostError),
    /// The infrastructure could not run evals; their ideas are not at fault.
    #[error("{} could not be run", count(evals))]
    EvalsNotRun {
        /// The evals and the reasons.
        evals: Vec<String>,
    },
    /// The operation failed.
    #[error("{what}: {reason}")]
    Failed {
        /// The operation.
        what: String,
        /// The reason.
        reason: String,
    },
}

impl From<BackendError> for SearchError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Lost(lost) => Self::Lost(lost),
            other => Self::Backend(other),
        }
    }
}

impl From<FileError> for SearchError {
    fn from(FileError { action, path, source }: FileError) -> Self {
        Self::File { action, path, source }
    }
}

impl SearchError {
    /// Whether the damaged file is the result of an eval, which a session makes again if it is missing.
    pub fn is_of_eval_result(&self) -> bool {
        matches!(self, Self::Damaged { path, .. } if path.ends_with(super::result::FILE))
    }

    /// An I/O error at a path.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_lost_by_backend_is_lost_by_search() {
        let lost = LockLostError::TakenOver { by: "another process".to_owned() };
        let error = SearchError::from(BackendError::from(lost.clone()));
        assert!(matches!(&error, SearchError::Lost(found) if *found == lost), "{error}");
    }
}
