//! The history of a run: what its journal still says, and what is proven beside it.

use rollout_protocol::Timestamp;
use rollout_protocol::id::ItemId;

use super::Found;
use super::doubts::Doubts;
use super::evidence::{Evidence, Restored};
use super::replica::{Out, Replica};
use crate::engine::core::Record;
use crate::engine::journal::JournalError;

/// The parts of a history. Telling it again gives the same records.
pub(super) struct History<'a> {
    /// The readable parts of the run directory.
    pub(super) found: &'a Found,
    /// Everything known beside the journal.
    pub(super) evidence: &'a Evidence,
    /// Time of the records that no journal has.
    pub(super) at: Timestamp,
    /// Epoch of the repair.
    pub(super) epoch: u32,
}

/// The end of a history.
pub(super) struct Told {
    /// Items whose result was restored, and what proves it.
    pub(super) restored: Vec<Restored>,
    /// Items whose result may be from before a reopening.
    pub(super) doubtful: Vec<ItemId>,
    /// Every reopening of an item.
    pub(super) reopenings: Vec<ItemId>,
    /// Items with a result.
    pub(super) settled: usize,
    /// Items that were offered and have none.
    pub(super) owed: Vec<ItemId>,
}

impl History<'_> {
    /// Gives every record in order.
    pub(super) fn tell(&self, out: Out<'_>) -> Result<Told, JournalError> {
        let Self { found, evidence, at, epoch } = self;
        let doubts = Doubts::of(&found.salvage, found.manifest.as_ref())?;
        let mut replica = Replica::new(doubts);
        found.salvage.records(|at, record| {
            if let Record::Opened(opened) = &record {
                evidence.settle_before(opened, &mut replica, at, out);
            }
            replica.apply(at, record, out);
        })?;
        let mut restored = evidence.restore(&mut replica, *at, out);
        // It cannot be proven that no lost sitting superseded these: they run again.
        let doubtful: Vec<ItemId> = replica.doubtful().into_iter().collect();
        if !doubtful.is_empty() {
            let items = doubtful.clone();
            replica.apply(*at, Record::Reopened { epoch: *epoch, items }, out);
        }
        restored.retain(|(item, _)| replica.is_settled(item));
        Ok(Told {
            restored,
            doubtful,
            reopenings: replica.reopenings().to_vec(),
            settled: replica.settled(),
            owed: replica.owed().into_iter().collect(),
        })
    }
}
