//! The control file of a harness, `control_plane_v1`.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Name of the schema.
const SCHEMA: &str = "control_plane_v1";

/// Requester of the first control of every trial.
const RUN_LOOP: &str = "run_loop";

/// The action that a control asks a harness for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlAction {
    /// Go on.
    Continue,
    /// End after this step.
    Stop,
    /// Save a checkpoint, then go on.
    Checkpoint,
}

impl ControlAction {
    /// Every action by its name.
    pub const NAMES: &[(&'static str, Self)] =
        &[("continue", Self::Continue), ("stop", Self::Stop), ("checkpoint", Self::Checkpoint)];

    /// The name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Stop => "stop",
            Self::Checkpoint => "checkpoint",
        }
    }
}

impl fmt::Display for ControlAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The content of a control file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlDocument {
    /// Name of the schema.
    schema_version: String,
    /// Number of the control within its trial, from 0.
    pub seq: u64,
    /// The requested action.
    pub action: ControlAction,
    /// Name of a checkpoint, or another label.
    pub label: Option<String>,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// The requester.
    pub requested_by: String,
}

impl ControlDocument {
    /// The control with which every trial begins: number 0, go on.
    pub fn initial(at: Timestamp) -> Self {
        Self {
            schema_version: SCHEMA.to_owned(),
            seq: 0,
            action: ControlAction::Continue,
            label: None,
            requested_at: at,
            requested_by: RUN_LOOP.to_owned(),
        }
    }

    /// The control after this one.
    #[must_use]
    pub fn next(
        &self,
        action: ControlAction,
        label: Option<String>,
        requested_by: impl Into<String>,
        at: Timestamp,
    ) -> Self {
        Self {
            schema_version: SCHEMA.to_owned(),
            seq: self.seq + 1,
            action,
            label,
            requested_at: at,
            requested_by: requested_by.into(),
        }
    }

    /// The file of this control.
    pub fn to_file(&self) -> ControlFile {
        let mut bytes = serde_json::to_vec(self).expect("a control has only text keys");
        bytes.push(b'\n');
        let version = Digest::sha256(&bytes);
        ControlFile {
            bytes,
            written: WrittenControl { version, seq: self.seq, action: self.action },
        }
    }
}

/// A control file: its bytes, and what an acknowledgement of it must state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlFile {
    /// The exact bytes. Another byte makes another version.
    pub bytes: Vec<u8>,
    /// Its version, number and action.
    pub written: WrittenControl,
}

/// A control that was written, as an acknowledgement names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenControl {
    /// Digest of the bytes of the file: the `control_version` of an acknowledgement.
    pub version: Digest,
    /// Its number.
    pub seq: u64,
    /// Its action.
    pub action: ControlAction,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_version_is_digest_of_exact_bytes() {
        let first = ControlDocument::initial(Timestamp::UNIX_EPOCH);
        let file = first.to_file();
        let text = "{\"schema_version\":\"control_plane_v1\",\"seq\":0,\"action\":\"continue\",\
                    \"label\":null,\"requested_at\":\"1970-01-01T00:00:00Z\",\
                    \"requested_by\":\"run_loop\"}\n";
        assert_eq!(String::from_utf8_lossy(&file.bytes), text);
        assert_eq!(file.written.version, Digest::sha256(text.as_bytes()));
        assert_ne!(file.written.version, Digest::sha256(text.trim().as_bytes()));
    }

    #[test]
    fn control_after_another_has_next_number() {
        let first = ControlDocument::initial(Timestamp::UNIX_EPOCH);
        let label = Some("before_stop".to_owned());
        let next = first.next(ControlAction::Stop, label.clone(), "user", Timestamp::UNIX_EPOCH);
        let read: ControlDocument = serde_json::from_slice(&next.to_file().bytes).expect("JSON");
        assert_eq!((read.seq, read.action, read.label), (1, ControlAction::Stop, label));
        assert_eq!(next.to_file().written.seq, 1);
        assert!(ControlAction::NAMES.iter().all(|(name, action)| action.as_str() == *name));
    }
}
