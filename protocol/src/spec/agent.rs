//! Agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::spec::harness::HarnessSpec;
use crate::spec::task::{NetworkPolicy, StepSpec};
use crate::template::Template;

/// An agent definition; its digest is part of what a trial runs under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// Name, also the directory of its results.
    pub name: String,
    /// Its kind.
    pub kind: AgentKind,
    /// Variables for install, execute and verification scripts; values unexpanded.
    #[serde(default)]
    pub env: BTreeMap<String, Template>,
    /// Time limits that differ from the tasks'.
    #[serde(default, skip_serializing_if = "AgentLimits::are_none")]
    pub limits: AgentLimits,
    /// Whether its install script depends on nothing but the image, so that it may run once for all
    /// trials with one image, as root and without secrets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub install_once: bool,
    /// The model that it is asked to use; its own choice when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<AgentModel>,
    /// Parts of tasks that it can use, and its options in them.
    #[serde(default, skip_serializing_if = "AgentTaskOptions::are_default")]
    pub task_options: AgentTaskOptions,
    /// How its own session files count its model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_calls: Option<Box<SessionFormat>>,
}

/// How the model calls in the files of an agent's own session are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFormat {
    /// Pattern of the files, below `/logs/agent`: `*` stops at a slash, `**` does not.
    pub files: String,
    /// JSON pointers of the lists of records in a file; each line is a record if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<String>,
    /// JSON pointer of the id of a call in a record: of records with the same one, the last one counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// JSON pointers of numbers in a record, whose sum is its input tokens, cached ones included.
    pub input_tokens: Vec<String>,
    /// The same of its output tokens, reasoning included. A record without any is not counted.
    pub output_tokens: Vec<String>,
}

/// Parts of tasks that an agent can use, and its options in them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTaskOptions {
    /// Features of tasks that it cannot use: tasks that have them are unsupported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<TaskFeature>,
    /// Hosts that it may reach besides those of a task with limited network access.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_allowed_hosts: Vec<String>,
    /// Whether it continues its conversation in the next step of a task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resume_trajectory: bool,
    /// The conversation that it continues in the first step, instead of that of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<BlobRef>,
    /// Skills of the job, beside those of the task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<AgentSkill>,
}

/// A skill that a job gives to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSkill {
    /// Name of its directory among the skills.
    pub name: String,
    /// The content of its directory.
    pub archive: BlobRef,
}

/// A feature of a task that agents use in their own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskFeature {
    /// Tool servers.
    Mcp,
    /// Tool servers with server-sent events.
    McpSse,
    /// Skills.
    Skills,
    /// A conversation to begin with.
    Trajectory,
}

impl TaskFeature {
    /// The name used in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::McpSse => "mcp_sse",
            Self::Skills => "skills",
            Self::Trajectory => "trajectory",
        }
    }

    /// The feature in a sentence.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Mcp => "MCP servers",
            Self::McpSse => "MCP servers with SSE",
            Self::Skills => "skills",
            Self::Trajectory => "an initial conversation",
        }
    }
}

impl AgentTaskOptions {
    fn are_default(&self) -> bool {
        *self == Self::default()
    }
}

impl AgentSpec {
    /// Whether it can use a feature of tasks. Agents that do nothing of their own need none.
    pub fn can_use(&self, feature: TaskFeature) -> bool {
        match self.kind {
            AgentKind::Oracle | AgentKind::Nop => true,
            AgentKind::Shell(_) => !matches!(feature, TaskFeature::Mcp | TaskFeature::McpSse),
            AgentKind::Script { .. } | AgentKind::Harness(_) => {
                !self.task_options.unsupported.contains(&feature)
            }
        }
    }

    /// The conversation that it continues in a step, the first of which has the index 0.
    pub fn trajectory<'a>(&'a self, index: usize, step: &'a StepSpec) -> Option<&'a BlobRef> {
        let own = self.task_options.trajectory.as_ref().filter(|_| index == 0);
        own.or(step.files.trajectory.as_ref())
    }

    /// The network policy of its phase, from that of the task: the hosts that the job adds are
    /// allowed too.
    pub fn network(&self, of_task: &NetworkPolicy) -> NetworkPolicy {
        let added = &self.task_options.extra_allowed_hosts;
        match of_task {
            NetworkPolicy::NoNetwork if !added.is_empty() => {
                NetworkPolicy::Allowlist(added.clone())
            }
            NetworkPolicy::Allowlist(hosts) => {
                NetworkPolicy::Allowlist(hosts.iter().chain(added).cloned().collect())
            }
            NetworkPolicy::Public | NetworkPolicy::NoNetwork => of_task.clone(),
        }
    }
}

/// The model of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentModel {
    /// Provider, the part before the first `/` of `PROVIDER/MODEL`.
    pub provider: String,
    /// Name of the model at its provider.
    pub name: String,
    /// Name of the model server of the gateway that the agent's calls go to, whatever other servers
    /// the job has.
    pub upstream: String,
}

/// Time limits of an agent in place of its tasks', seconds; include the job's multipliers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentLimits {
    /// Limit of the install script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_sec: Option<f64>,
    /// Limit of the execute script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execute_sec: Option<f64>,
    /// Ceiling for the execute script, applies to agent and task limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execute_max_sec: Option<f64>,
}

impl AgentLimits {
    fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Time limit of the execute script for a task with limit `task`; none when absent.
    pub fn execute(&self, task: Option<f64>) -> Option<f64> {
        match (self.execute_sec.or(task), self.execute_max_sec) {
            (Some(limit), Some(most)) => Some(limit.min(most)),
            (limit, most) => limit.or(most),
        }
    }
}

/// Kind of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentKind {
    /// Copies the task's `solution/` to `/oracle` and runs `bash /oracle/solve.sh`.
    Oracle,
    /// Does nothing: the reward of an untouched environment.
    Nop,
    /// Scripts from the job file.
    Script {
        /// Runs first; a non-zero code ends the trial.
        install: Option<String>,
        /// Attempts the task.
        execute: Option<String>,
    },
    /// A command that follows the contract of [`crate::harness`].
    Harness(Box<HarnessSpec>),
    /// A loop of model calls and shell commands, run by the worker; needs a model.
    Shell(ShellSpec),
}

/// The loop of model calls and shell commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShellSpec {
    /// Most model calls of a step.
    pub max_turns: u32,
    /// Time limit of a command, seconds; then it is killed, and the model is told.
    pub command_sec: f64,
    /// System prompt in place of the built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
}

impl ShellSpec {
    /// Most model calls of a step, unless the job says otherwise.
    pub const MAX_TURNS: u32 = 100;
    /// Time limit of a command, unless the job says otherwise, seconds.
    pub const COMMAND_SEC: f64 = 300.0;
}

impl Default for ShellSpec {
    fn default() -> Self {
        Self { max_turns: Self::MAX_TURNS, command_sec: Self::COMMAND_SEC, system_prompt: None }
    }
}

impl AgentKind {
    /// Whether it runs scripts or commands of the job file, which may need tools, users or a
    /// network of their own.
    pub const fn runs_own_scripts(&self) -> bool {
        matches!(self, Self::Script { .. } | Self::Harness(_))
    }

    /// Whether it calls models.
    pub const fn calls_models(&self) -> bool {
        matches!(self, Self::Script { .. } | Self::Harness(_) | Self::Shell(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_job_are_added_to_limited_networks_only() {
        let mut agent = AgentSpec {
            name: "a".into(),
            kind: AgentKind::Nop,
            env: BTreeMap::new(),
            limits: AgentLimits::default(),
            install_once: false,
            model: None,
            task_options: AgentTaskOptions::default(),
            session_calls: None,
        };
        let list = |hosts: &[&str]| {
            NetworkPolicy::Allowlist(hosts.iter().map(|host| (*host).to_owned()).collect())
        };
        let (public, none) = (NetworkPolicy::Public, NetworkPolicy::NoNetwork);
        for policy in [&public, &none, &list(&["a.b"])] {
            assert_eq!(agent.network(policy), *policy);
        }
        agent.task_options.extra_allowed_hosts = vec!["c.d".into()];
        assert_eq!(agent.network(&public), public);
        assert_eq!(agent.network(&none), list(&["c.d"]));
        assert_eq!(agent.network(&list(&["a.b"])), list(&["a.b", "c.d"]));
    }
}
