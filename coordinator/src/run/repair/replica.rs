//! The state that a salvaged journal leads to.

use std::collections::{BTreeSet, HashMap, HashSet};

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::report::Report;

use crate::core::{Bounds, Core, Effect, OfferedTry, Record, Settings};

/// A core that replays a journal with gaps.
#[derive(Debug)]
pub(super) struct Replica {
    core: Core,
    /// Items that were offered, and under which spec.
    offered: HashMap<ItemId, Digest>,
    settled: HashSet<ItemId>,
    effects: Vec<Effect>,
}

impl Default for Replica {
    fn default() -> Self {
        let settings = Settings {
            run: RunId::from_bytes([0; 16]),
            epoch: 0,
            permits: 1,
            retry: RetryPolicy::default(),
            bounds: Bounds::default(),
        };
        let (core, effects) = (Core::new(settings), Vec::new());
        Self { core, offered: HashMap::new(), settled: HashSet::new(), effects }
    }
}

impl Replica {
    /// Applies a record. `out` is given it, after the offer that it needs when that one is lost: a
    /// report of a try proves that the try was offered.
    pub(super) fn apply(
        &mut self,
        at: Timestamp,
        record: Record,
        out: &mut impl FnMut(Timestamp, &Record),
    ) {
        if let Some(offer) = self.lost_offer(&record) {
            out(at, &offer);
            self.take(at, offer);
        }
        out(at, &record);
        self.take(at, record);
    }

    fn lost_offer(&self, record: &Record) -> Option<Record> {
        let (Record::Reported { report, .. }
        | Record::Unbacked { report, .. }
        | Record::Recovered { report }) = record
        else {
            return None;
        };
        let Report { item, try_id, spec, .. } = **report;
        let tries = vec![OfferedTry { item, try_id, spec }];
        (!self.offered.contains_key(&item)).then_some(Record::Offered { tries })
    }

    fn take(&mut self, at: Timestamp, record: Record) {
        match &record {
            Record::Offered { tries } => {
                self.offered.extend(tries.iter().map(|offered| (offered.item, offered.spec)));
            }
            Record::Respecified { item, spec } => {
                self.offered.insert(*item, *spec);
            }
            _ => {}
        }
        self.core.apply(at, record, &mut self.effects);
        for effect in self.effects.drain(..) {
            if let Effect::Settled(settled) = effect {
                self.settled.insert(settled.item);
            }
        }
    }

    /// Whether an item has its settlement.
    pub(super) fn is_settled(&self, item: &ItemId) -> bool {
        self.settled.contains(item)
    }

    /// The spec under which an item ran last.
    pub(super) fn spec(&self, item: &ItemId) -> Option<Digest> {
        self.offered.get(item).copied()
    }

    /// Items with a settlement.
    pub(super) fn settled(&self) -> usize {
        self.settled.len()
    }

    /// Items that were offered and have no settlement.
    pub(super) fn owed(&self) -> BTreeSet<ItemId> {
        self.offered.keys().filter(|item| !self.settled.contains(item)).copied().collect()
    }
}
