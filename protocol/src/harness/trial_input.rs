//! The input of a harness, `trial_input_v1`.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::TrialIds;
use super::integration_level::IntegrationLevel;

/// Name of the schema.
const SCHEMA: &str = "trial_input_v1";

/// Name of the profile that fits all trials: each one gets a fresh environment.
const PROFILE: &str = "hermetic_functional_v2";

/// The input of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialInput {
    /// Name of the schema.
    schema_version: String,
    /// The trial.
    pub ids: TrialIds,
    /// The task: name, instruction, and so on.
    pub task: Map<String, Value>,
    /// Kind of work.
    pub workload: TrialWorkload,
    /// Values that the job gives to the harness.
    pub bindings: Map<String, Value>,
    /// Design of the experiment.
    pub design: TrialDesign,
    /// Where and how it runs.
    pub runtime: TrialRuntime,
    /// Extensions.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub ext: Map<String, Value>,
}

/// Kind of work of a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialWorkload {
    /// The kind.
    #[serde(rename = "type")]
    pub kind: WorkloadType,
}

/// A kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadType {
    /// An agent attempts a task.
    #[default]
    AgentHarness,
    /// A model is trained.
    Trainer,
    /// Anything else.
    Custom,
}

/// Design of an experiment, as far as a trial has to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialDesign {
    /// How trials are kept apart.
    pub sanitization_profile: String,
    /// How much of the contract the harness implements.
    pub integration_level: IntegrationLevel,
}

/// Where and how a trial runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialRuntime {
    /// Directories.
    pub paths: TrialPaths,
    /// Network access.
    pub network: TrialNetwork,
    /// The control file.
    pub control_plane: ControlPlane,
    /// Time limits, if there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<TrialTimeouts>,
}

/// Directories in the environment; absolute paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialPaths {
    /// Working directory, with the files of the task.
    pub workspace: String,
    /// Directory of the control file.
    pub state: String,
    /// Directory with data of the task.
    pub dataset: String,
    /// Directory of the output file.
    pub out: String,
    /// Temporary files.
    pub tmp: String,
}

/// Network access of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialNetwork {
    /// The requested access.
    pub mode_requested: RequestedNetwork,
    /// Hosts that can be reached in the mode `allowlist_enforced`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
}

/// Requested network access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestedNetwork {
    /// None.
    None,
    /// All.
    Full,
    /// Only certain hosts.
    AllowlistEnforced,
}

/// The control file of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlPlane {
    /// How controls arrive.
    pub mode: ControlPlaneMode,
    /// Absolute path of the file.
    pub path: String,
}

/// How controls arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlPlaneMode {
    /// By a file.
    File,
    /// By a library.
    Sdk,
}

/// Time limits of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialTimeouts {
    /// Of the whole attempt, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_seconds: Option<NonZeroU64>,
    /// Of one call of a tool, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_seconds: Option<NonZeroU64>,
}

impl TrialInput {
    /// The input of an agent's attempt at a task.
    pub fn new(
        ids: TrialIds,
        task: Map<String, Value>,
        bindings: Map<String, Value>,
        integration_level: IntegrationLevel,
        runtime: TrialRuntime,
    ) -> Self {
        let sanitization_profile = PROFILE.to_owned();
        Self {
            schema_version: SCHEMA.to_owned(),
            ids,
            task,
            workload: TrialWorkload::default(),
            bindings,
            design: TrialDesign { sanitization_profile, integration_level },
            runtime,
            ext: Map::new(),
        }
    }

    /// The file of this input: one line of JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("an input has only text keys");
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::testing;

    #[test]
    fn trial_input_has_schema_fields_and_no_others() {
        let runtime = TrialRuntime {
            paths: TrialPaths {
                workspace: "/app".into(),
                state: "/state".into(),
                dataset: "/app".into(),
                out: "/out".into(),
                tmp: "/tmp".into(),
            },
            network: TrialNetwork {
                mode_requested: RequestedNetwork::AllowlistEnforced,
                allowed_hosts: vec!["example.org".into()],
            },
            control_plane: ControlPlane {
                mode: ControlPlaneMode::File,
                path: "/state/lab_control.json".into(),
            },
            timeouts: Some(TrialTimeouts {
                trial_seconds: NonZeroU64::new(60),
                tool_seconds: None,
            }),
        };
        let level = IntegrationLevel::CliEvents;
        let input = TrialInput::new(testing::ids(), Map::new(), Map::new(), level, runtime);
        let value: Value = serde_json::from_slice(&input.to_bytes()).expect("JSON");
        let expected = serde_json::json!({
            "schema_version": "trial_input_v1",
            "ids": testing::ids(),
            "task": {},
            "workload": { "type": "agent_harness" },
            "bindings": {},
            "design": {
                "sanitization_profile": "hermetic_functional_v2",
                "integration_level": "cli_events",
            },
            "runtime": {
                "paths": {
                    "workspace": "/app", "state": "/state", "dataset": "/app", "out": "/out",
                    "tmp": "/tmp",
                },
                "network": {
                    "mode_requested": "allowlist_enforced", "allowed_hosts": ["example.org"],
                },
                "control_plane": { "mode": "file", "path": "/state/lab_control.json" },
                "timeouts": { "trial_seconds": 60 },
            },
        });
        assert_eq!(value, expected);
        let mut more = value.clone();
        more["more"] = Value::Null;
        assert!(serde_json::from_value::<TrialInput>(more).is_err());
        assert_eq!(serde_json::from_value::<TrialInput>(value).expect("valid"), input);
    }
}
