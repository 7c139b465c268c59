//! Answers of a farm to its users.

use serde::{Deserialize, Serialize};

use super::sample::{GroupEnd, SampleEnd, SampleResult};
use crate::Timestamp;
use crate::sample_key::GroupId;

/// Sums over the whole life of a farm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FarmTotals {
    /// Admitted groups.
    pub groups: u64,
    /// Groups that ended complete.
    pub complete_groups: u64,
    /// Samples of admitted groups.
    pub samples: u64,
    /// Samples that completed.
    pub completed: u64,
    /// Samples that were truncated.
    pub truncated: u64,
    /// Samples without a result.
    pub no_result: u64,
    /// Samples that were cancelled.
    pub cancelled: u64,
    /// Usable samples.
    pub usable: u64,
    /// Generations that were lost and replaced.
    pub refills: u64,
    /// Results that came too late to count.
    pub late: u64,
    /// Model calls of all its samples for which a server with `capture: tokens` gave no token ids.
    pub calls_without_ids: u64,
}

impl FarmTotals {
    /// Counts the model calls of a sample, or of a generation that was replaced.
    pub const fn add_calls(&mut self, result: &SampleResult) {
        self.calls_without_ids = self.calls_without_ids.saturating_add(result.calls_without_ids);
    }

    /// Counts the end of a sample.
    pub fn count(&mut self, end: &SampleEnd) {
        match end {
            SampleEnd::Completed => self.completed += 1,
            SampleEnd::Truncated => self.truncated += 1,
            SampleEnd::NoResult { .. } => self.no_result += 1,
            SampleEnd::Cancelled { .. } => self.cancelled += 1,
        }
    }
}

/// The state of a farm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FarmStatus {
    /// Its name.
    pub name: String,
    /// The newest policy version.
    pub policy_version: u64,
    /// The pause, if the farm is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<FarmPause>,
    /// Whether it admits no more groups.
    pub closed: bool,
    /// Cursor of the newest completion; 0 without one.
    pub last_cursor: u64,
    /// Groups that have not ended.
    pub open_groups: u64,
    /// Samples that wait to be begun.
    pub queued_samples: u64,
    /// Samples that were begun and have not ended.
    pub begun_samples: u64,
    /// Completions that no consumer has acknowledged.
    pub unacknowledged: u64,
    /// Sums over its whole life.
    pub totals: FarmTotals,
    /// Model calls of its samples, if the job has a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_calls: Option<FarmModelCalls>,
}

/// Model calls of a farm's samples, as workers said at most a few seconds ago.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarmModelCalls {
    /// Calls that were sent and have not ended.
    pub in_flight: u64,
    /// Calls that a pause keeps back.
    pub held: u64,
    /// Workers that have not said that they apply the present pause and policy version: they may
    /// still send calls.
    pub unconfirmed_workers: u64,
}

/// A pause of a farm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarmPause {
    /// Its beginning.
    pub since: Timestamp,
}

/// The state of a group that the farm holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its id.
    pub group: GroupId,
    /// Samples that it owes.
    pub n: u32,
    /// Samples that have not ended.
    pub open: u32,
    /// Usable samples.
    pub usable: u32,
    /// Samples that were replaced.
    pub refills: u32,
    /// How it ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<GroupEnd>,
}

/// The answer to a request that was admitted, now or before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitReceipt {
    /// Whether the same request was admitted before.
    pub state: SubmittedGroup,
    /// How the group ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<GroupEnd>,
}

/// Whether a request was new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubmittedGroup {
    /// It was admitted now.
    Admitted,
    /// It was admitted before.
    Known,
}

/// The answer to a cancellation. The id is never admitted again unless the group had ended before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelReceipt {
    /// Samples that the cancellation ended.
    pub samples: u64,
    /// Whether the farm did not know the group.
    pub unknown: bool,
    /// How the group had ended before, if it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<GroupEnd>,
}

/// The answer to an acknowledgement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckReceipt {
    /// Completions that were acknowledged now.
    pub acknowledged: u64,
    /// Completions that were acknowledged before.
    pub repeated: u64,
    /// Cursors that no completion of the consumer has.
    pub unknown: u64,
}
