//! Reference implementation of the merge rules, over records alone and as simple as possible.

use std::collections::{BTreeMap, BTreeSet};

use rollout_engine::core::{ItemSettlement, JournalRecord, OfferedTry};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::record::{ItemOutcome, Verdict};
use rollout_protocol::wire::report::{Report, ReportBody};

use crate::invariants::ExecutionFact;
use crate::names::{exec_number, item_number, may_be_retried};

/// State of every item according to a journal.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReferenceModel {
    items: BTreeMap<ItemId, ReferenceItem>,
    reports_seen: i64,
    cancelled: BTreeSet<ItemId>,
}

#[derive(Debug, Clone)]
struct ReferenceItem {
    spec: Digest,
    current: TryId,
    floor: TryId,
    executions: Vec<ReferenceExecution>,
    settled: bool,
}

#[derive(Debug, Clone)]
struct ReferenceExecution {
    exec: ExecId,
    try_id: TryId,
    /// Order of its first report; negative when that was its result.
    order: i64,
    lost: bool,
    result: Option<(Digest, Verdict)>,
}

impl ReferenceExecution {
    fn age(&self) -> (TryId, i64) {
        (self.try_id, self.order)
    }

    fn is_open(&self) -> bool {
        !self.lost && self.result.is_none()
    }
}

impl ReferenceItem {
    fn is_eligible(&self, execution: &ReferenceExecution) -> bool {
        let of_spec = execution.result.as_ref().is_some_and(|(spec, _)| *spec == self.spec);
        of_spec && execution.try_id >= self.floor
    }
}

impl ReferenceModel {
    pub(crate) fn apply_record(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Offered { tries } => {
                tries.iter().for_each(|offered| self.apply_offer(offered));
            }
            JournalRecord::Reported { report, .. } | JournalRecord::Recovered { report } => {
                self.apply_report(report);
            }
            JournalRecord::Heard { executions, .. } => {
                for heard in executions {
                    self.add_execution(heard.item, heard.exec, heard.try_id, false);
                }
            }
            JournalRecord::Cancelled { items } => {
                self.cancelled.extend(items.iter().map(|i| i.item));
            }
            JournalRecord::Claimed { claim } => {
                self.add_execution(claim.item, claim.exec, claim.try_id, false);
            }
            JournalRecord::Lost { item, exec, .. } => {
                if let Some(execution) = self.find_execution(item, exec) {
                    execution.lost |= execution.result.is_none();
                }
            }
            JournalRecord::Respecified { item, spec } => {
                if let Some(item) = self.items.get_mut(item) {
                    item.spec = *spec;
                    item.floor = item.current.next(item.current.epoch);
                }
            }
            _ => {}
        }
    }

    fn apply_offer(&mut self, offered: &OfferedTry) {
        let OfferedTry { item, try_id, spec } = *offered;
        let executions = Vec::new();
        let fresh =
            ReferenceItem { spec, current: try_id, floor: try_id, executions, settled: false };
        let item = self.items.entry(item).or_insert(fresh);
        item.current = try_id;
        item.spec = spec;
    }

    fn apply_report(&mut self, report: &Report) {
        let Report { item, exec, try_id, spec, body, .. } = report;
        self.add_execution(*item, *exec, *try_id, !matches!(body, ReportBody::Started));
        let Some(execution) = self.find_execution(item, exec) else { return };
        match body {
            ReportBody::Started | ReportBody::Events(_) => {}
            ReportBody::Lost { .. } => execution.lost |= execution.result.is_none(),
            ReportBody::Result(body) => {
                execution.result.get_or_insert((*spec, body.verdict.clone()));
            }
        }
    }

    fn add_execution(&mut self, item: ItemId, exec: ExecId, try_id: TryId, ended: bool) {
        let Some(item) = self.items.get_mut(&item).filter(|item| !item.settled) else { return };
        if item.executions.iter().all(|known| known.exec != exec) {
            self.reports_seen += 1;
            let order = if ended { -self.reports_seen } else { self.reports_seen };
            item.executions.push(ReferenceExecution {
                exec,
                try_id,
                order,
                lost: false,
                result: None,
            });
        }
    }

    fn find_execution(&mut self, item: &ItemId, exec: &ExecId) -> Option<&mut ReferenceExecution> {
        let executions = &mut self.items.get_mut(item)?.executions;
        executions.iter_mut().find(|known| known.exec == *exec)
    }

    /// Checks that the item may be settled like this now, and settles it.
    pub(crate) fn settle(&mut self, settled: &ItemSettlement) -> Result<(), String> {
        let n = item_number(&settled.item);
        let Some(item) = self.items.get_mut(&settled.item) else {
            // The item was never offered: only a user can have ended it.
            return match &settled.by {
                None => Ok(()),
                Some(_) => Err(format!("item {n} was settled and never offered")),
            };
        };
        if std::mem::replace(&mut item.settled, true) {
            return Err(format!("item {n} was settled twice in one journal"));
        }
        if self.cancelled.contains(&settled.item) {
            return match (settled.verdict.outcome, item.executions.iter().find(|e| e.is_open())) {
                (ItemOutcome::Cancelled, None) => Ok(()),
                (ItemOutcome::Cancelled, Some(open)) => {
                    let open = exec_number(&open.exec);
                    Err(format!("item {n} was settled as cancelled while e{open} was open"))
                }
                _ => Err(format!("item {n} was settled by a result after it was cancelled")),
            };
        }
        let Some(by) = &settled.by else { return Ok(()) };
        let e = exec_number(&by.exec);
        let Some(winner) = item.executions.iter().find(|known| known.exec == by.exec) else {
            return Err(format!("item {n} was settled by e{e}, which was never reported"));
        };
        if !item.is_eligible(winner) {
            return Err(format!("item {n} was settled by e{e}, which is not eligible"));
        }
        let newer = |known: &&ReferenceExecution| known.age() > winner.age();
        if let Some(open) = item.executions.iter().filter(newer).find(|known| known.is_open()) {
            let open = exec_number(&open.exec);
            return Err(format!("item {n} was settled by e{e} while the newer e{open} was open"));
        }
        let last = |known: &&ReferenceExecution| {
            let verdict = known.result.as_ref().map(|(_, verdict)| verdict);
            item.is_eligible(known) && verdict.is_some_and(|verdict| !may_be_retried(verdict))
        };
        if let Some(better) = item.executions.iter().filter(newer).find(last) {
            let better = exec_number(&better.exec);
            return Err(format!("item {n} was settled by e{e} although e{better} is newer"));
        }
        Ok(())
    }

    /// Checks that an item looked up in the store may be offered again.
    pub(crate) fn may_offer(
        &self,
        item: &ItemId,
        facts: &BTreeMap<ExecId, ExecutionFact>,
    ) -> Result<(), String> {
        let Some((spec, floor, false)) = self.item_state(item) else { return Ok(()) };
        let known = |exec| {
            let executions = &self.items[item].executions;
            executions.iter().any(|known| known.exec == exec && known.result.is_some())
        };
        let settles = |(exec, fact): &(&ExecId, &ExecutionFact)| {
            let last = fact.verdict.as_ref().is_some_and(|verdict| !may_be_retried(verdict));
            let counts = fact.spec == spec && fact.try_id >= floor;
            fact.has_marker && fact.item == *item && last && counts && !known(**exec)
        };
        match facts.iter().find(settles) {
            None => Ok(()),
            Some((exec, _)) => {
                let (n, e) = (item_number(item), exec_number(exec));
                Err(format!("item {n} is offered again although e{e} has its result"))
            }
        }
    }

    /// The item's spec, its floor, and whether it is settled.
    pub(crate) fn item_state(&self, item: &ItemId) -> Option<(Digest, TryId, bool)> {
        self.items.get(item).map(|item| (item.spec, item.floor, item.settled))
    }
}
