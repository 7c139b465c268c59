//! Datasets and tasks on local disk; tasks of repositories are fetched first.
//!
//! A dataset is a directory whose direct subdirectories with a `task.toml` are its tasks; the path
//! of a single task's directory is also valid. A dataset is named after its directory, or for a
//! single task, after the parent directory of the task; a job file's `name` wins. Relative paths
//! are relative to the job file's directory.
//!
//! A task that cannot be read, that its repository lacks, that lacks a file, or that asks for
//! something that the environment does not support, is kept with its fault: its trials settle as
//! `task_invalid` or `task_not_found`, unless the run is strict. So are those of a task with a link
//! out of it, which is never followed. A variable that is set, or a host, that is not allowed, and a
//! repository that does not answer, refuse the run.

mod bundle;
mod capability;
mod discover;
mod faults;
mod fingerprint;
mod format_view;
mod git;
mod harborignore;
mod host_rules;
mod image_rules;
mod instruction;
mod layout;
mod line_ends;
mod load;
mod pack;
mod pack_cache;
mod planned_formats;
mod registry_names;
mod resolve;
mod select;
mod spec;
mod task;
mod trajectory;
mod upload_entries;
mod upload_ignore;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;

use rollout_protocol::error::TrialError;

use crate::config::{PlannedFormat, TaskFile};

pub use bundle::{BundleError, BundleSink, TaskBundle, bundle};
pub use format_view::{FormatView, formats};
pub use load::load;
pub use pack_cache::PackCache;
pub use planned_formats::read_planned_formats;

pub(crate) use capability::trajectory_files;
pub(crate) use discover::TASK_FILE;
pub(crate) use git::checked_out_commit;
pub(crate) use instruction::read as read_instruction;
pub(crate) use line_ends::{has_windows_line_ends, solution_line_end_errors};
pub(crate) use pack::check as check_packing;
pub(crate) use spec::task_spec as specification;
pub(crate) use task::unset_solution_variables;
pub(crate) use upload_entries::UploadEntries;

/// The task formats recorded in the plan of a run, by dataset and task.
pub type PlannedFormats = HashMap<(String, String), PlannedFormat>;

/// A dataset with its tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// Name; distinct among the datasets of a job even if case is ignored.
    pub name: String,
    /// Version, informational.
    pub version: Option<String>,
    /// Description in the registry.
    pub description: Option<String>,
    /// The tasks, by name.
    pub tasks: Vec<DatasetTask>,
}

/// A task on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetTask {
    /// Name: that of its directory.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Its task file.
    pub file: TaskFile,
    /// Commit of the repository around it.
    pub git_commit_id: Option<String>,
    /// Its parts.
    pub parts: TaskParts,
    /// Reason why it cannot run under any agent.
    pub fault: Option<TrialError>,
    /// Reason why it cannot run under agents that call models.
    pub model_fault: Option<TrialError>,
    /// Reason why it cannot run under the oracle.
    pub solution_fault: Option<TrialError>,
}

/// File name of the instruction of a task or step.
const INSTRUCTION_FILE: &str = "instruction.md";

/// The parts of a task that exist and are needed, as paths in its directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskParts {
    /// The build context.
    pub context: Option<PathBuf>,
    /// Files for the working directory of its named image.
    pub workdir_files: Option<PathBuf>,
    /// Name of its compose file.
    pub compose: Option<String>,
    /// Parts of each step, in step order.
    pub steps: Vec<StepParts>,
}

/// The parts of a step that exist and are needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepParts {
    /// The instruction; may be missing.
    pub instruction: PathBuf,
    /// The solution, with a `solve.sh`.
    pub solution: Option<PathBuf>,
    /// Directories of tests; later ones override earlier ones.
    pub tests: Vec<PathBuf>,
    /// Files copied into the working directory before the step.
    pub workdir: Option<PathBuf>,
    /// The build context of the verifier's own environment.
    pub verifier_context: Option<PathBuf>,
    /// Name of its compose file.
    pub verifier_compose: Option<String>,
    /// Whether that environment has the image, and the files, of the agent's.
    pub verifier_shares_image: bool,
}
