//! Documents about trials that a user starts one by one.

use std::time::Duration;

use rollout_protocol::digest::Digest;
use rollout_protocol::executor::{StartTrial, TrialHandle};
use rollout_protocol::harness::{ControlAction, ControlRequest};
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::reference::{ArtifactRef, OutputRef};
use rollout_protocol::spec::trial::{TrialName, TrialRef};
use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::{IntoParams, ToSchema};

use super::whole_number;
use crate::executor::TrialEvent;

/// A trial to start.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct StartDocument {
    /// The trial.
    pub(super) trial: TrialNameDocument,
    /// The documents that it runs under.
    pub(super) spec: TrialSpecDocument,
}

/// Name of a trial.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct TrialNameDocument {
    /// Agent.
    agent: String,
    /// Dataset.
    dataset: String,
    /// Task.
    task: String,
    /// Attempt, from 1.
    #[serde(deserialize_with = "whole_number::json")]
    attempt: u32,
}

/// The documents that a trial runs under, by digest.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct TrialSpecDocument {
    /// Settings.
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^sha256:[0-9a-f]{64}$"))]
    settings: Digest,
    /// Agent.
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^sha256:[0-9a-f]{64}$"))]
    agent: Digest,
    /// Task.
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^sha256:[0-9a-f]{64}$"))]
    task: Digest,
    /// Attempt, from 1.
    #[serde(deserialize_with = "whole_number::json")]
    attempt: u32,
}

/// A trial that was started.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct HandleDocument {
    /// Id of the run in its journal.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    run: RunId,
    /// Identifies the trial in the run.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    item: ItemId,
    /// Its name.
    trial: TrialNameDocument,
}

/// Which trials to list.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct TrialsQuery {
    /// Most trials of a page, from 1 to 1000; 100 by default.
    #[serde(default, deserialize_with = "whole_number::query_option")]
    pub(super) limit: Option<usize>,
    /// `next` of the page before.
    #[serde(default, deserialize_with = "whole_number::query_option")]
    #[cfg_attr(feature = "openapi", param(value_type = Option<usize>))]
    pub(super) cursor: Option<u64>,
}

/// Trials that can be started.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct TrialList {
    /// Trials, in the plan's order.
    pub(super) trials: Vec<PlannedDocument>,
    /// `cursor` of the next page; null on the last one.
    pub(super) next: Option<u64>,
}

/// A trial that can be started: a start has its `trial` and its `spec`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct PlannedDocument {
    /// Identifies the trial in the run.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub(super) item: ItemId,
    /// Its name.
    pub(super) trial: TrialNameDocument,
    /// The documents that it runs under.
    pub(super) spec: TrialSpecDocument,
}

/// Where the events of a trial begin.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct TrialEventsQuery {
    /// Only events with this number or a higher one.
    #[serde(default, deserialize_with = "whole_number::query")]
    #[cfg_attr(feature = "openapi", param(value_type = usize))]
    pub(super) from: u64,
}

/// An event of a trial's harness.
#[derive(Debug, Serialize)]
pub(super) struct TrialEventDocument {
    exec: rollout_protocol::id::ExecId,
    number: u64,
    step: Option<String>,
    event: serde_json::Value,
}

/// A control of a trial's harness.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ControlDocument {
    /// `stop`, `checkpoint` or `continue`.
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^(stop|checkpoint|continue)$"))]
    action: ControlAction,
    /// Name of a checkpoint, or another label.
    #[serde(default)]
    label: Option<String>,
    /// The requester; by default the user.
    #[serde(default)]
    requested_by: Option<String>,
    /// Longest wait for the acknowledgement, milliseconds.
    #[serde(default = "default_wait_ms", deserialize_with = "whole_number::json")]
    #[cfg_attr(feature = "openapi", schema(maximum = 3_600_000))]
    timeout_ms: u64,
    /// How long after this wait a command that ignored `stop` may still run, milliseconds.
    #[serde(default = "default_wait_ms", deserialize_with = "whole_number::json")]
    #[cfg_attr(feature = "openapi", schema(maximum = 3_600_000))]
    grace_ms: u64,
}

/// The output of a settled trial.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct TrialOutputDocument {
    /// A reference; null if the settlement has everything.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub(super) output: Option<OutputRef>,
}

/// The artifacts of a settled trial.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct TrialArtifactList {
    /// References.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub(super) artifacts: Vec<ArtifactRef>,
}

/// Longest wait that a control may ask for.
const MAX_WAIT_MS: u64 = 3_600_000;

const fn default_wait_ms() -> u64 {
    30_000
}

impl ControlDocument {
    /// The control; `None` if it asks for too long a wait.
    pub(super) fn into_request(self, user: &str) -> Option<ControlRequest> {
        let wait = |ms: u64| (ms <= MAX_WAIT_MS).then(|| Duration::from_millis(ms));
        Some(ControlRequest {
            action: self.action,
            label: self.label,
            requested_by: self.requested_by.unwrap_or_else(|| user.to_owned()),
            timeout: wait(self.timeout_ms)?,
            grace: wait(self.grace_ms)?,
        })
    }
}

impl From<StartDocument> for StartTrial {
    fn from(StartDocument { trial, spec }: StartDocument) -> Self {
        let TrialNameDocument { agent, dataset, task, attempt } = trial;
        let trial = TrialName { agent, dataset, task, attempt };
        let TrialSpecDocument { settings, agent, task, attempt } = spec;
        Self { trial, spec: TrialRef { settings, agent, task, attempt } }
    }
}

impl From<TrialName> for TrialNameDocument {
    fn from(TrialName { agent, dataset, task, attempt }: TrialName) -> Self {
        Self { agent, dataset, task, attempt }
    }
}

impl From<TrialRef> for TrialSpecDocument {
    fn from(TrialRef { settings, agent, task, attempt }: TrialRef) -> Self {
        Self { settings, agent, task, attempt }
    }
}

impl From<TrialHandle> for HandleDocument {
    fn from(TrialHandle { run, item, trial }: TrialHandle) -> Self {
        Self { run, item, trial: trial.into() }
    }
}

impl From<TrialEvent> for TrialEventDocument {
    fn from(TrialEvent { exec, number, step, event }: TrialEvent) -> Self {
        Self { exec, number, step, event: event.to_json() }
    }
}
