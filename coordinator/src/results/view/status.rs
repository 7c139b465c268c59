//! The document of `rollout status --json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rollout_engine::QueueOutage;
use rollout_protocol::error::ErrorType;
use rollout_protocol::event::WaitingItems;
use rollout_protocol::spec::budget::ModelUse;
use serde::Serialize;

use super::run::{ItemCounts, RunHeaderView, RunView};
use crate::results::known_cost;
use crate::results::report::Headline;

/// State, counts and figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunStatus {
    /// The run directory.
    pub directory: PathBuf,
    /// Identity, state and owner.
    #[serde(flatten)]
    pub header: RunHeaderView,
    /// Items by state.
    pub counts: ItemCounts,
    /// Items that wait for a worker that could run them, and why no worker of the pool could.
    pub waiting_for_worker: Vec<WaitingItems>,
    /// The outage of the queue, while there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_outage: Option<QueueOutage>,
    /// Settled items per hour in the last session; `None` before it has settled any.
    pub settled_per_hour: Option<f64>,
    /// Share of completed items that passed; `None` when none completed.
    pub pass_rate: Option<f64>,
    /// Mean reward of completed items; `None` without any.
    pub mean_reward: Option<f64>,
    /// The headline score and failures by party.
    #[serde(flatten)]
    pub headline: Headline,
    /// Cost of all executions of settled items; `None` if nothing of it is known.
    pub total_cost: Option<f64>,
    /// Whether the cost of some model calls is not known: `total_cost` is a lower bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub total_cost_is_lower_bound: bool,
    /// Use of their model calls, if there were any.
    #[serde(skip_serializing_if = "ModelUse::is_none", serialize_with = "known_cost::model_use")]
    pub model_use: ModelUse,
    /// Executions of settled items that failed and were tried again.
    pub retries: u64,
    /// Executions of settled items that ended without a verdict.
    pub lost_executions: u64,
    /// Settled items by the type of their error, completed ones included.
    pub errors: BTreeMap<ErrorType, u64>,
}

impl RunStatus {
    /// The status of a run in a directory.
    pub fn new(directory: &Path, view: &RunView) -> Self {
        let tally = &view.tally;
        Self {
            directory: directory.to_owned(),
            header: view.header.clone(),
            counts: view.counts,
            waiting_for_worker: view.waiting_for_worker.clone(),
            queue_outage: view.queue_outage.clone(),
            settled_per_hour: view.settled_per_hour,
            pass_rate: tally.pass_rate(),
            mean_reward: tally.rewards.mean(),
            headline: Headline::new(tally),
            total_cost: tally.known_cost(),
            total_cost_is_lower_bound: tally.model_use.unpriced_calls > 0,
            model_use: tally.model_use,
            retries: tally.retries,
            lost_executions: tally.lost,
            errors: view.errors.clone(),
        }
    }
}
