//! Records of runs: one file for each run, written before the daemon answers.

use std::path::PathBuf;

use rollout_base::shown_path::shown;
use rollout_protocol::Timestamp;
use rollout_protocol::id::RunId;
use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

use super::failure::RunFailure;
use super::id::HostedRunId;
use super::principal::{AllowedVariables, Role};
use super::state_dir::StoredRecord;
use crate::results::report::ScoreFigures;

/// Newest format of records. Format 1 has jobs only.
pub(super) const RECORD_FORMAT: u32 = 2;

/// A run of the daemon, as its record file has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostedRunRecord {
    /// Format of the record.
    pub format: u32,
    /// The run.
    pub id: HostedRunId,
    /// Kind of the run.
    #[serde(default)]
    pub kind: HostedKind,
    /// Name of the user who submitted it.
    pub user: String,
    /// Name of the job, for people.
    pub name: String,
    /// The role of this user at the submission.
    #[serde(default)]
    pub role: Role,
    /// Variables of the daemon's process that the job may use: those of its user when it was
    /// submitted.
    pub variables: AllowedVariables,
    /// Runs of its user with a higher priority start first.
    pub priority: i32,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// The key under which it was submitted, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<SubmissionKey>,
    /// The state that its user wants.
    pub wanted: WantedState,
    /// Whether an executor takes no more trials.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_closed: bool,
    /// Its end; `None` while work is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<HostedRunEnd>,
    /// Why its last session failed. A run that did not end is tried again when the daemon starts, or
    /// by `continue`, or by itself if the failure is temporary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RunFailure>,
    /// Its progress when its last session ended.
    #[serde(default)]
    pub progress: HostedProgress,
    /// Whether its files are being removed.
    #[serde(default)]
    pub is_deleted: bool,
}

/// Kind of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HostedKind {
    /// All trials of a job.
    #[default]
    Job,
    /// Trials of a job that its user starts one by one.
    Executor,
    /// A search over the commits of a repository.
    Tree,
}

impl HostedKind {
    /// The first format of records that has this kind.
    pub(super) const fn format(self) -> u32 {
        match self {
            Self::Job => 1,
            Self::Executor | Self::Tree => 2,
        }
    }
}

impl StoredRecord for HostedRunRecord {
    type Id = HostedRunId;

    fn id(&self) -> &HostedRunId {
        &self.id
    }
}

/// `Idempotency-Key` of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmissionKey {
    /// The key.
    pub key: String,
    /// SHA-256 of the submission, in hexadecimal digits.
    pub sha256: String,
}

/// The state that the user of a run wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WantedState {
    /// It runs to its end.
    Running,
    /// No trial begins.
    Paused,
    /// All its trials end as cancelled, unless they have a result.
    Cancelled,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostedRunEnd {
    /// When it ended.
    pub at: Timestamp,
    /// How.
    pub outcome: HostedOutcome,
    /// The exit code that `rollout run` has for this end.
    pub code: u8,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostedOutcome {
    /// Every trial has a result.
    Completed,
    /// Its user cancelled it.
    Cancelled,
    /// Nothing was started: its job is invalid.
    Failed,
}

/// Progress of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct HostedProgress {
    /// Id of the run in its journal; absent before its first session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run: Option<RunId>,
    /// Number of its last session, from 1; 0 before the first one.
    pub session: u32,
    /// Trials of the plan.
    pub total: u64,
    /// Trials with a result: the sum of the next four.
    pub settled: u64,
    /// Trials whose verifier produced a reward.
    pub completed: u64,
    /// Trials that failed.
    pub failed: u64,
    /// Trials that were cancelled.
    pub cancelled: u64,
    /// Trials that ran to their end without a verifier.
    pub unverified: u64,
    /// Completed trials with reward 1 and every step verified.
    pub passed: u64,
    /// Failed trials by the infrastructure's fault.
    pub infrastructure_failures: u64,
    /// Trials that run now, as far as is known.
    pub running: u64,
    /// Mean reward of the completed trials; absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_reward: Option<f64>,
    /// The headline score, as in `result.json`; absent before the first session, for a search, and
    /// in records of earlier programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored: Option<ScoreFigures>,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file of the state directory cannot be read or written.
    #[error("cannot {action} {}", shown(path))]
    File {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A record is damaged.
    #[error("{} is damaged: {reason}", shown(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The record has a newer format.
    #[error("{} has format {found}; this program reads up to {RECORD_FORMAT}", shown(path))]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Another daemon uses the directory.
    #[error("cannot use {}: another daemon uses it", shown(path))]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

impl RecordError {
    /// A failed operation on a file.
    pub(super) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
