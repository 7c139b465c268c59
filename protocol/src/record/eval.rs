//! Records of executions of evals.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Durations, EnvironmentRecord, GatewaySummary, ItemOutcome, LogsRecord, OutputFile, Rewards,
    Timestamps, Verdict,
};
use crate::Timestamp;
use crate::blob::BlobRef;
use crate::digest::Digest;
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::spec::budget::ModelUse;
use crate::spec::eval::{CommitBundle, EvalOrigin, EvalStage};

/// The record of one execution of an eval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// [`crate::version::RUN_FORMAT`].
    #[serde(deserialize_with = "crate::version::read")]
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
    /// The eval.
    pub name: EvalOrigin,
    /// Digest of its [`EvalSpec`](crate::spec::eval::EvalSpec).
    pub spec: Digest,
    /// The commit that the idea was tried on.
    pub parent: String,
    /// How it ended.
    pub end: EvalEnd,
    /// The first cause of failure; with any end but `failed` an error of the teardown.
    #[serde(default)]
    pub error: Option<TrialError>,
    /// Errors after the first, and errors of collection and teardown, in chronological order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secondary_errors: Vec<TrialError>,
    /// The commands that ran.
    pub commands: Vec<CommandRecord>,
    /// The commit made from the idea; also present if the eval failed after it was made.
    #[serde(default)]
    pub candidate: Option<CommitBundle>,
    /// How the paths of the checkout changed.
    #[serde(default)]
    pub changes: Option<CheckoutChanges>,
    /// The results as the sweep wrote them.
    #[serde(default)]
    pub results: Option<BlobRef>,
    /// Total cost of its environments and model calls, in the user's currency.
    #[serde(default, deserialize_with = "crate::cost::read")]
    pub cost: f64,
    /// Total cost that the commands reported; absent if none reported any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_cost: Option<f64>,
    /// Model calls of its agents, if they went through the gateway.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gateway: BTreeMap<EvalStage, GatewaySummary>,
    /// Durations.
    pub durations: Durations,
    /// Times.
    pub timestamps: Timestamps,
    /// The environment, if there was one.
    #[serde(default)]
    pub environment: Option<EnvironmentRecord>,
    /// The separate environment of the sweep, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_environment: Option<Box<EnvironmentRecord>>,
    /// Output of the commands, by path below the eval's directory.
    #[serde(default)]
    pub outputs: Vec<OutputFile>,
    /// `/logs` of the environment as one clean archive, without the first path component.
    #[serde(default)]
    pub logs: Option<LogsRecord>,
    /// The same for the separate environment of the sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_logs: Option<Box<LogsRecord>>,
    /// The sweep's output directory as one clean archive, without the first path component.
    #[serde(default)]
    pub sweep_output: Option<LogsRecord>,
    /// Variables whose values the results, the sweep's output or the commit hold and which look like
    /// secrets. They are kept unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub possible_secrets: Vec<String>,
}

impl EvalRecord {
    /// The record as the engine counts it. An eval has no reward: its value is decided by comparing
    /// results.
    pub fn verdict(&self) -> Verdict {
        let outcome = match self.end {
            EvalEnd::Completed | EvalEnd::NoChanges => ItemOutcome::Completed,
            EvalEnd::Failed => ItemOutcome::Failed,
            EvalEnd::Stopped => ItemOutcome::Cancelled,
        };
        let (cost, error) = (self.cost, self.error.clone());
        let (rewards, unverified_steps) = (Rewards::new(), Vec::new());
        let calls = self.gateway.values().map(GatewaySummary::model_use);
        let (harness, model_use) = (None, calls.fold(ModelUse::NONE, ModelUse::plus));
        Verdict {
            outcome,
            reward: None,
            rewards,
            cost,
            error,
            unverified_steps,
            harness,
            model_use,
            format_doubt: None,
        }
    }
}

/// How an eval ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalEnd {
    /// It has a candidate and results.
    Completed,
    /// The idea changed nothing: there is no candidate, and no sweep ran.
    NoChanges,
    /// It has no results.
    Failed,
    /// It was stopped before its end, and is still pending.
    Stopped,
}

/// A command that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRecord {
    /// Its stage.
    pub stage: EvalStage,
    /// Its start.
    pub started_at: Timestamp,
    /// Its end.
    pub ended_at: Timestamp,
    /// Its exit code; absent if it was killed, or its end is not known.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Whether it reached its time limit.
    #[serde(default)]
    pub timed_out: bool,
}

/// Changes of a checkout's paths on the way into a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckoutChanges {
    /// New or changed files.
    pub written: u64,
    /// Removed files.
    pub removed: u64,
    /// New files that the repository ignores, which are not part of the commit.
    pub ignored: u64,
    /// Paths that no commit may contain: anything that could be taken for a `.git`, links that lead
    /// outside, names that show secrets, special files.
    pub refused: u64,
}
