//! The history of a run: the readable records of its journal, and the results proven beside it.

use rollout_protocol::Timestamp;
use rollout_protocol::id::ItemId;

use super::RunDirectoryContents;
use super::evidence::{RepairEvidence, RestoredResult};
use super::possible_reopenings::PossibleReopenings;
use super::replay::{HistoryReplay, RecordSink};
use crate::engine::core::JournalRecord;
use crate::engine::journal::JournalError;

/// The parts of a history. Writing it again gives the same records.
pub(super) struct RunHistory<'a> {
    /// The readable parts of the run directory.
    pub(super) found: &'a RunDirectoryContents,
    /// All evidence beside the journal.
    pub(super) evidence: &'a RepairEvidence,
    /// Time for the records that no journal has.
    pub(super) at: Timestamp,
    /// Epoch of the repair.
    pub(super) epoch: u32,
}

/// The result of writing a history.
pub(super) struct HistorySummary {
    /// Items whose result was restored, with the sources of the proof.
    pub(super) restored: Vec<RestoredResult>,
    /// Items whose result may be from before a reopening.
    pub(super) doubtful: Vec<ItemId>,
    /// Every reopening of an item.
    pub(super) reopenings: Vec<ItemId>,
    /// Items with a result.
    pub(super) settled: usize,
    /// Items that were offered and have no result.
    pub(super) owed: Vec<ItemId>,
}

impl RunHistory<'_> {
    /// Writes every record in order to `out`.
    pub(super) fn write_records(
        &self,
        out: RecordSink<'_>,
    ) -> Result<HistorySummary, JournalError> {
        let Self { found, evidence, at, epoch } = self;
        let doubts = PossibleReopenings::read(&found.salvage, found.manifest.as_ref())?;
        let mut replica = HistoryReplay::new(doubts);
        found.salvage.records(|at, record| {
            if let JournalRecord::Opened(opened) = &record {
                evidence.settle_before(opened, &mut replica, at, out);
            }
            replica.apply(at, record, out);
        })?;
        let mut restored = evidence.restore(&mut replica, *at, out);
        // A lost session may have superseded these: they run again.
        let doubtful: Vec<ItemId> = replica.possibly_superseded().into_iter().collect();
        if !doubtful.is_empty() {
            let items = doubtful.clone();
            replica.apply(*at, JournalRecord::Reopened { epoch: *epoch, items }, out);
        }
        restored.retain(|(item, _)| replica.is_settled(item));
        Ok(HistorySummary {
            restored,
            doubtful,
            reopenings: replica.reopenings().to_vec(),
            settled: replica.settled(),
            owed: replica.pending().into_iter().collect(),
        })
    }
}
