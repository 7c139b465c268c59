//! What happened to an execution of an eval.

use serde::{Deserialize, Serialize};

use super::{
    Durations, EnvironmentRecord, ItemOutcome, LogsRecord, OutputFile, Rewards, Timestamps, Verdict,
};
use crate::Timestamp;
use crate::blob::BlobRef;
use crate::digest::Digest;
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::spec::eval::{CommitBundle, EvalOrigin, EvalStage};

/// The record of one execution of an eval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// [`crate::version::RUN_FORMAT`].
    pub format: u32,
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Worker.
    pub worker: WorkerId,
    /// Host of the worker.
    pub host: String,
    /// Whose eval it is.
    pub name: EvalOrigin,
    /// Digest of what it ran under.
    pub spec: Digest,
    /// The commit that the idea was tried on.
    pub parent: String,
    /// How it ended.
    pub end: EvalEnd,
    /// The first cause of failure; with any end but `failed` one of the teardown.
    #[serde(default)]
    pub error: Option<TrialError>,
    /// Errors after the first, and errors of collection and teardown, in the order of their coming.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secondary_errors: Vec<TrialError>,
    /// The commands that were run.
    pub commands: Vec<CommandRecord>,
    /// The commit that the idea became; also of an eval that failed after it was made.
    #[serde(default)]
    pub candidate: Option<CommitBundle>,
    /// What became of the checkout's paths.
    #[serde(default)]
    pub changes: Option<CheckoutChanges>,
    /// The results as the sweep wrote them.
    #[serde(default)]
    pub results: Option<BlobRef>,
    /// Cost of its environments together, in the user's currency.
    #[serde(default, deserialize_with = "crate::cost::read")]
    pub cost: f64,
    /// What the commands reported that they cost, together; nothing when none reported anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_cost: Option<f64>,
    /// Durations.
    pub durations: Durations,
    /// Times.
    pub timestamps: Timestamps,
    /// The environment, if there was one.
    #[serde(default)]
    pub environment: Option<EnvironmentRecord>,
    /// The environment that the sweep had for itself, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_environment: Option<Box<EnvironmentRecord>>,
    /// What the commands printed, by path below the eval's directory.
    #[serde(default)]
    pub outputs: Vec<OutputFile>,
    /// `/logs` of the environment as one clean archive, without the first component.
    #[serde(default)]
    pub logs: Option<LogsRecord>,
    /// The same of the sweep's own environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_logs: Option<Box<LogsRecord>>,
    /// The sweep's output directory as one clean archive, without the first component.
    #[serde(default)]
    pub sweep_output: Option<LogsRecord>,
}

impl EvalRecord {
    /// The record as the engine counts it. An eval has no reward: what it is worth is decided by
    /// comparing results.
    pub fn verdict(&self) -> Verdict {
        let outcome = match self.end {
            EvalEnd::Completed | EvalEnd::NoChanges => ItemOutcome::Completed,
            EvalEnd::Failed => ItemOutcome::Failed,
            EvalEnd::Stopped => ItemOutcome::Cancelled,
        };
        let (cost, error) = (self.cost, self.error.clone());
        let (rewards, unverified_steps) = (Rewards::new(), Vec::new());
        Verdict { outcome, reward: None, rewards, cost, error, unverified_steps }
    }
}

/// How an eval ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalEnd {
    /// With a candidate and its results.
    Completed,
    /// The idea changed nothing: there is no candidate, and no sweep was run.
    NoChanges,
    /// Without results.
    Failed,
    /// It was stopped before its end, and stays owed.
    Stopped,
}

/// A command that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRecord {
    /// Which one.
    pub stage: EvalStage,
    /// It began.
    pub started_at: Timestamp,
    /// It ended.
    pub ended_at: Timestamp,
    /// Its exit code; absent when it was ended, or its end is not known.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Whether its time limit ended it.
    #[serde(default)]
    pub timed_out: bool,
}

/// What became of a checkout's paths on the way into a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckoutChanges {
    /// Files that are new or different.
    pub written: u64,
    /// Files that are gone.
    pub removed: u64,
    /// New files that the repository ignores, which are no part of the commit.
    pub ignored: u64,
    /// Paths that no commit of ours may hold: anything that could be taken for a `.git`, links that
    /// lead outside, names that show secrets, special files.
    pub refused: u64,
}
