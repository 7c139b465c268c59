//! Everything that the journal has about one trial.

use std::borrow::Cow;

use rollout_protocol::Timestamp;
use rollout_protocol::record::{Execution, ExecutionEnd, ItemOutcome, LostReason, Verdict};
use serde::{Deserialize, Serialize};

use super::events;
use super::fold::WatchedItem;
use super::run::RunView;
use super::trials::TrialRow;

/// A trial with all its executions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialDetail {
    /// Its row.
    #[serde(flatten)]
    pub row: TrialRow,
    /// Its verdict, if it is settled.
    pub verdict: Option<Verdict>,
    /// Commit of the task's repository, according to the plan.
    pub task_git_commit_id: Option<String>,
    /// Its executions, in order. Documents have them with their records, as
    /// [`RecordedExecution`](super::RecordedExecution).
    #[serde(skip)]
    pub executions: Vec<ExecutionView>,
    /// When the snapshot was taken.
    pub updated_at: Option<Timestamp>,
}

/// An execution of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutionView {
    /// Its role.
    pub role: ExecutionRole,
    /// Why it does not count, for people; `None` for one that counts or may count.
    pub reason: Option<Cow<'static, str>>,
    /// The execution.
    #[serde(flatten)]
    pub execution: Execution,
}

/// Role of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionRole {
    /// It settled the trial.
    Settled,
    /// It has not ended, as far as is known, or its result may still count.
    Open,
    /// It does not count.
    Superseded,
}

impl ExecutionRole {
    /// The word used on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Open => "open",
            Self::Superseded => "superseded",
        }
    }
}

impl TrialDetail {
    /// The newest execution with a record of the try with this number. Without a number, the one
    /// that settled the trial, else the newest one with a record.
    pub fn recorded_execution(&self, number: Option<u32>) -> Option<&Execution> {
        let recorded = || self.executions.iter().rev().filter(|e| e.execution.record.is_some());
        let settled = |view: &&ExecutionView| view.role == ExecutionRole::Settled;
        let chosen = match number {
            Some(number) => recorded().find(|view| view.execution.try_id.n == number),
            None => recorded().find(settled).or_else(|| recorded().next()),
        };
        chosen.map(|view| &view.execution)
    }
}

impl RunView {
    /// Everything about the watched trial; `None` if no trial of the plan was watched.
    pub fn detail(&self) -> Option<TrialDetail> {
        let (watched, plan) = (self.fold.watched.as_ref()?, self.fold.plan.as_ref()?);
        let core = self.fold.core();
        let trial = plan.trials().find(|trial| trial.item == watched.item)?;
        let settlement = watched.settlement.clone();
        let settled = settlement.and_then(|settled| events::settlement(core, settled, plan));
        let settlement = settled.map(|(_, settlement)| settlement);
        let died = self.header.pool.is_none() && !self.header.state.may_be_owned();
        let view = |execution: Execution, role| {
            let reason = match role {
                ExecutionRole::Settled => None,
                ExecutionRole::Open => died.then_some("the process that ran it has ended"),
                ExecutionRole::Superseded => {
                    Some(reason(&execution, watched, settlement.is_some()))
                }
            };
            ExecutionView { role, reason: reason.map(Cow::Borrowed), execution }
        };
        let executions = match &settlement {
            None => {
                let known = core.executions(&watched.item).into_iter();
                known.map(|known| view_of_unsettled(known, &view)).collect()
            }
            Some(settlement) => {
                let superseded = settlement.superseded.iter().cloned();
                let superseded = superseded.map(|e| view(e, ExecutionRole::Superseded));
                let by = settlement.by.clone().map(|by| view(by, ExecutionRole::Settled));
                let mut all: Vec<_> = superseded.chain(by).collect();
                all.sort_by_key(|known| known.execution.try_id);
                all
            }
        };
        Some(TrialDetail {
            row: self.row(&trial),
            verdict: settlement.map(|settlement| settlement.verdict),
            task_git_commit_id: plan.tasks()[trial.task].git_commit_id.clone(),
            executions,
            updated_at: self.header.updated_at,
        })
    }
}

fn view_of_unsettled(
    execution: Execution,
    view: &impl Fn(Execution, ExecutionRole) -> ExecutionView,
) -> ExecutionView {
    let role = match &execution.end {
        ExecutionEnd::Open => ExecutionRole::Open,
        ExecutionEnd::Reported { .. } | ExecutionEnd::Lost { .. } => ExecutionRole::Superseded,
    };
    view(execution, role)
}

/// Why an execution does not count. Every way that leads there is in the journal.
fn reason(execution: &Execution, watched: &WatchedItem, is_settled: bool) -> &'static str {
    let reopened = watched.reopened.iter().any(|epoch| execution.try_id.epoch < *epoch);
    match &execution.end {
        ExecutionEnd::Open => "it had not ended when the trial was settled",
        ExecutionEnd::Lost { reason, .. } => match reason {
            LostReason::WorkerDied => "its worker died",
            LostReason::Unreachable => "no live worker showed it",
            LostReason::Outage => "no live worker showed it after an outage of the server",
            LostReason::Stopped => "the run was stopped",
            LostReason::ProcessDied => "the process that ran it died",
        },
        ExecutionEnd::Reported { .. } if reopened => "the trial was run again by request",
        ExecutionEnd::Reported { verdict } => match &verdict.error {
            Some(error) if verdict.outcome == ItemOutcome::Failed && error.is_retryable() => {
                "it failed because of the infrastructure and was tried again"
            }
            _ if is_settled => "another execution of the trial counts",
            _ => "a newer execution may count",
        },
    }
}
