//! The trials of a run in the plan's order: one row each, and their selection by name.

use rollout_base::glob::{self, Dialect};
use rollout_engine::core::{ItemProgress, ItemStage};
use rollout_protocol::Timestamp;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, TrialError};
use rollout_protocol::id::ItemId;
use serde::{Deserialize, Serialize};

use super::run::RunView;
use crate::plan::{JobPlan, PlannedTrial};

/// Names of trials that an ambiguous key lists.
const MAX_NAMED_TRIALS: usize = 10;

/// State of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialState {
    /// The verifier produced a reward.
    Completed,
    /// An error prevented a reward.
    Failed,
    /// Cancelled by the user.
    Cancelled,
    /// Ran to the end without a verifier.
    Unverified,
    /// An execution runs.
    Running,
    /// Waits before it is tried again.
    Waiting,
    /// To be run, or in the queue.
    Queued,
}

/// The error of a settled trial, without its message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorSummary {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// The finer reason.
    pub code: ErrorCode,
    /// The party that caused it.
    pub class: ErrorClass,
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    /// `agent/dataset/task__attempt`.
    pub name: String,
    /// Agent.
    pub agent_name: String,
    /// Dataset.
    pub dataset_name: String,
    /// Task.
    pub task_name: String,
    /// Attempt, from 1.
    pub attempt: u32,
    /// Item.
    pub item: ItemId,
    /// State.
    pub state: TrialState,
    /// Tries so far, over all sessions.
    pub tries: u32,
    /// Whether the reward is 1 and every step was verified; `None` unless it is settled.
    pub passed: Option<bool>,
    /// Reward.
    pub reward: Option<f64>,
    /// Error.
    pub error: Option<ErrorSummary>,
    /// Cost of all its executions, as far as it is known; `None` if nothing of it is, or it is not
    /// settled.
    pub cost: Option<f64>,
    /// Whether the cost of some model calls is not known.
    #[serde(default)]
    pub cost_is_lower_bound: bool,
    /// Worker of the execution that settled it, or that runs.
    pub worker: Option<String>,
    /// Duration of the execution that settled it, seconds.
    pub total_sec: Option<f64>,
    /// When it was settled.
    pub settled_at: Option<Timestamp>,
    /// When it is tried again, if it waits.
    pub next_try_at: Option<Timestamp>,
}

/// Which trials of a run to show.
#[derive(Debug, Clone, Default)]
pub struct TrialFilter {
    /// Only failed ones.
    pub failed: bool,
    /// Pattern of the agent's name.
    pub agent: Option<String>,
    /// Pattern of the task's name, or of `dataset/task`.
    pub task: Option<String>,
}

/// Why a key names no trial.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrialLookupError {
    /// No trial.
    #[error("no trial of the run is named `{key}` or contains it")]
    None {
        /// The key.
        key: String,
    },
    /// Several trials.
    #[error("`{key}` is part of the names of {count} trials")]
    Ambiguous {
        /// The key.
        key: String,
        /// Number of trials.
        count: usize,
        /// Names of the first ones.
        names: Vec<String>,
    },
}

impl TrialState {
    /// The word used in documents and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unverified => "unverified",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Queued => "queued",
        }
    }
}

impl ErrorSummary {
    pub(super) fn new(error: &TrialError) -> Self {
        Self { kind: error.kind, code: error.code.clone(), class: error.class }
    }
}

/// The state of an unsettled item. Workers of a pool announce executions that last; those in the
/// owner's process run whatever is offered, and die with it.
pub(super) fn unsettled_state(
    progress: ItemProgress,
    has_pool: bool,
    may_be_owned: bool,
) -> TrialState {
    match progress.stage {
        ItemStage::Waiting => TrialState::Waiting,
        ItemStage::Offered if has_pool && progress.has_open => TrialState::Running,
        ItemStage::Offered if !has_pool && may_be_owned => TrialState::Running,
        _ => TrialState::Queued,
    }
}

impl RunView {
    /// The rows of the trials that `filter` selects, in the plan's order.
    ///
    /// # Errors
    /// The pattern that is not valid.
    pub fn trials<'a>(
        &'a self,
        filter: &TrialFilter,
    ) -> Result<impl Iterator<Item = TrialRow> + 'a, String> {
        let compile = |pattern: &Option<String>| match pattern {
            None => Ok(None),
            Some(text) => glob::compile(text, Dialect::Shell).map(Some).ok_or_else(|| text.clone()),
        };
        let (agent, task) = (compile(&filter.agent)?, compile(&filter.task)?);
        let failed = filter.failed;
        let planned = self.fold.plan.iter().flat_map(JobPlan::trials);
        let named = planned.filter(move |trial| {
            let name = &trial.name;
            agent.as_ref().is_none_or(|agent| agent.is_match(&name.agent))
                && task.as_ref().is_none_or(|task| {
                    task.is_match(&name.task)
                        || task.is_match(&format!("{}/{}", name.dataset, name.task))
                })
        });
        let rows = named.map(|trial| self.row(&trial));
        Ok(rows.filter(move |row| !failed || row.state == TrialState::Failed))
    }

    /// The row of a trial of the plan.
    pub(super) fn row(&self, trial: &PlannedTrial) -> TrialRow {
        let core = self.fold.core();
        let never = ItemProgress { stage: ItemStage::Pending, tries: 0, has_open: false };
        let progress = core.progress(&trial.item).unwrap_or(never);
        let settled = self.fold.settled.get(&trial.item);
        let state = self.item_state(progress);
        let score = settled.map(|settled| &settled.score);
        let worker = match settled {
            Some(settled) => settled.worker.as_deref().map(str::to_owned),
            None if state == TrialState::Running => self.running_on(&trial.item),
            None => None,
        };
        TrialRow {
            name: trial.name.to_string(),
            agent_name: trial.name.agent.clone(),
            dataset_name: trial.name.dataset.clone(),
            task_name: trial.name.task.clone(),
            attempt: trial.name.attempt,
            item: trial.item,
            state,
            tries: progress.tries,
            passed: score.map(|score| score.passed),
            reward: score.and_then(|score| score.reward),
            error: settled.and_then(|settled| settled.error.as_deref().cloned()),
            cost: score.and_then(|score| score.known_cost()),
            cost_is_lower_bound: score.is_some_and(|score| score.model_use.unpriced_calls > 0),
            worker,
            total_sec: settled.and_then(|settled| settled.total_sec),
            settled_at: settled.map(|settled| settled.at),
            next_try_at: core.next_try_at(&trial.item),
        }
    }

    /// The worker of the newest execution of an item that has not ended, if it is known.
    fn running_on(&self, item: &ItemId) -> Option<String> {
        use rollout_protocol::record::ExecutionEnd;
        let executions = self.fold.core().executions(item);
        let open = executions.iter().rev().find(|execution| execution.end == ExecutionEnd::Open)?;
        Some(open.worker.to_string())
    }
}

/// The trials whose names match a key in one way.
#[derive(Debug, Default)]
struct NameMatches {
    count: usize,
    first: Option<PlannedTrial>,
    /// Names of the first ones.
    names: Vec<String>,
}

impl NameMatches {
    fn add(&mut self, trial: &PlannedTrial, name: &str) {
        self.count += 1;
        self.first.get_or_insert_with(|| trial.clone());
        if self.names.len() < MAX_NAMED_TRIALS {
            self.names.push(name.to_owned());
        }
    }
}

/// The trial with this name or item; else the only one whose name ends with the parts `key`; else
/// the only one whose name contains it.
///
/// # Errors
/// [`TrialLookupError`].
pub fn find_trial(plan: &JobPlan, key: &str) -> Result<PlannedTrial, TrialLookupError> {
    let key = key.trim_end_matches('/');
    let item: Option<ItemId> = key.parse().ok();
    let (mut endings, mut parts) = (NameMatches::default(), NameMatches::default());
    for trial in plan.trials() {
        let name = trial.name.to_string();
        if name == key || Some(trial.item) == item {
            return Ok(trial);
        }
        if name.strip_suffix(key).is_some_and(|before| before.ends_with('/')) {
            endings.add(&trial, &name);
        }
        if name.contains(key) {
            parts.add(&trial, &name);
        }
    }
    let found = if endings.count > 0 { endings } else { parts };
    let key = key.to_owned();
    match (found.count, found.first) {
        (1, Some(trial)) => Ok(trial),
        (0, _) | (_, None) => Err(TrialLookupError::None { key }),
        (count, _) => Err(TrialLookupError::Ambiguous { key, count, names: found.names }),
    }
}
