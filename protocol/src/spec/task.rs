//! Tasks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::error::TrialError;
use crate::spec::resources::Resources;
use crate::spec::timeout::Timeouts;
use crate::template::Template;

/// A task as it runs: everything resolved, its files stored as blobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Name of the dataset.
    pub dataset: String,
    /// Name of the task within its dataset.
    pub name: String,
    /// Commit of the repository that the task was read from.
    pub git_commit_id: Option<String>,
    /// Image to use instead of building one.
    pub docker_image: Option<String>,
    /// Ceilings, after the job's overrides.
    pub resources: Resources,
    /// Time limits, after the job's multiplier, override and ceiling.
    pub timeouts: Timeouts,
    /// Variables that the task file sets for every script; values unexpanded.
    #[serde(default)]
    pub env: BTreeMap<String, Template>,
    /// The task's files.
    pub files: TaskFiles,
    /// Why the task cannot run although the job is fine: its trials settle with this error without
    /// any environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<TrialError>,
}

/// The files of a task, each part a deterministic tar archive with paths relative to the part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFiles {
    /// `instruction.md` itself.
    pub instruction: Option<BlobRef>,
    /// `environment/`: the build context.
    pub environment: Option<BlobRef>,
    /// `solution/`.
    pub solution: Option<BlobRef>,
    /// `tests/`.
    pub tests: Option<BlobRef>,
}
