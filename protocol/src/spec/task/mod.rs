//! Tasks: the environment an agent works in, what it is asked there, and how that is judged.

mod environment;
mod rules;
mod step;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::TrialError;
use crate::template::Template;

pub use environment::{Healthcheck, NetworkPolicy, TaskEnvironment};
pub use rules::{AfterAgentError, ScriptRules, StepStrategy, TaskFormat, TestExit};
pub use step::{AgentPhase, Artifact, CollectHook, StepFiles, StepSpec, VerifierPhase};

/// A task as it runs: everything resolved, its files stored as blobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Name of the dataset.
    pub dataset: String,
    /// Name of the task within its dataset.
    pub name: String,
    /// Commit of the repository that the task was read from.
    pub git_commit_id: Option<String>,
    /// The format its files are in.
    #[serde(default)]
    pub format: TaskFormat,
    /// Where the agent works, and the verifier too unless it has an environment of its own.
    pub environment: TaskEnvironment,
    /// Time limit of the agent's install script, seconds.
    pub install_sec: f64,
    /// What is asked, one after the other in one environment. A task without steps of its own has
    /// one without a name; there is always at least one.
    pub steps: Vec<StepSpec>,
    /// How the rewards of several steps become the task's.
    #[serde(default)]
    pub strategy: StepStrategy,
    /// How the outcome of its scripts is judged.
    #[serde(default)]
    pub rules: ScriptRules,
    /// Servers of tools that agents may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpServer>,
    /// Directory with skills for agents, inside the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills_dir: Option<String>,
    /// Why the task cannot run although the job is fine: its trials settle with this error without
    /// any environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<TrialError>,
    /// The same where the agent has scripts: for what the built-in agents do not need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_fault: Option<TrialError>,
}

/// A server that speaks the Model Context Protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpServer {
    /// Name.
    pub name: String,
    /// How it is reached.
    #[serde(flatten)]
    pub transport: McpTransport,
}

/// How a server of tools is reached from inside the environment.
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
    /// A task with one step, no files and every default of the Rollout format.
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
            mcp_servers: Vec::new(),
            skills_dir: None,
            fault: None,
            script_fault: None,
        }
    }

    /// Every value that may refer to variables of the worker, whichever agent runs. The variables
    /// of a solution are not in it: only the oracle needs them, see [`StepSpec::solution_env`].
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
