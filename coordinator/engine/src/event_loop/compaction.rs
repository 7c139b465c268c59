//! Compaction of the journal of a workload that runs without an end.

use super::Engine;
use crate::RunError;
use crate::journal::{self, JournalCompaction};

/// How much the journal has grown since its last compaction.
#[derive(Debug, Default)]
pub(super) struct JournalGrowth {
    /// Bytes of the segments of former sessions.
    former: u64,
    /// The segment that a compaction of this session made or is about to make, and its first length
    /// once that is known.
    compacted: Option<(u32, Option<u64>)>,
}

impl Engine {
    /// Measures the segments of former sessions. A size that cannot be read only delays a
    /// compaction.
    pub(super) fn measure_journal(&mut self) {
        let (layout, own) = (&self.run.layout, self.run.writer.durable_prefix().epoch);
        let epochs = journal::segment_epochs(layout).unwrap_or_default();
        let former = epochs.into_iter().filter(|epoch| *epoch != own);
        let sizes = former.filter_map(|epoch| std::fs::metadata(layout.segment(epoch)).ok());
        self.journal_growth.former = sizes.map(|size| size.len()).sum();
    }

    /// Hands the gathered records to the disk together with a compaction, if one is due.
    ///
    /// # Errors
    /// [`RunError::LockLost`] when another process owns the run.
    pub(super) fn submit_compaction(&mut self) -> Result<bool, RunError> {
        if !self.run.writer.is_disk_idle() || self.run.writer.is_mirrored() {
            return Ok(false);
        }
        let growth = self.journal_growth();
        let Some(snapshot) = self.planner.compaction(growth) else { return Ok(false) };
        // It removes segments: a process that was suspended may have a successor that reads them.
        self.run.fence.check().map_err(RunError::LockLost)?;
        let items = self.run.core.items().collect();
        let next = self.run.writer.durable_prefix().epoch + 1;
        self.journal_growth = JournalGrowth { former: 0, compacted: Some((next, None)) };
        Ok(self.run.writer.submit_with(JournalCompaction { snapshot, items }))
    }

    /// Bytes of the journal since its last compaction.
    fn journal_growth(&mut self) -> u64 {
        let prefix = self.run.writer.durable_prefix();
        let growth = &mut self.journal_growth;
        match &mut growth.compacted {
            // The compaction made this segment, or failed and is tried again when it has grown.
            Some((epoch, first)) => {
                let is_first = first.is_none() || prefix.epoch > *epoch;
                if is_first {
                    (*epoch, *first) = (prefix.epoch.max(*epoch), Some(prefix.bytes));
                }
                prefix.bytes.saturating_sub(first.unwrap_or_default())
            }
            None => growth.former + prefix.bytes,
        }
    }
}
