//! Job and task files, read in passes: a file becomes a tree with locations (`yaml`, `task::toml`),
//! the tree becomes the file as written ([`JobFile`], [`TaskFile`]), and that becomes the resolved
//! job ([`Job`], `rollout_protocol::spec`) with defaults filled in. Every pass records its errors
//! in one [`Diagnostics`] and continues, so that all errors of all files are reported at once.
//!
//! No other module sees YAML, TOML or an unchecked value.

#[macro_use]
mod keys;

mod address;
mod agents_directory;
mod catalogue;
mod cli_overrides;
mod diagnostics;
mod document;
mod elements;
pub mod env_vars;
mod fetch_access;
mod file_diagnostics;
#[cfg(feature = "gateway")]
mod gateway_file;
mod harbor_job;
mod host_path;
mod inline_secrets;
mod job_file;
pub(crate) mod local_time;
mod location;
mod mcp_file;
mod profile;
mod provenance;
mod read;
mod reader;
pub mod reference;
mod resolve;
mod skill_dirs;
mod task;
pub(crate) mod trajectory_file;
mod tree_file;
mod value;
mod yaml;

#[cfg(test)]
mod tests;

#[cfg(feature = "serve")]
pub(crate) use address::is_remote_repository;
pub(crate) use address::{RepositoryPlace, without_logins_of, without_secrets, without_secrets_of};
pub use catalogue::{
    AgentCatalogue, AgentEntry, AgentOption, CatalogueError, InvalidEntry, ModelProvider,
    ModelServer, SessionEntry, find_provider, provider_names,
};
pub use cli_overrides::{CliDataset, CliSetting};
pub(crate) use diagnostics::nearest;
pub use diagnostics::{ConfigError, ConfigErrors, ConfigWarning, Diagnostics, ErrorKind};
pub use document::job_document;
pub use elements::agents::{Agent, AgentConfig};
pub use elements::built_in::{BUILT_IN_AGENTS, BuiltInAgent};
pub use elements::compose_overlays::ComposeOverlays;
#[cfg(feature = "serve")]
pub(crate) use elements::datasets::split_reference;
pub use elements::datasets::{
    DatasetRef, DatasetSource, PatternLocations, RegistryRef, TaskRef, TaskSelection, TaskSource,
};
pub(crate) use elements::datasets::{is_address, is_inside, repository_without_secrets};
pub use elements::environment::EnvironmentChanges;
pub(crate) use elements::environment::with_hosts;
pub(crate) use elements::extra_instructions::read_file as read_extra_instruction;
pub use elements::proxies::ProxyConfig;
pub use elements::resources::ResourceOverrides;
pub use elements::timeouts::{TaskTimeouts, TimeoutRules};
pub(crate) use elements::units;
pub use elements::variables::Variable;
pub use elements::verifier::{RuleOverrides, VerifierConfig};
pub use fetch_access::{FetchAccess, FetchNetwork};
pub(crate) use fetch_access::{RemoteHost, describe as describe_refusal};
#[cfg(feature = "gateway")]
pub use gateway_file::{GatewayFile, read_gateway};
pub(crate) use harbor_job::expected_retry;
pub use host_path::{HostAccess, HostPathRules, HostSource, SourceBounds};
pub use job_file::{JOB_REFERENCE, JobFile, LogLevel};
pub use location::SourceLocation;
pub(crate) use mcp_file::mcp_settings;
pub use profile::{
    ExploreRule, GradeThresholds, GuardedMetric, InvalidProfile, MetricDirection, ProfileError,
    ScoreMetric, ScoringProfile,
};
pub use provenance::KeyProvenance;
pub(crate) use read::{outside_task, task_text as read_task_text};
pub use resolve::{Job, JobOptions, job_from_settings, read_job};
pub use skill_dirs::PackedSkill;
pub(crate) use task::unreadable_task;
pub use task::{
    Demand, DemandKind, FormatChoice, FormatHints, FormatReason, PlannedFormat, TASK_REFERENCE,
    TaskFile, TaskMetadata, read_task,
};
pub use tree_file::{
    ArtifactPolicy, CommandEnvironment, ContextStrategy, DedupeScope, SearchBudgets, SearchCommand,
    SearchCommands, SearchLimits, SearchSettings, StepAgent, TREE_REFERENCE, TreeFile, TreeOptions,
    TreeOverrides, differences, read_tree, tree_document,
};
pub(crate) use value::{ConfigNode, ConfigValue};
pub(crate) use yaml::parse as parse_yaml;
