//! Settings common to all trials of a job.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::spec::budget::TryBudget;
use crate::spec::environment::EnvironmentSpec;
use crate::spec::gateway::GatewaySpec;
use crate::spec::task::Artifact;
use crate::template::Template;

/// The part of a job that can affect a trial's outcome. Concurrency, retry, metrics and the number
/// of attempts are not in it: they may change between sessions of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialSettings {
    /// Absolute path of the instruction inside the environment.
    pub instruction_path: String,
    /// Where trials run.
    pub environment: EnvironmentSpec,
    /// How they are verified.
    pub verifier: VerifierSettings,
    /// Files to keep of every trial, in addition to those of its task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// Texts after the instruction of every task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_instructions: Vec<String>,
    /// Texts of compose files that are merged onto those of the agents' environments, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compose_overlays: Vec<String>,
    /// Install the agents and end: nothing attempts or verifies a task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub install_only: bool,
    /// The model servers that agents call through the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewaySpec>,
    /// Budget of the model calls of each execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<TryBudget>,
    /// Variables whose values are secrets: masked in all output, and no artifact holds one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub secrets: BTreeSet<String>,
}

/// How trials are verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifierSettings {
    /// Run no verifier: trials end `unverified`.
    pub disable: bool,
    /// End all processes that the agent left running before verification, also after a normal end.
    pub kill_agent_processes: bool,
    /// Which of the verifier's several numbers is the reward, instead of `reward` or the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_key: Option<String>,
    /// Variables of the test scripts, in addition to the tasks' own; values unexpanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
}
