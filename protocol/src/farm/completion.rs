//! Completions: the terminal records of the samples that a farm owes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::group::{is_empty, json_bytes};
use super::sample::{GroupEnd, SampleResult};
use crate::Timestamp;
use crate::sample_key::SampleKey;

/// The terminal record of a sample. There is one for each sample of a group, whatever its
/// generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Position in the farm's completion log, from 1. Dense, and never used again.
    pub cursor: u64,
    /// The sample.
    #[serde(flatten)]
    pub sample: SampleKey,
    /// The consumer that it is for.
    pub consumer: String,
    /// The result.
    #[serde(flatten)]
    pub result: SampleResult,
    /// Whether a trainer may learn from it.
    pub usable: bool,
    /// Versions of the policy.
    pub policy: PolicyVersions,
    /// When it was decided.
    pub at: Timestamp,
    /// How the group ended, if this is the last completion of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_end: Option<GroupEnd>,
    /// Metadata of the group's request. Journals leave it out: the record of the group has it.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub metadata: Arc<Map<String, Value>>,
}

impl Completion {
    /// Length of its metadata as JSON, bytes.
    pub fn metadata_bytes(&self) -> u64 {
        json_bytes(&self.metadata)
    }
}

/// Versions of the policy around a sample, as the trainer said them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyVersions {
    /// That of the group's request.
    pub requested: u64,
    /// The newest one when the group was admitted.
    pub admitted: u64,
    /// The newest one when the sample ended.
    pub ended: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::farm::{CancelReason, SampleEnd};

    #[test]
    fn completion_is_one_flat_document() {
        let group = "g".parse().expect("an id");
        let completion = Completion {
            cursor: 7,
            sample: SampleKey { farm: "f".to_owned(), group, index: 0, generation: 1 },
            consumer: "train".to_owned(),
            result: SampleResult {
                end: SampleEnd::Completed,
                reward: Some(0.5),
                ..SampleResult::cancelled(CancelReason::Requested)
            },
            usable: true,
            policy: PolicyVersions { requested: 3, admitted: 3, ended: 4 },
            at: Timestamp::UNIX_EPOCH,
            group_end: Some(GroupEnd::Complete),
            metadata: Arc::default(),
        };
        let text = serde_json::to_string(&completion).expect("JSON");
        let expected = r#"{"cursor":7,"farm":"f","group":"g","index":0,"generation":1,"consumer":"train","outcome":"completed","reward":0.5,"cost":0.0,"usable":true,"policy":{"requested":3,"admitted":3,"ended":4},"at":"1970-01-01T00:00:00Z","group_end":"complete"}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Completion>(&text).expect("a completion"), completion);
    }
}
