//! Evals: one idea tried on one commit of a repository, and measured.
//!
//! Commits travel as git bundles in the blob store: the repository's root once, whole and without
//! its history, every later commit as a small bundle that needs its parent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::spec::environment::EnvironmentSpec;
use crate::spec::task::TaskEnvironment;
use crate::template::Template;

/// Name of the results' file unless the search says otherwise.
pub const RESULTS_FILE: &str = "meta_config_sweep_results.csv";

/// One idea tried on one commit: everything resolved, its files stored as blobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalSpec {
    /// Whose eval it is.
    pub name: EvalOrigin,
    /// The commit that the idea is tried on, and how it is come by.
    pub repository: RepositorySpec,
    /// The idea's file.
    pub idea: BlobRef,
    /// Message of the commit that the idea becomes.
    pub message: String,
    /// What is run.
    pub commands: EvalCommands,
    /// Time limit of all commands together, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_sec: Option<f64>,
    /// Where the commands run.
    pub environment: TaskEnvironment,
    /// What makes that place.
    pub settings: EnvironmentSpec,
    /// Where the sweep runs when it is not there: in an environment of its own, with nothing but
    /// the files of the commit that the idea became.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_environment: Option<Box<SweepEnvironment>>,
    /// User that the commands run as; the environment's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Path of the results below the sweep's output directory.
    pub results_file: String,
    /// Configurations that the sweep shall run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_config_limit: Option<u64>,
    /// Variables of all commands; values unexpanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
}

/// An environment that the sweep has for itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepEnvironment {
    /// The place.
    pub environment: TaskEnvironment,
    /// What makes it.
    pub settings: EnvironmentSpec,
}

/// Whose eval it is: for variables of its commands, and for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EvalOrigin {
    /// The search.
    pub tree: String,
    /// The node whose commit it tries the idea on.
    pub node: String,
    /// The eval.
    pub eval: String,
}

/// A commit of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RepositorySpec {
    /// The first commit that is known of it.
    pub root: CommitBundle,
    /// The commits after it up to the wanted one, each with the one before it as its parent.
    #[serde(default)]
    pub chain: Vec<CommitBundle>,
}

impl RepositorySpec {
    /// The wanted commit.
    pub fn commit(&self) -> &str {
        &self.chain.last().unwrap_or(&self.root).commit
    }
}

/// A commit as a git bundle.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommitBundle {
    /// The commit, in hexadecimal digits.
    pub commit: String,
    /// The commit that has to be there already; none for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The bundle.
    pub blob: BlobRef,
}

/// What an eval runs, in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalCommands {
    /// Changes the checkout as the idea says.
    pub implement: EvalCommand,
    /// Must succeed for the change to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<EvalCommand>,
    /// Approves the change with code 0 and rejects it with any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<EvalCommand>,
    /// Measures the change: writes the results.
    pub sweep: EvalCommand,
}

/// A command of an eval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalCommand {
    /// Text of a shell script, run by `bash` in the checkout.
    pub script: String,
    /// Time limit, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_sec: Option<f64>,
    /// Variables of this command; values unexpanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
}

/// The commands of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalStage {
    /// Changes the checkout.
    Implement,
    /// Tests the change.
    Tests,
    /// Approves the change.
    Review,
    /// Measures it.
    Sweep,
    /// Writes ideas for a node, before there is any eval of them.
    Ideas,
}

/// A kind of command of which a search may have only so many at once, over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandKind {
    /// Writes ideas, implements or reviews one: asks a language model, as a rule.
    Llm,
    /// Sweeps.
    Sweep,
}

impl EvalStage {
    /// The kind of its command, if there is a limit for such.
    pub const fn kind(self) -> Option<CommandKind> {
        match self {
            Self::Implement | Self::Review | Self::Ideas => Some(CommandKind::Llm),
            Self::Tests => None,
            Self::Sweep => Some(CommandKind::Sweep),
        }
    }

    /// The word used in documents, paths and variables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Implement => "implement",
            Self::Tests => "tests",
            Self::Review => "review",
            Self::Sweep => "sweep",
            Self::Ideas => "ideas",
        }
    }
}
