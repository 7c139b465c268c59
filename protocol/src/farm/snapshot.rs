//! The state of a farm as records: everything that the records before a compaction say, and that is
//! still needed.

use serde::{Deserialize, Serialize};

use super::group::AdmittedGroup;
use super::sample::{GroupEnd, OutageCause};
use super::settings::FarmSettings;
use super::status::FarmTotals;
use crate::Timestamp;
use crate::digest::Digest;

/// The state of a farm except its groups, completions and ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FarmCounters {
    /// Its settings.
    pub settings: FarmSettings,
    /// Cursor of the next completion.
    pub next_cursor: u64,
    /// Ordinal of the next generation of a sample.
    pub next_ordinal: u64,
    /// The newest policy version.
    pub policy_version: u64,
    /// Beginning of the pause, if the farm is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_since: Option<Timestamp>,
    /// Length of all ended pauses, milliseconds.
    pub paused_ms: i64,
    /// Whether the farm is closed.
    pub closed: bool,
    /// Sums over its whole life.
    pub totals: FarmTotals,
    /// Outages that have not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outages: Vec<FarmOutage>,
}

/// An outage that has not ended: samples that it ended are begun again as probes, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarmOutage {
    /// Its cause.
    pub cause: OutageCause,
    /// When the next probe is due, in milliseconds without pauses of the farm.
    pub due_ms: i64,
    /// Pause before that probe, milliseconds.
    pub pause_ms: i64,
}

/// A group that has not ended, or has completions without an acknowledgement, or executions that
/// may still run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupSnapshot {
    /// Its request and documents.
    pub admitted: AdmittedGroup,
    /// When it was admitted.
    pub admitted_at: Timestamp,
    /// Length of all pauses until then, milliseconds.
    pub paused_ms: i64,
    /// The newest policy version then.
    pub policy_version: u64,
    /// Ordinal of its first sample.
    pub order: u64,
    /// Samples that were replaced.
    pub refills: u32,
    /// Usable samples.
    pub usable: u32,
    /// Samples that count as lost.
    pub lost: u32,
    /// Completions without an acknowledgement.
    pub unacknowledged: u32,
    /// Its samples, by index.
    pub samples: Vec<OpenSlot>,
    /// Generations that ended for the group before their executions had ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ending: Vec<EndingSlot>,
    /// How it ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<GroupEnd>,
}

/// The present generation of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSlot {
    /// Generation, from 1.
    pub generation: u32,
    /// Its ordinal in the run.
    pub ordinal: u64,
    /// Whether it has ended.
    pub ended: bool,
    /// The outages that ended its earlier generations; absent without any, and once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<SlotOutage>,
}

/// The outages that ended earlier generations of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotOutage {
    /// The cause of the last one.
    pub cause: OutageCause,
    /// Generations that an outage ended.
    pub losses: u32,
    /// Whether the present generation begins as a probe only.
    pub is_parked: bool,
}

/// A generation whose execution may still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndingSlot {
    /// Position in the group, from 0.
    pub index: u32,
    /// Generation, from 1.
    pub generation: u32,
    /// Its ordinal in the run.
    pub ordinal: u64,
}

/// An ended and acknowledged group of which only the id and the digest are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedGroup {
    /// Digest of its id.
    pub id: Digest,
    /// Digest of its request.
    pub content: Digest,
    /// How it ended.
    pub end: GroupEnd,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_without_outage_keeps_its_form() {
        let text = r#"{"generation":2,"ordinal":7,"ended":false}"#;
        let slot: OpenSlot = serde_json::from_str(text).expect("a slot");
        assert_eq!(slot.outage, None);
        assert_eq!(serde_json::to_string(&slot).expect("JSON"), text);
        let outage = SlotOutage { cause: OutageCause::DiskFull, losses: 3, is_parked: true };
        let parked = OpenSlot { outage: Some(outage), ..slot };
        let text = serde_json::to_string(&parked).expect("JSON");
        assert!(
            text.ends_with(r#""outage":{"cause":"disk_full","losses":3,"is_parked":true}}"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<OpenSlot>(&text).expect("a slot"), parked);
    }
}
