//! The manifest of a harness, `harness_manifest_v1`: which parts of the contract it implements.

use serde::{Deserialize, Serialize};

use super::integration_level::IntegrationLevel;

/// Name of the schema.
const SCHEMA: &str = "harness_manifest_v1";

/// Name of the schema of hook events.
const HOOKS_SCHEMA: &str = "hook_events_v1";

/// The parts of the contract that a harness implements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HarnessManifest {
    /// Name of the schema.
    schema_version: String,
    /// How much of the contract it implements.
    pub integration_level: IntegrationLevel,
    /// Its steps.
    pub step: StepDeclaration,
    /// Its hook events, if it writes some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<HooksDeclaration>,
}

/// Steps of a harness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepDeclaration {
    /// Meaning of a step, in the words of the harness.
    pub semantics: String,
}

/// Hook events of a harness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HooksDeclaration {
    /// Name of their schema.
    pub schema_version: String,
    /// Absolute path of their file in the environment.
    pub events_path: String,
}

/// Why a manifest contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The level needs hook events.
    #[error("integration level `{0}` needs a file of hook events")]
    HooksMissing(IntegrationLevel),
    /// The schema of the hook events is not known.
    #[error("hook events of the schema `{0}` cannot be read, only those of `hook_events_v1`")]
    HooksSchema(String),
}

impl HarnessManifest {
    /// The manifest of a harness that writes its events to `events_path`, if to any file.
    pub fn new(integration_level: IntegrationLevel, events_path: Option<&str>) -> Self {
        let hooks = events_path.map(|path| HooksDeclaration {
            schema_version: HOOKS_SCHEMA.to_owned(),
            events_path: path.to_owned(),
        });
        Self {
            schema_version: SCHEMA.to_owned(),
            integration_level,
            step: StepDeclaration { semantics: "decision_cycle".to_owned() },
            hooks,
        }
    }

    /// Checks that the manifest declares what its level needs.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn check(&self) -> Result<(), ManifestError> {
        match &self.hooks {
            None if self.integration_level.requires_events() => {
                Err(ManifestError::HooksMissing(self.integration_level))
            }
            Some(hooks) if hooks.schema_version != HOOKS_SCHEMA => {
                Err(ManifestError::HooksSchema(hooks.schema_version.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Whether a control must be acknowledged after each step.
    pub const fn requires_acks(&self) -> bool {
        self.integration_level.requires_acks(self.hooks.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_without_events_is_refused_where_level_requires_them() {
        for (name, level) in IntegrationLevel::NAMES {
            let checked = HarnessManifest::new(*level, None).check();
            assert_eq!(checked.is_err(), level.requires_events(), "{name}");
            assert_eq!(HarnessManifest::new(*level, Some("/e.jsonl")).check(), Ok(()), "{name}");
        }
    }

    #[test]
    fn manifest_with_other_hooks_schema_is_refused() {
        let mut manifest = HarnessManifest::new(IntegrationLevel::CliEvents, Some("/e.jsonl"));
        manifest.hooks.as_mut().expect("declared").schema_version = "hook_events_v2".to_owned();
        let error = manifest.check().expect_err("not known");
        assert_eq!(error, ManifestError::HooksSchema("hook_events_v2".to_owned()));
    }
}
