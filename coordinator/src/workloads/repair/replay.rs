//! The state that results from a salvaged journal.

use std::collections::{BTreeSet, HashMap};

use rollout_engine::core::{
    Core, CoreEffect, CoreSettings, ItemSettlement, JournalRecord, OfferedTry, RemoteTimeouts,
};
use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::report::Report;

use super::possible_reopenings::PossibleReopenings;

/// Receives the records of a history in their order.
pub(super) type RecordSink<'a> = &'a mut dyn FnMut(Timestamp, &JournalRecord);

/// A core that replays a journal with gaps. A lost reopening that a later record proves is inserted
/// where it must have been.
#[derive(Debug)]
pub(super) struct HistoryReplay {
    core: Core,
    possible_reopenings: PossibleReopenings,
    /// Offered items and their specs.
    offered: HashMap<ItemId, Digest>,
    settled: HashMap<ItemId, EffectiveSettlement>,
    /// The last session that reopened each item.
    reopened: HashMap<ItemId, u32>,
    /// Every reopening of an item, in order.
    reopenings: Vec<ItemId>,
    /// Epoch of the last opening.
    epoch: u32,
    effects: Vec<CoreEffect>,
}

/// The settlement of an item that is in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EffectiveSettlement {
    /// Epoch up to which no session superseded it.
    pub(super) epoch: u32,
    /// The execution that settled the item, if one did.
    pub(super) exec: Option<ExecId>,
}

impl HistoryReplay {
    /// The state of a run without records.
    pub(super) fn new(possible_reopenings: PossibleReopenings) -> Self {
        let settings = CoreSettings {
            run: RunId::from_bytes([0; 16]),
            epoch: 0,
            permits: 1,
            retry: RetryPolicy::default(),
            timeouts: RemoteTimeouts::default(),
        };
        Self {
            core: Core::new(settings),
            possible_reopenings,
            offered: HashMap::new(),
            settled: HashMap::new(),
            reopened: HashMap::new(),
            reopenings: Vec::new(),
            epoch: 0,
            effects: Vec::new(),
        }
    }

    /// Applies a record and passes it to `out`. If the offer or the reopening that it needs is
    /// lost, that is inserted first: a report of a try proves that the try was offered, and a try
    /// of a settled item proves that the item was reopened.
    pub(super) fn apply(&mut self, at: Timestamp, record: JournalRecord, out: RecordSink<'_>) {
        for (item, try_id) in tries_of_record(&record) {
            if let Some(epoch) = self.lost_reopening(&item, try_id) {
                self.emit(at, JournalRecord::Reopened { epoch, items: vec![item] }, out);
            }
        }
        // An item is offered only while it has no settlement: a user retried it.
        if let JournalRecord::Offered { tries } = &record {
            for OfferedTry { item, try_id, .. } in tries {
                if self.is_settled(item) {
                    let (epoch, items) = (try_id.epoch, vec![*item]);
                    self.emit(at, JournalRecord::Reopened { epoch, items }, out);
                }
            }
        }
        if let Some((item, try_id, spec)) = reported_try(&record)
            && !self.offered.contains_key(&item)
        {
            if try_id.epoch < self.reopened_at(&item) {
                // A late report that never counted, of an item with no other record.
                return;
            }
            let tries = vec![OfferedTry { item, try_id, spec }];
            self.emit(at, JournalRecord::Offered { tries }, out);
        }
        self.emit(at, record, out);
    }

    /// The lost session that must have reopened a settled item for this try to exist.
    pub(super) fn lost_reopening(&self, item: &ItemId, try_id: TryId) -> Option<u32> {
        let settlement = self.settled.get(item)?;
        self.possible_reopenings.newest_reopening(item, settlement.epoch, try_id.epoch)
    }

    fn emit(&mut self, at: Timestamp, record: JournalRecord, out: RecordSink<'_>) {
        out(at, &record);
        self.apply_to_core(at, record);
    }

    fn apply_to_core(&mut self, at: Timestamp, record: JournalRecord) {
        match &record {
            JournalRecord::Offered { tries } => {
                self.offered.extend(tries.iter().map(|offered| (offered.item, offered.spec)));
            }
            JournalRecord::Respecified { item, spec } => {
                self.offered.insert(*item, *spec);
            }
            JournalRecord::Opened(opened) => {
                self.epoch = opened.epoch;
                self.reopen(&opened.reopened, opened.epoch);
            }
            JournalRecord::Reopened { epoch, items } => self.reopen(items, *epoch),
            _ => {}
        }
        self.core.apply(at, record, &mut self.effects);
        for effect in self.effects.drain(..) {
            if let CoreEffect::Settled(settled) = effect {
                let ItemSettlement { item, by, .. } = *settled;
                let by = by.map(|by| (by.try_id.epoch, by.exec));
                let epoch = by.map_or(self.epoch, |(epoch, _)| epoch);
                self.settled
                    .insert(item, EffectiveSettlement { epoch, exec: by.map(|(_, exec)| exec) });
            }
        }
    }

    fn reopen(&mut self, items: &[ItemId], epoch: u32) {
        for item in items {
            self.settled.remove(item);
            self.reopened.insert(*item, epoch);
            self.reopenings.push(*item);
        }
    }

    /// Records that no session up to `epoch` superseded the settlement of an item.
    pub(super) fn mark_not_superseded(&mut self, item: &ItemId, epoch: u32) {
        if let Some(settlement) = self.settled.get_mut(item) {
            settlement.epoch = settlement.epoch.max(epoch);
        }
    }

    /// Settled items that a session whose opening is lost may have reopened, in order.
    pub(super) fn possibly_superseded(&self) -> BTreeSet<ItemId> {
        let doubtful = |item: &ItemId, standing: &EffectiveSettlement| {
            self.possible_reopenings.newest_reopening(item, standing.epoch, u32::MAX).is_some()
        };
        let settled = self.settled.iter().filter(|(item, standing)| doubtful(item, standing));
        settled.map(|(item, _)| *item).collect()
    }

    /// Epoch of the last session that reopened an item; 0 if none did.
    pub(super) fn reopened_at(&self, item: &ItemId) -> u32 {
        self.reopened.get(item).copied().unwrap_or_default()
    }

    /// Every reopening of an item, in order.
    pub(super) fn reopenings(&self) -> &[ItemId] {
        &self.reopenings
    }

    /// Whether an item is settled.
    pub(super) fn is_settled(&self, item: &ItemId) -> bool {
        self.settled.contains_key(item)
    }

    /// The settlement of an item that is in effect.
    pub(super) fn effective_settlement(&self, item: &ItemId) -> Option<EffectiveSettlement> {
        self.settled.get(item).copied()
    }

    /// The spec under which an item was last offered.
    pub(super) fn spec(&self, item: &ItemId) -> Option<Digest> {
        self.offered.get(item).copied()
    }

    /// Number of settled items.
    pub(super) fn settled(&self) -> usize {
        self.settled.len()
    }

    /// Items that were offered and have no settlement.
    pub(super) fn pending(&self) -> BTreeSet<ItemId> {
        self.offered.keys().filter(|item| !self.is_settled(item)).copied().collect()
    }
}

/// The try that a record reports.
fn reported_try(record: &JournalRecord) -> Option<(ItemId, TryId, Digest)> {
    let (JournalRecord::Reported { report, .. } | JournalRecord::Recovered { report }) = record
    else {
        return None;
    };
    let Report { item, try_id, spec, .. } = **report;
    Some((item, try_id, spec))
}

/// Every try whose existence a record proves.
fn tries_of_record(record: &JournalRecord) -> Vec<(ItemId, TryId)> {
    match record {
        JournalRecord::Offered { tries } => tries.iter().map(|o| (o.item, o.try_id)).collect(),
        JournalRecord::Withdrawn { tries } => tries.iter().map(|w| (w.item, w.try_id)).collect(),
        JournalRecord::Heard { executions, .. } => {
            executions.iter().map(|h| (h.item, h.try_id)).collect()
        }
        JournalRecord::Claimed { claim } => vec![(claim.item, claim.try_id)],
        JournalRecord::EventChunk { chunk, .. } => vec![(chunk.item, chunk.try_id)],
        _ => reported_try(record).map(|(item, try_id, _)| (item, try_id)).into_iter().collect(),
    }
}
