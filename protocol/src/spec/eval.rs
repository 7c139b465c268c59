//! Evals: one idea tried on one commit of a repository, and measured.
//!
//! Commits travel as git bundles in the blob store: the repository's root once, whole and without
//! its history, every later commit as a small bundle that needs its parent.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::spec::agent::AgentSpec;
use crate::spec::budget::TryBudget;
use crate::spec::environment::EnvironmentSpec;
use crate::spec::gateway::GatewaySpec;
use crate::spec::task::TaskEnvironment;
use crate::template::Template;

/// Default name of the results file.
pub const RESULTS_FILE: &str = "meta_config_sweep_results.csv";

/// One idea tried on one commit: everything resolved, its files stored as blobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalSpec {
    /// The eval's identity.
    pub name: EvalOrigin,
    /// The commit that the idea is tried on, and the bundles that contain it.
    pub repository: RepositorySpec,
    /// The idea's file.
    pub idea: BlobRef,
    /// Message of the commit made from the idea.
    pub message: String,
    /// The commands.
    pub commands: EvalCommands,
    /// Time limit of all commands together, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_sec: Option<f64>,
    /// Where the commands run.
    pub environment: TaskEnvironment,
    /// Provider and settings of the environment.
    pub settings: EnvironmentSpec,
    /// The separate environment of the sweep, if it does not run with the other commands: it holds
    /// nothing but the files of the commit made from the idea.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_environment: Option<Box<SweepEnvironment>>,
    /// User that the commands run as; the environment's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Path of the results file below the sweep's output directory.
    pub results_file: String,
    /// Number of configurations that the sweep should run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_config_limit: Option<u64>,
    /// Variables of all commands; values unexpanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
    /// The model servers of its agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewaySpec>,
    /// Variables whose values are secrets: masked in all output.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub secrets: BTreeSet<String>,
}

/// A separate environment for the sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepEnvironment {
    /// The environment.
    pub environment: TaskEnvironment,
    /// Provider and settings of the environment.
    pub settings: EnvironmentSpec,
}

/// The identity of an eval: for variables of its commands, and for users.
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
    /// The first known commit.
    pub root: CommitBundle,
    /// Later commits up to the requested one, each with its predecessor as its parent.
    #[serde(default)]
    pub chain: Vec<CommitBundle>,
}

impl RepositorySpec {
    /// The requested commit.
    pub fn commit(&self) -> &str {
        &self.chain.last().unwrap_or(&self.root).commit
    }
}

/// A commit as a git bundle.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommitBundle {
    /// The commit, in hexadecimal digits.
    pub commit: String,
    /// The commit that must be present already; none for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The bundle.
    pub blob: BlobRef,
}

/// The commands of an eval, in execution order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalCommands {
    /// Changes the checkout to implement the idea.
    pub implement: EvalCommand,
    /// Must succeed for the change to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<EvalCommand>,
    /// Approves the change with code 0 and rejects it with any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<EvalCommand>,
    /// Measures the change: writes the results file.
    pub sweep: EvalCommand,
}

impl EvalCommands {
    /// The command of a stage, if there is one.
    pub fn command(&self, stage: EvalStage) -> Option<&EvalCommand> {
        match stage {
            EvalStage::Implement => Some(&self.implement),
            EvalStage::Tests => self.tests.as_ref(),
            EvalStage::Review => self.review.as_ref(),
            EvalStage::Sweep => Some(&self.sweep),
            // It runs before there is an eval.
            EvalStage::Ideas => None,
        }
    }
}

/// A command of an eval: a script or an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalCommand {
    /// Text of a shell script, run by `bash` in the checkout; empty if there is an agent. It is
    /// absent then, so that a worker that knows no agents refuses the command.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub script: String,
    /// The agent that does the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<CommandAgent>>,
    /// Time limit, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_sec: Option<f64>,
    /// Variables of this command; values unexpanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
}

/// An agent that does the work of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandAgent {
    /// The agent: scripts, or the loop of the worker. The variables of its scripts are those of the
    /// command.
    pub spec: AgentSpec,
    /// Template of its prompt; see [`prompt`](crate::spec::prompt).
    pub prompt: String,
    /// The metrics of the search, for the prompt.
    pub metrics: String,
    /// Limits of its model calls each time that it works; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<TryBudget>,
}

impl CommandAgent {
    /// Default time limit of the install script, seconds.
    pub const INSTALL_SEC: f64 = 600.0;

    /// Time limit of the install script, seconds.
    pub fn install_sec(&self) -> f64 {
        self.spec.limits.install_sec.unwrap_or(Self::INSTALL_SEC)
    }
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

/// A kind of command whose concurrency a search can limit, over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandKind {
    /// Writes, implements or reviews ideas: usually calls a language model.
    Llm,
    /// Sweeps.
    Sweep,
}

impl EvalStage {
    /// The kind of its command, if that kind can be limited.
    pub const fn kind(self) -> Option<CommandKind> {
        match self {
            Self::Implement | Self::Review | Self::Ideas => Some(CommandKind::Llm),
            Self::Tests => None,
            Self::Sweep => Some(CommandKind::Sweep),
        }
    }

    /// The name used in documents, paths and variables.
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
