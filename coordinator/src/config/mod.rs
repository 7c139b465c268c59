//! Job and task files, in passes: a file becomes a tree with positions (`yaml`, `task::toml`), the
//! tree becomes what the user wrote ([`JobFile`], [`TaskFile`]), and that becomes what will run
//! ([`Job`], `rollout_protocol::spec`), with defaults filled in. Every pass records its faults in
//! one [`Problems`] and goes on, so that all faults of all files come at once.
//!
//! Nothing behind this module sees YAML or TOML, or a value that was not checked.

#[macro_use]
mod keys;

mod address;
mod document;
mod elements;
pub mod env_vars;
mod fields;
mod given;
mod job_file;
mod overlay;
mod problem;
mod profile;
mod provenance;
mod read;
pub mod reference;
mod resolve;
mod spot;
mod task;
mod tree;
mod tree_file;
mod yaml;

#[cfg(test)]
mod tests;

pub(crate) use address::without_secrets;
pub use document::document;
pub use elements::agents::{Agent, AgentFile};
pub use elements::datasets::{
    DatasetRef, DatasetSource, RegistryRef, Selection, TaskRef, TaskSource,
};
pub(crate) use elements::datasets::{is_address, is_inside};
#[cfg(any(feature = "docker", feature = "nats"))]
pub(crate) use elements::quantity;
pub use elements::resources::ResourceOverrides;
pub use elements::timeouts::{TaskTimeouts, TimeoutRules};
pub use elements::variables::Variable;
pub use elements::verifier::{RuleOverrides, VerifierFile};
pub use job_file::{JOB_REFERENCE, JobFile, LogLevel};
pub use overlay::{GivenDataset, Setting};
pub(crate) use problem::nearest;
pub use problem::{ConfigError, ConfigErrors, ConfigWarning, ErrorKind, Problems};
pub use profile::{
    Direction, Explore, Grades, Guarded, InvalidProfile, Metric, Profile, ProfileError,
};
pub use provenance::Provenance;
pub(crate) use read::text as read_text;
pub use resolve::{Job, Options, job_of_settings, read_job};
pub use spot::Spot;
pub use task::{
    About, Demand, DemandKind, FormatChoice, FormatHints, FormatReason, PlannedFormat,
    TASK_REFERENCE, TaskFile, read_task,
};
pub use tree_file::{
    ArtifactPolicy, Budgets, Command, Commands, ContextStrategy, DedupeScope, Limits, Place,
    SearchSettings, TREE_REFERENCE, TreeFile, TreeOptions, TreeOverrides, differences, read_tree,
    tree_document,
};
