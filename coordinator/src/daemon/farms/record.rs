//! Records of farms: one file for each farm, written before the daemon answers.

use rollout_protocol::Timestamp;
use rollout_protocol::farm::{FarmSettings, FarmStatus};
use serde::{Deserialize, Serialize};

use crate::daemon::failure::RunFailure;
use crate::daemon::id::HostedFarmId;
use crate::daemon::principal::{AllowedVariables, Role};
use crate::daemon::record::SubmissionKey;
use crate::daemon::state_dir::StoredRecord;

/// A farm of the daemon, as its record file has it. Groups, completions, pauses and the newest policy
/// version are in the journal of its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostedFarmRecord {
    /// Format of the record.
    pub format: u32,
    /// The farm.
    pub id: HostedFarmId,
    /// Name of the user who opened it.
    pub user: String,
    /// The role of this user at the opening.
    #[serde(default)]
    pub role: Role,
    /// Variables of the daemon's process that its job may use: those of its user when it was opened.
    pub variables: AllowedVariables,
    /// Its samples take free slots of its user before those of a lower priority.
    pub priority: i32,
    /// When it was opened.
    pub created_at: Timestamp,
    /// The key under which it was opened, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<SubmissionKey>,
    /// Its settings.
    pub settings: FarmSettings,
    /// Its end; `None` while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<HostedFarmEnd>,
    /// Why its last session failed. It is tried again when the daemon starts, or by `resume`, or by
    /// itself if the failure is temporary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RunFailure>,
    /// Whether its user has deleted it. It is removed when its executions have ended.
    #[serde(default)]
    pub is_deleted: bool,
}

/// The end of a farm: it was closed, every sample ended, and every completion was acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostedFarmEnd {
    /// When it ended.
    pub at: Timestamp,
    /// Its last state.
    pub status: FarmStatus,
}

impl StoredRecord for HostedFarmRecord {
    type Id = HostedFarmId;

    fn id(&self) -> &HostedFarmId {
        &self.id
    }
}
