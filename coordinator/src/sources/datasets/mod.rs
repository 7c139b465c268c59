//! Datasets and tasks on local disk, where those of repositories are brought first.
//!
//! A dataset is a directory whose direct sub-directories with a `task.toml` are its tasks; the path
//! of one task's directory works too. A dataset is named after its directory, or, for a single
//! task, after the directory that the task is in; a job file's `name` wins. Relative paths count
//! from the job file's directory.
//!
//! A task file that does not parse or has a bad value refuses the run. A task that lacks a file, or
//! asks for something that the environment does not have, is kept with its fault: its trials settle
//! as `task_invalid`, unless the run is strict.

mod bundle;
mod capability;
mod discover;
mod fingerprint;
mod format_view;
mod git;
mod harborignore;
mod instruction;
mod layout;
mod load;
mod pack;
mod pack_cache;
mod planned_formats;
mod resolve;
mod select;
mod spec;
mod task;

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
pub(crate) use instruction::read as read_instruction;
pub(crate) use spec::task_spec as specification;

/// The formats that the plan of a run records, by dataset and task.
pub type PlannedFormats = HashMap<(String, String), PlannedFormat>;

/// A dataset with its tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// Name, distinct among the datasets of a job also when case is ignored.
    pub name: String,
    /// Version, for people.
    pub version: Option<String>,
    /// Description in the registry.
    pub description: Option<String>,
    /// The tasks, by name.
    pub tasks: Vec<DatasetTask>,
}

/// A task as it lies on disk.
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
    /// What it has.
    pub parts: TaskParts,
    /// Why it cannot run under any agent.
    pub fault: Option<TrialError>,
    /// Why it cannot run under agents with scripts.
    pub script_fault: Option<TrialError>,
}

/// The instruction of a task or step.
const INSTRUCTION_FILE: &str = "instruction.md";

/// Which parts of a task are there and needed, as paths in its directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskParts {
    /// The build context.
    pub context: Option<PathBuf>,
    /// Name of the file in it that describes services beside the environment.
    pub compose: Option<String>,
    /// Those of each step, in the order of the steps.
    pub steps: Vec<StepParts>,
}

/// Which parts of a step are there and needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepParts {
    /// The instruction, whether it is there or not.
    pub instruction: PathBuf,
    /// The solution, with a `solve.sh`.
    pub solution: Option<PathBuf>,
    /// Directories of tests; what is in a later one goes over what is in an earlier one.
    pub tests: Vec<PathBuf>,
    /// What is placed in the working directory before the step.
    pub workdir: Option<PathBuf>,
    /// The build context of the verifier's own environment.
    pub verifier_context: Option<PathBuf>,
    /// Name of the file in it that describes services.
    pub verifier_compose: Option<String>,
}
