//! A settled trial as the tables see it.

use rollout_protocol::harness::Objective;
use rollout_protocol::record::{
    Durations, HarnessEventCounts, HarnessSummary, Settlement, Timestamps,
};
use rollout_protocol::spec::trial::TrialName;

use crate::plan::{JobPlan, PlannedTask};
use crate::results::metrics::{PrimaryMetric, TrialScore};

/// A settled trial, and a row of the table of trials.
pub(super) struct TableTrial<'a> {
    pub(super) run: &'a str,
    pub(super) id: String,
    pub(super) ordinal: u64,
    pub(super) provider: &'static str,
    pub(super) name: &'a TrialName,
    pub(super) settlement: &'a Settlement,
    pub(super) task: &'a PlannedTask,
    pub(super) score: TrialScore,
    pub(super) primary: Option<PrimaryMetric<'a>>,
}

impl<'a> TableTrial<'a> {
    /// The trial at an ordinal of the plan; `None` if the settlement is not of a planned trial.
    pub(super) fn new(
        run: &'a str,
        plan: &'a JobPlan,
        ordinal: u64,
        settlement: &'a Settlement,
    ) -> Option<Self> {
        let score = TrialScore::from_settlement(settlement);
        let objective = settlement.verdict.harness.as_ref().and_then(|h| h.objective.as_ref());
        Some(Self {
            run,
            id: settlement.item.to_string(),
            ordinal,
            provider: plan.settings().environment.provider.kind().as_str(),
            name: settlement.trial()?,
            settlement,
            task: plan.task_at(ordinal)?,
            score,
            primary: score.primary(objective),
        })
    }

    /// The result of the harness, if the agent has one.
    pub(super) fn harness(&self) -> Option<&'a HarnessSummary> {
        self.settlement.verdict.harness.as_deref()
    }

    /// The objective that the harness gave.
    pub(super) fn objective(&self) -> Option<&'a Objective> {
        self.harness()?.objective.as_ref()
    }

    /// The events of the harness, if the job names a file for them.
    pub(super) fn events(&self) -> Option<&'a HarnessEventCounts> {
        self.harness()?.events.as_ref()
    }

    /// Durations of the execution that settled the trial.
    pub(super) fn durations(&self) -> Option<&'a Durations> {
        self.settlement.by.as_ref()?.durations.as_ref()
    }

    /// Times of the execution that settled the trial.
    pub(super) fn timestamps(&self) -> Option<&'a Timestamps> {
        self.settlement.by.as_ref()?.timestamps.as_ref()
    }

    /// Number of its executions.
    pub(super) fn tries(&self) -> u32 {
        let tries = self.settlement.superseded.len() + usize::from(self.settlement.by.is_some());
        u32::try_from(tries).unwrap_or(u32::MAX)
    }

    /// Whether it passed; `None` if it is not scored.
    pub(super) fn success(&self) -> Option<bool> {
        self.score.is_scored().then_some(self.score.passed)
    }
}

/// A number that both formats can hold: JSON has no infinities.
pub(super) fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

/// A count as a cell.
pub(super) fn count(count: u64) -> Option<i64> {
    i64::try_from(count).ok()
}
