//! All trials of a plan over an executor, and their analysis tables. Everything comes through the
//! interface of executors: nothing here knows where trials run or where their files are.

use std::path::Path;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rollout_protocol::executor::{StartTrial, TrialStatus};
use rollout_protocol::id::RunId;
use rollout_protocol::record::Settlement;
use rollout_protocol::reference::{ArtifactRef, OutputRef};

use super::{ExecutorError, TrialExecutor};
use crate::plan::{JobPlan, PlannedTrial};
use crate::results::tables::{self, TablesError};

/// A settled trial of a plan, with references to what it left. No content was fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanTrial {
    /// Position of the trial in the plan's order, from 0.
    pub ordinal: u64,
    /// Its result.
    pub settlement: Arc<Settlement>,
    /// Its output; `None` if the settlement contains everything.
    pub output: Option<OutputRef>,
    /// Its artifacts.
    pub artifacts: Vec<ArtifactRef>,
    /// Number of its harness's events.
    pub events: u64,
}

/// Runs every trial of a plan, at most `at_once` at a time, and returns them in the plan's order.
///
/// # Errors
/// The first error of the executor. Trials that were started go on. The same call on the same
/// executor continues: a trial that has a result does not run again.
pub async fn run_plan(
    executor: &dyn TrialExecutor,
    plan: &JobPlan,
    at_once: usize,
) -> Result<Vec<PlanTrial>, ExecutorError> {
    let trials = stream::iter(plan.trials()).map(|trial| run_trial(executor, trial));
    let mut trials: Vec<PlanTrial> = trials.buffer_unordered(at_once.max(1)).try_collect().await?;
    trials.sort_unstable_by_key(|trial| trial.ordinal);
    Ok(trials)
}

async fn run_trial(
    executor: &dyn TrialExecutor,
    trial: PlannedTrial,
) -> Result<PlanTrial, ExecutorError> {
    let PlannedTrial { ordinal, name, trial_ref, .. } = trial;
    let handle = executor.start_trial(StartTrial { trial: name, spec: trial_ref }).await?;
    // The stream ends when the trial is settled. Without events to read, that costs nothing.
    let mut end = executor.trial_events(handle.item, u64::MAX);
    while end.try_next().await?.is_some() {}
    let counted = executor.trial_events(handle.item, 0);
    let events = counted.try_fold(0u64, |_, event| async move { Ok(event.number + 1) }).await?;
    let settlement = match executor.trial_status(handle.item).await? {
        TrialStatus::Settled { settlement } => settlement,
        other => return Err(ExecutorError::NotSettled { state: other.as_str() }),
    };
    let output = executor.trial_output(handle.item).await?;
    let artifacts = executor.trial_artifacts(handle.item).await?;
    Ok(PlanTrial { ordinal, settlement, output, artifacts, events })
}

/// Writes the analysis tables of these trials to a directory that is empty or missing: completely or
/// not at all. They equal those that a run with the same results writes. Blocks.
///
/// # Errors
/// [`TablesError`]; `out` is then unchanged.
pub fn write_tables(
    run: RunId,
    plan: &JobPlan,
    trials: &[PlanTrial],
    out: &Path,
) -> Result<(), TablesError> {
    let settled = trials.iter().map(|trial| (trial.ordinal, Settlement::clone(&trial.settlement)));
    tables::write_settlements(run, plan, settled, out)
}
