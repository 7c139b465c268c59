//! Steps of a task: agent phase, verification and artifacts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::environment::{Healthcheck, NetworkPolicy, TaskEnvironment};
use crate::artifact::ArtifactType;
use crate::blob::BlobRef;
use crate::template::Template;

/// One step of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepSpec {
    /// Its directory below `steps/`; absent for a task without steps of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its files.
    pub files: StepFiles,
    /// Agent phase.
    pub agent: AgentPhase,
    /// Verification.
    pub verifier: VerifierPhase,
    /// Readiness check before this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
    /// Minimum rewards, by key; below them the following steps do not run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub min_reward: BTreeMap<String, f64>,
    /// Files to keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// Variables of the solution, for the oracle; values unexpanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub solution_env: BTreeMap<String, Template>,
}

/// The files of a step. Except for the instruction and the trajectory, each is a deterministic tar
/// archive with paths relative to the part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFiles {
    /// `instruction.md` itself.
    pub instruction: Option<BlobRef>,
    /// `solution/`.
    pub solution: Option<BlobRef>,
    /// `tests/`.
    pub tests: Option<BlobRef>,
    /// `workdir/`: placed in the working directory before the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<BlobRef>,
    /// `trajectory.json` itself: a conversation that the agent continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<BlobRef>,
}

/// The agent phase of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentPhase {
    /// Time limit, seconds; none when absent.
    pub timeout_sec: Option<f64>,
    /// User that its scripts run as; the image's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Network access, if it differs from the environment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
}

/// The verification of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifierPhase {
    /// Time limit of the test script, seconds.
    pub timeout_sec: f64,
    /// User that the test script runs as; the image's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Network access, if it differs from the environment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Variables of the test script; values unexpanded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
    /// Commands that run in the agent's environment before its artifacts are collected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub collect: Vec<CollectHook>,
    /// Separate environment into which the artifacts are copied; the agent's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Box<TaskEnvironment>>,
}

/// A command that prepares a result for collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectHook {
    /// The command, run by the shell of the service's container.
    pub command: String,
    /// Service that it runs in; the agent's environment when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Time limit, seconds.
    pub timeout_sec: f64,
    /// User that it runs as; the image's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Files to keep from an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Absolute path of a file or directory inside the environment.
    pub source: String,
    /// Path below the trial's `artifacts/`; the source's own, without its leading `/`, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Patterns of files to exclude, relative to the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Service that it is taken from; the agent's environment when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Whether the changes that the agent makes in the source are kept, instead of the source.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
    /// Its type, for those who read it: it changes nothing about the collection.
    #[serde(default, rename = "type", skip_serializing_if = "ArtifactType::is_custom")]
    pub artifact_type: ArtifactType,
}

impl StepSpec {
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        let verifier = &self.verifier;
        let own = verifier.environment.iter().flat_map(|environment| environment.env.values());
        verifier.env.values().chain(own)
    }
}
