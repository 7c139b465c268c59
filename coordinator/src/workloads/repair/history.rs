//! The history of a run: the readable records of its journal, and the results proven beside it.

use rollout_engine::core::JournalRecord;
use rollout_engine::journal::JournalError;
use rollout_protocol::Timestamp;
use rollout_protocol::id::ItemId;

use super::RunDirectoryContents;
use super::evidence::{RepairEvidence, RestoredResult};
use super::possible_reopenings::PossibleReopenings;
use super::replay::{HistoryReplay, RecordSink};

/// The parts of a history. Writing it again gives the same records.
pub(super) struct RunHistory<'a> {
    /// The readable parts of the run directory.
    pub(super) contents: &'a RunDirectoryContents,
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
    pub(super) pending: Vec<ItemId>,
}

impl RunHistory<'_> {
    /// Writes every record in order to `out`.
    pub(super) fn write_records(
        &self,
        out: RecordSink<'_>,
    ) -> Result<HistorySummary, JournalError> {
        let Self { contents, evidence, at, epoch } = self;
        let possible_reopenings =
            PossibleReopenings::read(&contents.salvage, contents.manifest.as_ref())?;
        let mut replay = HistoryReplay::new(possible_reopenings);
        contents.salvage.records(|at, record| {
            if let JournalRecord::Opened(opened) = &record {
                evidence.settle_before(opened, &mut replay, at, out);
            }
            replay.apply(at, record, out);
        })?;
        let mut restored = evidence.restore(&mut replay, *at, out);
        // A lost session may have superseded these: they run again.
        let doubtful: Vec<ItemId> = replay.possibly_superseded().into_iter().collect();
        if !doubtful.is_empty() {
            let items = doubtful.clone();
            replay.apply(*at, JournalRecord::Reopened { epoch: *epoch, items }, out);
        }
        restored.retain(|(item, _)| replay.is_settled(item));
        Ok(HistorySummary {
            restored,
            doubtful,
            reopenings: replay.reopenings().to_vec(),
            settled: replay.settled(),
            pending: replay.pending().into_iter().collect(),
        })
    }
}
