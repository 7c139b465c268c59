//! Records of a farm in the journal of its run.

use serde::{Deserialize, Serialize};

use super::completion::Completion;
use super::group::AdmittedGroup;
use super::sample::SampleResult;
use super::settings::FarmSettings;
use super::snapshot::{FarmCounters, FinishedGroup, GroupSnapshot};
use crate::sample_key::GroupId;

/// One decision of a farm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarmRecord {
    /// The farm has these settings from now on.
    Configured(Box<FarmSettings>),
    /// A group was admitted: its samples are pending.
    Admitted(Box<AdmittedGroup>),
    /// A group that the farm does not know was cancelled: it is never admitted.
    Tombstoned {
        /// Its id.
        group: GroupId,
    },
    /// Samples ended. Those that end together are in one record, so that a group ends as a whole.
    Completed {
        /// Their terminal records, in the order of their cursors.
        completions: Vec<Completion>,
    },
    /// A sample is replaced by its next generation.
    Refilled(Box<LostGeneration>),
    /// A sample that had ended, or was replaced, got a result, which does not count.
    Late(Box<LateResult>),
    /// Consumers have taken these completions.
    Acknowledged {
        /// Their cursors.
        completions: Vec<u64>,
    },
    /// The trainer has a newer policy.
    PolicyVersion {
        /// Its version.
        version: u64,
    },
    /// No sample begins, and clocks stand still.
    Paused,
    /// A pause ended.
    Resumed,
    /// No more groups are admitted.
    Closed,
    /// The beginning of a snapshot: everything before it is forgotten, and the records of the
    /// snapshot follow.
    Snapshot(Box<FarmCounters>),
    /// A group of a snapshot.
    SnapshotGroup(Box<GroupSnapshot>),
    /// Completions of a snapshot that no consumer has acknowledged.
    SnapshotCompletions {
        /// The completions, in the order of their cursors.
        completions: Vec<Completion>,
    },
    /// Ids of groups that a snapshot keeps.
    SnapshotIds {
        /// Cancelled groups.
        cancelled: Vec<GroupId>,
        /// Ended groups, the oldest first.
        finished: Vec<FinishedGroup>,
    },
}

/// One generation of a sample of a farm.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SampleSlot {
    /// Group.
    pub group: GroupId,
    /// Position in the group, from 0.
    pub index: u32,
    /// Generation, from 1.
    pub generation: u32,
}

/// A generation that the infrastructure lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LostGeneration {
    /// The generation.
    #[serde(flatten)]
    pub sample: SampleSlot,
    /// Its end.
    #[serde(flatten)]
    pub result: SampleResult,
}

/// A result that does not count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LateResult {
    /// The generation.
    #[serde(flatten)]
    pub sample: SampleSlot,
    /// Its result.
    #[serde(flatten)]
    pub result: SampleResult,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::farm::{CancelReason, GroupRequest, RolloutSpec};
    use crate::wire::offer::SizeClass;

    fn text(record: &FarmRecord) -> String {
        let text = serde_json::to_string(record).expect("JSON");
        assert_eq!(serde_json::from_str::<FarmRecord>(&text).expect("a record"), *record);
        text
    }

    #[test]
    fn farm_records_have_their_form() {
        let group: GroupId = "g".parse().expect("an id");
        let slot = SampleSlot { group: group.clone(), index: 1, generation: 2 };
        let result = SampleResult::cancelled(CancelReason::Stale);
        let late = FarmRecord::Late(Box::new(LateResult { sample: slot, result }));
        let expected = r#"{"late":{"group":"g","index":1,"generation":2,"outcome":"cancelled","reason":"stale","cost":0.0}}"#;
        assert_eq!(text(&late), expected);
        assert_eq!(text(&FarmRecord::Paused), r#""paused""#);
        let tombstone = FarmRecord::Tombstoned { group: group.clone() };
        assert_eq!(text(&tombstone), r#"{"tombstoned":{"group":"g"}}"#);
        let acknowledged = FarmRecord::Acknowledged { completions: vec![3, 5] };
        assert_eq!(text(&acknowledged), r#"{"acknowledged":{"completions":[3,5]}}"#);
        let digest = Digest::from_bytes([0; 32]);
        let spec = RolloutSpec {
            settings: digest,
            agent: digest,
            task: digest,
            class: SizeClass(0),
            lane: 0,
        };
        let request = GroupRequest::new(group, "d/t", 2);
        let admitted = AdmittedGroup { request, content: digest, spec };
        let record = text(&FarmRecord::Admitted(Box::new(admitted)));
        assert!(record.starts_with(r#"{"admitted":{"request":{"group":"g","#), "{record}");
    }
}
