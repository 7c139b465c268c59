//! The result files of a run that are written beside its records.

use serde::{Deserialize, Serialize};

/// Result files to write for a run. Records, blobs and tables have everything in every mode, so a
/// later session, or an export, can write the rest.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum MaterializeMode {
    /// Files of the job only: `config.json`, `result.json`, tables
    None,
    /// Also a directory for every trial, with `result.json` and `error.txt`
    MetadataOnly,
    /// Also the captured output of scripts and builds, and documents of a harness
    OutputsOnly,
    /// Also logs and artifacts
    #[default]
    Full,
}

impl MaterializeMode {
    /// Whether trials have directories.
    pub const fn has_trial_dirs(self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether captured output is written.
    pub const fn has_outputs(self) -> bool {
        matches!(self, Self::OutputsOnly | Self::Full)
    }

    /// Whether logs and artifacts are written.
    pub const fn has_archives(self) -> bool {
        matches!(self, Self::Full)
    }

    /// Whether this is the mode in which everything is written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) const fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }
}
