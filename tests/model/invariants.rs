//! Facts of the simulation, and checks of the coordinators' settlements against them.

use std::collections::{BTreeMap, BTreeSet};

use rollout_engine::core::ItemSettlement;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::ErrorCode;
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::record::{ExecutionEnd, ItemOutcome, Verdict};
use rollout_protocol::wire::report::{Report, ReportBody};

use crate::names::{exec_number, item_number};

/// Minimum number of deaths before an item may be given up.
pub(crate) const MIN_DEATHS_BEFORE_POISONED: usize = 3;

/// An execution that really happened.
#[derive(Debug, Clone)]
pub(crate) struct ExecutionFact {
    pub(crate) item: ItemId,
    pub(crate) try_id: TryId,
    pub(crate) spec: Digest,
    /// Its result, if it ended.
    pub(crate) verdict: Option<Verdict>,
    /// Its worker died, or is indistinguishable from a dead one.
    pub(crate) died: bool,
    /// The server acknowledged its result, and a marker of the result is stored.
    pub(crate) has_marker: bool,
}

/// A durable settlement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settlement {
    by: Option<ExecId>,
    verdict: Verdict,
}

impl Settlement {
    pub(crate) fn by(&self) -> Option<ExecId> {
        self.by
    }

    pub(crate) fn verdict(&self) -> &Verdict {
        &self.verdict
    }
}

impl From<&ItemSettlement> for Settlement {
    fn from(settled: &ItemSettlement) -> Self {
        let by = settled.by.as_ref().map(|by| by.exec);
        Self { by, verdict: settled.verdict.clone() }
    }
}

/// Facts that no coordinator may contradict.
#[derive(Debug, Default)]
pub(crate) struct InvariantChecker {
    /// The first violation.
    pub(crate) violation: Option<String>,
    pub(crate) executions: BTreeMap<ExecId, ExecutionFact>,
    /// Settlements that were durable in the journal of the owner at that time.
    pub(crate) settled: BTreeMap<ItemId, Settlement>,
    /// Settled items that every successor must know, whichever copy of the journal it has.
    pub(crate) confirmed: BTreeSet<ItemId>,
    /// Items whose cancellation was acknowledged.
    pub(crate) cancelled: BTreeSet<ItemId>,
    /// Acknowledged cancellations that every successor must know.
    pub(crate) cancelled_for_all: BTreeSet<ItemId>,
    /// Items that a user asked to cancel.
    pub(crate) cancel_requested: BTreeSet<ItemId>,
    /// Reports that were purged.
    pub(crate) purged: Vec<Report>,
    /// Number of injected faults.
    pub(crate) faults: usize,
    /// The owner that wrote the lock last, and the directory of its journal.
    pub(crate) owner: u32,
    pub(crate) directory: usize,
}

impl InvariantChecker {
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert_with(|| what.into());
    }

    pub(crate) fn record_start(&mut self, exec: ExecId, fact: ExecutionFact) {
        self.executions.insert(exec, fact);
    }

    pub(crate) fn record_result(&mut self, report: &Report) {
        if let (ReportBody::Result(body), Some(fact)) =
            (&report.body, self.executions.get_mut(&report.exec))
        {
            fact.verdict = Some(body.verdict.clone());
        }
    }

    /// Records that the server acknowledged a result that also has a marker.
    pub(crate) fn record_kept_result(&mut self, exec: &ExecId) {
        if let Some(fact) = self.executions.get_mut(exec) {
            fact.has_marker = fact.verdict.is_some();
        }
    }

    pub(crate) fn record_death(&mut self, exec: &ExecId) {
        if let Some(fact) = self.executions.get_mut(exec) {
            fact.died = true;
        }
    }

    /// Checks a settlement against the facts.
    pub(crate) fn check_settlement(
        &self,
        settled: &ItemSettlement,
        present: Digest,
    ) -> Result<(), String> {
        let n = item_number(&settled.item);
        if settled.verdict.outcome == ItemOutcome::Cancelled {
            let asked = self.cancel_requested.contains(&settled.item);
            return if asked { Ok(()) } else { Err(format!("item {n} was not cancelled")) };
        }
        if self.cancelled.contains(&settled.item) {
            return Err(format!("item {n} was cancelled and settled by a result"));
        }
        let Some(by) = &settled.by else { return self.check_settled_without_execution(settled) };
        let e = exec_number(&by.exec);
        let Some(fact) = self.executions.get(&by.exec) else {
            return Err(format!("item {n} was settled by e{e}, which never ran"));
        };
        if (fact.item, fact.try_id) != (settled.item, by.try_id) {
            return Err(format!("item {n} was settled by e{e}, which ran something else"));
        }
        if fact.spec != present {
            return Err(format!("item {n} was settled by e{e}, which ran under another spec"));
        }
        let reported = match &by.end {
            ExecutionEnd::Reported { verdict } => Some(verdict),
            ExecutionEnd::Lost { .. } | ExecutionEnd::Open => None,
        };
        if fact.verdict.is_none()
            || fact.verdict.as_ref() != reported
            || reported != Some(&settled.verdict)
        {
            return Err(format!("item {n} was settled by a verdict that e{e} did not report"));
        }
        Ok(())
    }

    fn check_settled_without_execution(&self, settled: &ItemSettlement) -> Result<(), String> {
        let n = item_number(&settled.item);
        let code = settled.verdict.error.as_ref().map(|error| &error.code);
        if settled.verdict.outcome != ItemOutcome::Failed || settled.verdict.reward.is_some() {
            return Err(format!("item {n} has a verdict without an execution"));
        }
        let of_item = |fact: &&ExecutionFact| fact.item == settled.item;
        let deaths = self.executions.values().filter(of_item).filter(|fact| fact.died).count();
        if code == Some(&ErrorCode::POISONED) && deaths < MIN_DEATHS_BEFORE_POISONED {
            return Err(format!("item {n} is poisoned after only {deaths} deaths"));
        }
        Ok(())
    }

    /// Records that a settlement became durable in the owner's journal.
    pub(crate) fn record_settlement(&mut self, settled: &ItemSettlement) {
        let new = Settlement::from(settled);
        let n = item_number(&settled.item);
        match self.settled.insert(settled.item, new.clone()) {
            None => {}
            Some(former) if former == new => self.fail(format!("item {n} was settled twice")),
            Some(former) => {
                let of = |settlement: &Settlement| settlement.by.map(|exec| exec_number(&exec));
                let (old, new) = (of(&former), of(&new));
                self.fail(format!("item {n} was settled by e{old:?} and then by e{new:?}"));
            }
        }
    }

    /// Checks a replayed journal. `same`: the journal is in the directory where it was written.
    pub(crate) fn check_replay(&mut self, replayed: &[ItemSettlement], same: bool) {
        let mut found = BTreeMap::new();
        for settled in replayed {
            if found.insert(settled.item, Settlement::from(settled)).is_some() {
                let n = item_number(&settled.item);
                self.fail(format!("item {n} is settled twice in one journal"));
            }
        }
        for (item, former) in &self.settled {
            let kept = found.get(item) == Some(former);
            if !kept && (same || self.confirmed.contains(item)) {
                let n = item_number(item);
                return self.fail(format!("the durable settlement of item {n} was lost"));
            }
        }
        if !same {
            self.cancelled = self.cancelled_for_all.clone();
        }
        self.settled = found;
    }
}
