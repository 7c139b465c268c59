//! Failures of runs and requests, as users see them.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::hidden_paths::hide_host_paths;
use crate::config::{ConfigErrors, ErrorKind};
use crate::launch::LaunchError;
use crate::results::export::ExportError;
use crate::results::view::{CapturedError, RunViewError};

/// Most bytes of the details of a failure.
const DETAILS_BYTES: usize = 64 * 1024;

/// Why a run or a request about a run failed, with the code of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunFailure {
    /// The exit code that `rollout run` has for this failure.
    pub code: u8,
    /// The failed operation and its cause.
    pub message: String,
    /// Details, one line each, such as every fault of a job document.
    #[serde(default)]
    pub details: Vec<String>,
    /// Suggested actions.
    #[serde(default)]
    pub hints: Vec<String>,
    /// Whether it ends by itself: the disk of the server takes no writes, and the run or the farm
    /// continues when that changes. Clients that wait for an end go on waiting.
    #[serde(default)]
    pub is_temporary: bool,
}

impl RunFailure {
    /// Keeps as many details as a record may have: a job may have thousands of faults, and runs that
    /// failed are kept.
    fn limit_details(&mut self) {
        let mut bytes = 0;
        let fits = |detail: &&String| {
            bytes += detail.len();
            bytes <= DETAILS_BYTES
        };
        let kept = self.details.iter().take_while(fits).count();
        let more = self.details.len() - kept;
        if more > 0 {
            self.details.truncate(kept);
            self.details.push(format!("{more} more"));
        }
    }
}

/// Why a session failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionFailure {
    /// In words.
    pub(super) failure: RunFailure,
    /// Whether files, the journal or the lock of a run are the cause, as on a disk that fails.
    pub(super) is_of_files: bool,
}

impl SessionFailure {
    /// The failure of a session with a fault.
    pub(super) fn of(fault: RunFault, explain: Explain) -> Self {
        let is_of_files = fault.is_of_files();
        Self { failure: fault.in_words(explain), is_of_files }
    }
}

impl From<RunFailure> for SessionFailure {
    /// A failure of another cause than files.
    fn from(failure: RunFailure) -> Self {
        Self { failure, is_of_files: false }
    }
}

/// A fault in the work of the daemon.
#[derive(Debug)]
pub enum RunFault {
    /// The configuration of a job is invalid.
    Config(ConfigErrors),
    /// A run cannot start or continue.
    Launch(Box<LaunchError>),
    /// A run cannot be read.
    View(RunViewError),
    /// Captured files cannot be read.
    Captured(CapturedError),
    /// A run cannot be exported.
    Export(ExportError),
}

/// Puts faults into words and gives them the codes of the command line.
pub type Explain = fn(RunFault) -> RunFailure;

impl RunFault {
    /// The fault in words for a user. Texts of a configuration quote the document, whose paths are the
    /// user's: they stay.
    pub(super) fn in_words(self, explain: Explain) -> RunFailure {
        let quotes_document = match &self {
            Self::Config(_) => true,
            Self::Launch(error) => error.is_config(),
            Self::View(_) | Self::Captured(_) | Self::Export(_) => false,
        };
        let mut failure = explain(self);
        if !quotes_document {
            hide_host_paths(&mut failure);
        }
        failure.limit_details();
        failure
    }

    /// Whether files, the journal or the lock of a run are its cause.
    pub(super) fn is_of_files(&self) -> bool {
        match self {
            Self::Config(errors) => {
                let is_unread =
                    |kind: ErrorKind| matches!(kind, ErrorKind::NotFound | ErrorKind::Unreadable);
                errors.errors.iter().any(|error| is_unread(error.kind))
            }
            Self::Launch(error) => error.is_of_files(),
            Self::View(_) | Self::Captured(_) | Self::Export(_) => false,
        }
    }

    /// The fault with the path of the daemon's copy of a document replaced by `job.yaml`: users know
    /// no paths of the server.
    #[must_use]
    pub(super) fn without_path(self, document: &Path) -> Self {
        match self {
            Self::Config(mut errors) => {
                for error in &mut errors.errors {
                    if error.file == document {
                        error.file = "job.yaml".into();
                    }
                }
                Self::Config(errors)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_has_as_many_details_as_a_record_may_have() {
        let failure = |details: Vec<String>| {
            let (message, hints) = ("m".to_owned(), Vec::new());
            let mut failure = RunFailure { code: 3, message, details, hints, is_temporary: false };
            failure.limit_details();
            failure.details
        };
        assert_eq!(failure(vec!["a".to_owned(); 3]), ["a"; 3]);
        let most = failure(vec!["x".repeat(2000); 1000]);
        assert_eq!((most.len(), most[32].as_str()), (33, "968 more"));
        assert_eq!(failure(vec!["x".repeat(DETAILS_BYTES + 1)]), ["1 more"]);
    }
}
