//! Agents that follow the contract of a harness.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::harness::{HarnessManifest, IntegrationLevel};

/// Default path of the input document.
pub const INPUT_PATH: &str = "/out/trial_input.json";

/// Default path of the output document.
pub const OUTPUT_PATH: &str = "/out/trial_output.json";

/// Default path of the control file.
pub const CONTROL_PATH: &str = "/state/lab_control.json";

/// An agent that follows the contract of a harness: a command that reads an input document and
/// writes an output document. Paths are absolute paths in the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HarnessSpec {
    /// Script that runs first; a non-zero code ends the trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
    /// The command, for the shell of the environment.
    pub command: String,
    /// How much of the contract it implements.
    #[serde(default)]
    pub integration_level: IntegrationLevel,
    /// The file that it writes its events to, if it writes some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_path: Option<String>,
    /// The control file.
    pub control_path: String,
    /// The input document.
    pub input_path: String,
    /// The output document.
    pub output_path: String,
    /// Values for the harness, given to it in the input.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub bindings: Map<String, Value>,
}

impl HarnessSpec {
    /// A harness of the lowest level with the default paths.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            install: None,
            command: command.into(),
            integration_level: IntegrationLevel::default(),
            events_path: None,
            control_path: CONTROL_PATH.to_owned(),
            input_path: INPUT_PATH.to_owned(),
            output_path: OUTPUT_PATH.to_owned(),
            bindings: Map::new(),
        }
    }

    /// The parts of the contract that it implements.
    pub fn manifest(&self) -> HarnessManifest {
        HarnessManifest::new(self.integration_level, self.events_path.as_deref())
    }
}
