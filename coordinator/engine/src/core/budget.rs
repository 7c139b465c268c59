//! The budgets of the run and of its agents: which items may be offered.
//!
//! An offered item reserves the whole budget of an execution until it releases its permit. What an
//! execution used is in its report. One that ended without a report that says so may have used all
//! of its budget, and counts as if it had. So the sum never exceeds a budget, whatever messages are
//! late or lost, by more than what single replies were longer than expected.

use std::collections::{BTreeMap, HashMap};

use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::budget::{BudgetLimits, ModelUse, RunBudget};

use super::Core;
use super::item::{ExecutionLoss, ExecutionState, ItemEntry, ItemStatus};

/// Amounts that a run and its agents have used and reserved.
#[derive(Debug, Default)]
pub(super) struct BudgetLedger {
    budget: RunBudget,
    /// The agent of each lane.
    agents: Vec<u16>,
    run: Account,
    of_agent: BTreeMap<u16, Account>,
    /// Use of items that are not planned yet, so that their agent is not known.
    unplanned: HashMap<ItemId, ModelUse>,
}

/// The state of one budget.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    used: ModelUse,
    /// Items that hold a permit.
    reserved: u64,
}

impl Account {
    /// The limit that `more` executions would exceed, in words.
    fn exceeded_with(
        &self,
        limits: &BudgetLimits,
        each_try: ModelUse,
        more: u64,
    ) -> Option<String> {
        limits.exceeded_by(self.used.plus(each_try.times(self.reserved + more)))
    }
}

impl BudgetLedger {
    pub(super) fn new(budget: RunBudget) -> Self {
        Self { budget, ..Self::default() }
    }

    /// Whether nothing is limited.
    pub(super) fn is_unlimited(&self) -> bool {
        self.budget.run.is_unlimited() && self.budget.agent.is_unlimited()
    }

    /// The agent of a lane; the same for all lanes if they are not of one agent each.
    pub(super) fn agent(&self, lane: u16) -> u16 {
        self.agents.get(usize::from(lane)).copied().unwrap_or_default()
    }

    /// Whether another item of a lane may be offered, beside these of a batch: of the run, and of
    /// the lane's agent.
    pub(super) fn covers(&self, lane: u16, of_run: u64, of_agent: u64) -> bool {
        if self.is_unlimited() {
            return true;
        }
        self.covers_run(of_run) && self.exceeded_by_agent(self.agent(lane), of_agent + 1).is_none()
    }

    /// Whether any item may be offered, beside these of a batch.
    pub(super) fn covers_run(&self, of_batch: u64) -> bool {
        self.exceeded_by_run(of_batch + 1).is_none()
    }

    fn exceeded_by_run(&self, more: u64) -> Option<String> {
        self.run.exceeded_with(&self.budget.run, self.budget.each_try.most(), more)
    }

    fn exceeded_by_agent(&self, agent: u16, more: u64) -> Option<String> {
        let account = self.of_agent.get(&agent).copied().unwrap_or_default();
        account.exceeded_with(&self.budget.agent, self.budget.each_try.most(), more)
    }

    fn change(&mut self, lane: u16, change: impl Fn(&mut Account)) {
        change(&mut self.run);
        change(self.of_agent.entry(self.agent(lane)).or_default());
    }

    /// Use of an execution that ended without a verdict.
    fn used_by_lost(&self, loss: &ExecutionLoss) -> ModelUse {
        let had_begun = loss.phase.is_none_or(|phase| phase >= Phase::AgentSetup);
        match had_begun && loss.record.is_none() {
            true => self.budget.each_try.most(),
            false => loss.model_use,
        }
    }
}

impl Core {
    /// Sets the agent of each lane, once the journal of former sessions was read. Without budgets
    /// nothing is counted any more.
    pub fn set_agents_of_lanes(&mut self, agents: Vec<u16>) {
        self.ledger.agents = agents;
        if self.ledger.is_unlimited() {
            self.ledger.unplanned = HashMap::new();
        }
    }

    /// Counts what an execution used, and no longer what was assumed when it was lost.
    pub(super) fn count_use(
        &mut self,
        item: ItemId,
        used: ModelUse,
        presumed: Option<&ExecutionLoss>,
    ) {
        let ledger = &mut self.ledger;
        let assumed = presumed.map_or(ModelUse::default(), |loss| ledger.used_by_lost(loss));
        if ledger.is_unlimited() || used.is_none() && assumed.is_none() {
            return;
        }
        match self.items.get(&item).filter(|row| row.ordinal.is_some()) {
            Some(row) => ledger.change(row.lane, |account| {
                account.used = account.used.plus(used).minus(assumed);
            }),
            None => {
                let sum = ledger.unplanned.entry(item).or_default();
                *sum = sum.plus(used).minus(assumed);
            }
        }
    }

    /// Counts what a lost execution may have used.
    pub(super) fn count_loss(
        &mut self,
        item: ItemId,
        loss: &ExecutionLoss,
        presumed: Option<&ExecutionLoss>,
    ) {
        self.count_use(item, self.ledger.used_by_lost(loss), presumed);
    }

    /// An item of the plan is known: what it used and reserves is that of an agent from now on.
    pub(super) fn count_planned(&mut self, item: &ItemId) {
        let used = self.ledger.unplanned.remove(item).unwrap_or_default();
        let Some(row) = self.items.get(item) else { return };
        let reserved = u64::from(row.state == ItemStatus::Offered);
        if reserved > 0 || !used.is_none() {
            self.ledger.change(row.lane, |account| {
                account.used = account.used.plus(used);
                account.reserved += reserved;
            });
        }
    }

    /// An item takes a permit.
    pub(super) fn reserve_try(&mut self, item: &ItemId) {
        if let Some(row) = self.items.get(item).filter(|row| row.ordinal.is_some()) {
            self.ledger.change(row.lane, |account| account.reserved += 1);
        }
    }

    /// An item releases its permit.
    pub(super) fn release_try(&mut self, item: &ItemId) {
        if let Some(row) = self.items.get(item).filter(|row| row.ordinal.is_some()) {
            self.ledger.change(row.lane, |account| {
                account.reserved = account.reserved.saturating_sub(1);
            });
        }
    }

    /// Whether the budgets keep every remaining item from being offered: the limit, in words. Items
    /// in flight may still leave something of their budgets.
    pub fn exceeded_budget(&self) -> Option<String> {
        let is_working = self.dispatching && self.stop.is_none() && !self.paused;
        if self.ledger.is_unlimited() || !is_working || self.in_flight > 0 || self.is_complete() {
            return None;
        }
        let next = |exceeded: String| format!("one more trial could lead to {exceeded}");
        if let Some(exceeded) = self.ledger.exceeded_by_run(1) {
            return Some(format!("the budget of the run is used up: {}", next(exceeded)));
        }
        if !self.exhausted || !self.waiting.is_empty() || self.ready.is_empty() {
            return None;
        }
        let lanes = self.ready.kinds().map(|((_, lane), _)| lane);
        let exceeded: Option<Vec<String>> =
            lanes.map(|lane| self.ledger.exceeded_by_agent(self.ledger.agent(lane), 1)).collect();
        let first = exceeded?.into_iter().next()?;
        Some(format!("the budget of an agent is used up: {}", next(first)))
    }
}

/// The loss of an execution that was presumed lost.
pub(super) fn presumed_loss(row: &ItemEntry, exec: &ExecId) -> Option<ExecutionLoss> {
    let known = row.executions.iter().find(|known| known.exec == *exec)?;
    match &known.state {
        ExecutionState::Lost(loss) => Some(loss.clone()),
        ExecutionState::Open | ExecutionState::Result { .. } => None,
    }
}
