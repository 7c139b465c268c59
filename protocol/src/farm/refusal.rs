//! Refusals of groups.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::group::InvalidGroup;

/// Why a group was not admitted, or an unknown one not cancelled. Nothing of it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum AdmissionRefusal {
    /// The farm holds as much as it may: send the group again later.
    #[error("cannot take the group: {depth} of {max} {limit}; send it again later")]
    Busy {
        /// The limit.
        limit: BusyLimit,
        /// How much the farm holds.
        depth: u64,
        /// How much it may hold.
        max: u64,
    },
    /// Another request has the same id.
    #[error("cannot admit the group: another request has the same id; use a new id")]
    Conflict,
    /// The id was cancelled.
    #[error("cannot admit the group: its id was cancelled; use a new id")]
    Cancelled,
    /// The policy version is too old.
    #[error(
        "cannot admit the group: policy version {version} is more than {bound} behind {newest}"
    )]
    Stale {
        /// Version of the request.
        version: u64,
        /// The newest version.
        newest: u64,
        /// The bound.
        bound: u64,
    },
    /// The request is invalid.
    #[error("cannot admit the group: {reason}")]
    Invalid {
        /// Why.
        reason: InvalidGroup,
    },
    /// The farm was closed.
    #[error("cannot admit the group: the farm is closed")]
    Closed,
}

impl AdmissionRefusal {
    /// Whether the same request may be admitted later.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }
}

/// A limit of a farm that a group exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyLimit {
    /// Groups that have not ended.
    OpenGroups,
    /// Samples that have not ended.
    OpenSamples,
    /// Samples without an acknowledgement.
    Unacknowledged,
    /// Cancelled groups and open ones.
    CancelledGroups,
    /// Bytes that the farm needs for the groups that it holds.
    HeldBytes,
}

impl fmt::Display for BusyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenGroups => "open groups",
            Self::OpenSamples => "open samples",
            Self::Unacknowledged => "samples without an acknowledgement",
            Self::CancelledGroups => "cancelled and open groups",
            Self::HeldBytes => "bytes of groups",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_states_limit_and_depth() {
        let busy = AdmissionRefusal::Busy { limit: BusyLimit::OpenSamples, depth: 10, max: 16 };
        let text = serde_json::to_string(&busy).expect("JSON");
        assert_eq!(text, r#"{"code":"busy","limit":"open_samples","depth":10,"max":16}"#);
        assert!(busy.is_retryable() && !AdmissionRefusal::Conflict.is_retryable());
        let expected = "cannot take the group: 10 of 16 open samples; send it again later";
        assert_eq!(busy.to_string(), expected);
        let invalid = AdmissionRefusal::Invalid { reason: InvalidGroup::Empty };
        let text = serde_json::to_string(&invalid).expect("JSON");
        assert_eq!(text, r#"{"code":"invalid","reason":"empty"}"#);
    }
}
