//! Tasks: the agent's environment, the instructions and the verification.

mod environment;
mod host_rule;
mod rules;
mod step;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::TrialError;
use crate::template::Template;

pub use environment::{Healthcheck, NetworkPolicy, TaskEnvironment};
pub use host_rule::{HostRule, InvalidHostRule, normal_name};
pub use rules::{AfterAgentError, ScriptRules, StepStrategy, TaskFormat, TestExit};
pub use step::{AgentPhase, Artifact, CollectHook, StepFiles, StepSpec, VerifierPhase};

/// A task ready to run: everything resolved, its files stored as blobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Name of the dataset.
    pub dataset: String,
    /// Name of the task within its dataset.
    pub name: String,
    /// Commit of the repository that the task was read from.
    pub git_commit_id: Option<String>,
    /// The format of its files.
    #[serde(default)]
    pub format: TaskFormat,
    /// The environment of the agent, and of the verifier too unless it has a separate one.
    pub environment: TaskEnvironment,
    /// Time limit of the agent's install script, seconds.
    pub install_sec: f64,
    /// The steps, run one after the other in one environment. A task without steps of its own has
    /// one without a name; there is always at least one.
    pub steps: Vec<StepSpec>,
    /// How the task's rewards are computed from those of several steps.
    #[serde(default)]
    pub strategy: StepStrategy,
    /// How the results of its scripts are interpreted.
    #[serde(default)]
    pub rules: ScriptRules,
    /// The rules under the other format, if the format is a guess.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_rules: Option<ScriptRules>,
    /// Tool servers that agents may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpServer>,
    /// Directory with skills for agents, inside the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills_dir: Option<String>,
    /// Why the task cannot run although the job is fine: its trials settle with this error without
    /// any environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<TrialError>,
    /// Like `fault`, but only for agents that call models: an error that does not affect `oracle` and
    /// `nop`.
    #[serde(default, rename = "script_fault", skip_serializing_if = "Option::is_none")]
    pub model_fault: Option<TrialError>,
    /// Like `fault`, but only for the oracle: an error of the solution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solution_fault: Option<TrialError>,
}

/// A server that speaks the Model Context Protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpServer {
    /// Name.
    pub name: String,
    /// How to reach it.
    #[serde(flatten)]
    pub transport: McpTransport,
}

impl McpServer {
    /// Whether it is reached over server-sent events.
    pub const fn has_sse(&self) -> bool {
        matches!(self.transport, McpTransport::Sse { .. })
    }
}

/// How a tool server is reached from inside the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "kebab-case")]
pub enum McpTransport {
    /// A program that the agent starts.
    Stdio {
        /// Program.
        command: String,
        /// Its arguments.
        #[serde(default)]
        args: Vec<String>,
    },
    /// Server-sent events.
    Sse {
        /// Address.
        url: String,
        /// Headers of every request; values unexpanded.
        #[serde(default)]
        headers: BTreeMap<String, Template>,
    },
    /// Streamable HTTP.
    StreamableHttp {
        /// Address.
        url: String,
        /// Headers of every request; values unexpanded.
        #[serde(default)]
        headers: BTreeMap<String, Template>,
    },
}

impl TaskSpec {
    /// A task with one step, no files and all defaults of the Rollout format.
    pub fn new(dataset: impl Into<String>, name: impl Into<String>) -> Self {
        let step = StepSpec {
            name: None,
            files: StepFiles::default(),
            agent: AgentPhase { timeout_sec: Some(600.0), ..AgentPhase::default() },
            verifier: VerifierPhase { timeout_sec: 600.0, ..VerifierPhase::default() },
            healthcheck: None,
            min_reward: BTreeMap::new(),
            artifacts: Vec::new(),
            solution_env: BTreeMap::new(),
        };
        Self {
            dataset: dataset.into(),
            name: name.into(),
            git_commit_id: None,
            format: TaskFormat::Rollout,
            environment: TaskEnvironment::default(),
            install_sec: 300.0,
            steps: vec![step],
            strategy: StepStrategy::Mean,
            rules: ScriptRules::for_format(TaskFormat::Rollout),
            other_rules: None,
            mcp_servers: Vec::new(),
            skills_dir: None,
            fault: None,
            model_fault: None,
            solution_fault: None,
        }
    }

    /// All values that may refer to variables of the worker, for any agent. Excludes the variables
    /// of a solution: only the oracle needs them, see [`StepSpec::solution_env`].
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        let servers = self.mcp_servers.iter().flat_map(McpServer::templates);
        let steps = self.steps.iter().flat_map(StepSpec::templates);
        self.environment.env.values().chain(steps).chain(servers)
    }
}

impl McpServer {
    fn templates(&self) -> impl Iterator<Item = &Template> {
        let headers = match &self.transport {
            McpTransport::Stdio { .. } => None,
            McpTransport::Sse { headers, .. } | McpTransport::StreamableHttp { headers, .. } => {
                Some(headers)
            }
        };
        headers.into_iter().flat_map(|headers| headers.values())
    }
}
