//! Records of executions of commands that write ideas.

use serde::{Deserialize, Serialize};

use super::{
    CommandRecord, Durations, EnvironmentRecord, GatewaySummary, ItemOutcome, LogsRecord,
    OutputFile, Rewards, Timestamps, Verdict,
};
use crate::digest::Digest;
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::spec::budget::ModelUse;
use crate::spec::ideas::IdeasOrigin;

/// The record of one execution of a command that writes ideas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdeasRecord {
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
    /// The node.
    pub name: IdeasOrigin,
    /// Digest of its [`IdeasSpec`](crate::spec::ideas::IdeasSpec).
    pub spec: Digest,
    /// How it ended.
    pub end: IdeasEnd,
    /// The first cause of failure; with any end but `failed` an error of the teardown.
    #[serde(default)]
    pub error: Option<TrialError>,
    /// Errors after the first, and errors of collection and teardown, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secondary_errors: Vec<TrialError>,
    /// The command, if it ran.
    #[serde(default)]
    pub command: Option<CommandRecord>,
    /// The ideas as one clean archive of files.
    pub ideas: Option<LogsRecord>,
    /// Files that are not ideas, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Cost of its environment and of its model calls, in the user's currency.
    #[serde(default, deserialize_with = "crate::cost::read")]
    pub cost: f64,
    /// Cost that the command reported, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_cost: Option<f64>,
    /// Model calls of its agent, if they went through the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Box<GatewaySummary>>,
    /// Durations.
    pub durations: Durations,
    /// Times.
    pub timestamps: Timestamps,
    /// The environment, if there was one.
    #[serde(default)]
    pub environment: Option<EnvironmentRecord>,
    /// Output of the command and of the image build, by path below the node's log directory.
    #[serde(default)]
    pub outputs: Vec<OutputFile>,
    /// `/logs` of the environment as one clean archive, without the first path component.
    #[serde(default)]
    pub logs: Option<LogsRecord>,
}

impl IdeasRecord {
    /// The record as the engine counts it. Ideas have no reward.
    pub fn verdict(&self) -> Verdict {
        let outcome = match self.end {
            IdeasEnd::Written => ItemOutcome::Completed,
            IdeasEnd::Failed => ItemOutcome::Failed,
            IdeasEnd::Stopped => ItemOutcome::Cancelled,
        };
        let (cost, error) = (self.cost, self.error.clone());
        let (rewards, unverified_steps) = (Rewards::new(), Vec::new());
        let model_use = self.gateway.as_ref().map_or(ModelUse::NONE, |calls| calls.model_use());
        Verdict {
            outcome,
            reward: None,
            rewards,
            cost,
            error,
            unverified_steps,
            harness: None,
            model_use,
            format_doubt: None,
        }
    }
}

/// How a command that writes ideas ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdeasEnd {
    /// It wrote at least one idea.
    Written,
    /// It wrote no ideas.
    Failed,
    /// It was stopped before its end, and is still pending.
    Stopped,
}
