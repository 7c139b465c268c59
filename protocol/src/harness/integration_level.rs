//! Integration levels: how much of the contract a harness implements.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much of the contract a harness implements, in ascending order.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum IntegrationLevel {
    /// Reads the input and writes the output.
    #[default]
    CliBasic,
    /// Also writes hook events, and acknowledges controls between its steps.
    CliEvents,
    /// Sends traces of OpenTelemetry. Hook events are optional.
    Otel,
    /// Is controlled by a library that it calls.
    SdkControl,
    /// Also saves and restores checkpoints by the library.
    SdkFull,
}

impl IntegrationLevel {
    /// Every level by its name, in ascending order.
    pub const NAMES: &[(&'static str, Self)] = &[
        ("cli_basic", Self::CliBasic),
        ("cli_events", Self::CliEvents),
        ("otel", Self::Otel),
        ("sdk_control", Self::SdkControl),
        ("sdk_full", Self::SdkFull),
    ];

    /// The name in documents and job files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CliBasic => "cli_basic",
            Self::CliEvents => "cli_events",
            Self::Otel => "otel",
            Self::SdkControl => "sdk_control",
            Self::SdkFull => "sdk_full",
        }
    }

    /// Whether a harness of this level has to write hook events.
    pub const fn requires_events(self) -> bool {
        matches!(self, Self::CliEvents | Self::SdkControl | Self::SdkFull)
    }

    /// Whether every step of a harness of this level ends with an acknowledgement of a control,
    /// given whether it writes hook events.
    pub const fn requires_acks(self, writes_events: bool) -> bool {
        self.requires_events() || (writes_events && matches!(self, Self::Otel))
    }
}

impl fmt::Display for IntegrationLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integration_levels_are_ordered_and_named_as_serialized() {
        assert!(IntegrationLevel::NAMES.is_sorted_by_key(|(_, level)| level));
        for (name, level) in IntegrationLevel::NAMES {
            assert_eq!(level.as_str(), *name);
            let text = serde_json::to_string(level).expect("serializable");
            assert_eq!(text, format!("\"{name}\""));
        }
    }

    #[test]
    fn integration_level_requires_events_and_acks_by_table() {
        let by_level = IntegrationLevel::NAMES.iter().map(|(_, level)| {
            (level.requires_events(), level.requires_acks(true), level.requires_acks(false))
        });
        let expected = [
            (false, false, false),
            (true, true, true),
            (false, true, false),
            (true, true, true),
            (true, true, true),
        ];
        assert_eq!(by_level.collect::<Vec<_>>(), expected);
    }
}
