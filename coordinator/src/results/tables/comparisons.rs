//! The table `comparisons`: each agent against the baseline, the first agent of the plan.

use super::agent_summary::AgentRow;
use super::settled_trial::{count, finite};
use crate::plan::JobPlan;
use crate::results::metrics::TrialScore;
use crate::results::rows::{Column, Table, columns};

/// The table.
pub(super) struct Comparisons;

/// An agent against the baseline.
pub(super) struct ComparisonRow<'a> {
    pub(super) baseline: &'a AgentRow<'a>,
    pub(super) agent: &'a AgentRow<'a>,
    pub(super) pairs: PairCounts,
}

/// Pairs of scored trials of the same task and attempt, one of the baseline and one of an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PairCounts {
    /// Only the agent passed.
    wins: u64,
    /// Only the baseline passed.
    losses: u64,
    /// Both passed, or neither did.
    ties: u64,
}

/// The pairs of every agent. Trials are added in plan order, those of the baseline first.
#[derive(Debug)]
pub(super) struct PairedOutcomes {
    /// Whether each trial of the baseline passed; `None` if it is not scored.
    baseline: Vec<Option<bool>>,
    agents: Vec<PairCounts>,
}

impl PairedOutcomes {
    pub(super) fn new(plan: &JobPlan) -> Self {
        let trials = usize::try_from(plan.trials_per_agent()).expect("a plan fits into memory");
        // Without another agent nothing is compared.
        let trials = if plan.agents().len() > 1 { trials } else { 0 };
        Self {
            baseline: vec![None; trials],
            agents: vec![PairCounts::default(); plan.agents().len()],
        }
    }

    /// Adds the trial at an ordinal of the plan.
    pub(super) fn add(&mut self, plan: &JobPlan, ordinal: u64, score: &TrialScore) {
        let agent = (ordinal / plan.trials_per_agent()) as usize;
        let Some(slot) = self.baseline.get_mut(plan.index_of_agent_trial(ordinal) as usize) else {
            return;
        };
        let passed = score.is_scored().then_some(score.passed);
        if agent == 0 {
            *slot = passed;
            return;
        }
        let (Some(baseline), Some(passed)) = (*slot, passed) else { return };
        let pairs = &mut self.agents[agent];
        *match (baseline, passed) {
            (false, true) => &mut pairs.wins,
            (true, false) => &mut pairs.losses,
            (true, true) | (false, false) => &mut pairs.ties,
        } += 1;
    }

    /// The pairs of each agent, in the plan's order.
    pub(super) fn counts(&self) -> impl Iterator<Item = PairCounts> {
        self.agents.iter().copied()
    }
}

impl ComparisonRow<'_> {
    /// Success rate of the agent minus that of the baseline.
    fn difference(&self) -> Option<f64> {
        Some(self.agent.score.pass_rate()? - self.baseline.score.pass_rate()?)
    }
}

impl Table for Comparisons {
    const NAME: &'static str = "comparisons";
    type Row<'a> = ComparisonRow<'a>;
    const COLUMNS: &'static [Column<Self>] = columns! {
        "run_id": Text = |row| Some(row.agent.run);
        "baseline_agent": Text = |row| Some(row.baseline.agent.name.as_str());
        "agent": Text = |row| Some(row.agent.agent.name.as_str());
        "baseline_success_rate": Number = |row| row.baseline.score.pass_rate();
        "agent_success_rate": Number = |row| row.agent.score.pass_rate();
        "difference": Number = |row| row.difference();
        "pairs": Integer = |row| count(row.pairs.wins + row.pairs.losses + row.pairs.ties);
        "wins": Integer = |row| count(row.pairs.wins);
        "losses": Integer = |row| count(row.pairs.losses);
        "ties": Integer = |row| count(row.pairs.ties);
        "baseline_scored_mean_reward": Number =
            |row| row.baseline.score.mean_reward.and_then(finite);
        "agent_scored_mean_reward": Number = |row| row.agent.score.mean_reward.and_then(finite);
    };
}
