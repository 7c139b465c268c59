//! Failures of runs and requests, as users see them.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::hidden_paths::hide_host_paths;
use crate::config::ConfigErrors;
use crate::launch::LaunchError;
use crate::results::export::ExportError;
use crate::results::view::{CapturedError, RunViewError};

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
        failure
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
