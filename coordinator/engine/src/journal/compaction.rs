//! Compaction of a journal: one new segment with everything that is still needed replaces all
//! others. It is complete or absent: it is moved into its place when it is durable.

use std::collections::HashSet;

use rollout_protocol::Timestamp;
use rollout_protocol::farm::FarmRecord;
use rollout_protocol::id::ItemId;

use super::rebuild::SegmentRebuilder;
use super::segment_index::{SegmentIndex, epochs};
use super::{JournalError, JournalPrefix, ReplayExtent, RunLayout};
use crate::core::{JournalRecord, SessionStart};

/// The part of a journal that a compaction keeps.
#[derive(Debug)]
pub struct JournalCompaction {
    /// Records that stand for all earlier records of the farm.
    pub snapshot: Vec<FarmRecord>,
    /// Items whose records are kept.
    pub items: HashSet<ItemId>,
}

/// Writes the segment of the next epoch in place of all segments. `durable` is the prefix of the
/// newest one. Returns the opening and the prefix of the new one.
///
/// # Errors
/// [`JournalError`]; the journal is as it was then. A segment that another process has created since
/// is one.
pub(super) fn compact(
    layout: &RunLayout,
    current: &SessionStart,
    durable: JournalPrefix,
    compaction: &JournalCompaction,
) -> Result<(SessionStart, JournalPrefix), JournalError> {
    let index = SegmentIndex::read(layout)?;
    if index.next_epoch() != current.epoch + 1 {
        let path = layout.segment(current.epoch);
        return Err(JournalError::Superseded { path });
    }
    let (began, replaces) = (index.first_session_start(), index.replaced(durable.bytes));
    let opened = SessionStart {
        epoch: current.epoch + 1,
        former: None,
        replaces,
        reopened: Vec::new(),
        reopened_within: Vec::new(),
        ..current.clone()
    };
    let at = began.unwrap_or(Timestamp::UNIX_EPOCH);
    let mut rebuilder = SegmentRebuilder::create(layout, at, opened.clone())?;
    let mut written = Ok(());
    let mut last = at;
    let mut filter = RecordFilter::new(&compaction.items);
    index.replay(&[], ReplayExtent::Until(durable.bytes), |at, record| {
        last = at;
        for (at, record) in filter.keep(at, record) {
            if written.is_ok() {
                written = rebuilder.record(at, &record);
            }
        }
    })?;
    written?;
    for (at, record) in filter.finish() {
        rebuilder.record(at, &record)?;
    }
    for record in &compaction.snapshot {
        rebuilder.record(last, &JournalRecord::Farm(Box::new(record.clone())))?;
    }
    Ok((opened, rebuilder.finish()?))
}

/// Removes the segments that a compaction replaced. They no longer count: what cannot be removed
/// only takes space.
pub(super) fn remove_replaced(layout: &RunLayout, epoch: u32) {
    let Ok(found) = epochs(&layout.journal()) else { return };
    for former in found.into_iter().filter(|former| *former < epoch) {
        for path in [layout.segment(former), layout.durable_length(former)] {
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!("cannot remove {}: {error}", path.display());
            }
        }
    }
}

/// Chooses the records that are still needed.
struct RecordFilter<'a> {
    items: &'a HashSet<ItemId>,
    /// The last opening, if no kept record follows it.
    opening: Option<(Timestamp, JournalRecord)>,
    /// The last record with a position of the queue, if it was not kept: a session reads on there.
    position: Option<(Timestamp, JournalRecord)>,
    /// Stops and pauses of the last session.
    session: Vec<(Timestamp, JournalRecord)>,
}

impl<'a> RecordFilter<'a> {
    fn new(items: &'a HashSet<ItemId>) -> Self {
        Self { items, opening: None, position: None, session: Vec::new() }
    }

    /// The records to write for one that was read.
    fn keep(&mut self, at: Timestamp, record: JournalRecord) -> Vec<(Timestamp, JournalRecord)> {
        let is_positioned =
            matches!(record, JournalRecord::Reported { .. } | JournalRecord::EventChunk { .. });
        match &record {
            JournalRecord::Opened(_) => {
                self.session.clear();
                self.opening = Some((at, record));
                return Vec::new();
            }
            JournalRecord::Stopping { .. } | JournalRecord::Paused { .. } => {
                self.session.push((at, record));
                return Vec::new();
            }
            _ => {}
        }
        match self.needed(record) {
            Ok(record) => {
                if is_positioned {
                    self.position = None;
                }
                // It has the retry policy under which the record was made.
                self.opening.take().into_iter().chain([(at, record)]).collect()
            }
            Err(record) => {
                if is_positioned {
                    self.position = Some((at, record));
                }
                Vec::new()
            }
        }
    }

    /// The records that follow all others.
    fn finish(self) -> impl Iterator<Item = (Timestamp, JournalRecord)> {
        self.position.into_iter().chain(self.session)
    }

    /// The record without items that are not kept; the record itself if nothing is left of it.
    fn needed(&self, record: JournalRecord) -> Result<JournalRecord, JournalRecord> {
        let items = self.items;
        let mut record = record;
        let is_needed = match &mut record {
            JournalRecord::Offered { tries } => {
                tries.retain(|one| items.contains(&one.item));
                !tries.is_empty()
            }
            JournalRecord::Withdrawn { tries } => {
                tries.retain(|one| items.contains(&one.item));
                !tries.is_empty()
            }
            JournalRecord::Heard { executions, .. } => {
                executions.retain(|one| items.contains(&one.item));
                !executions.is_empty()
            }
            JournalRecord::Cancelled { items: named }
            | JournalRecord::GivenUp { items: named, .. } => {
                named.retain(|one| items.contains(&one.item));
                !named.is_empty()
            }
            JournalRecord::Reopened { items: named, .. } => {
                named.retain(|one| items.contains(one));
                !named.is_empty()
            }
            JournalRecord::Reported { report, .. } | JournalRecord::Recovered { report } => {
                items.contains(&report.item)
            }
            JournalRecord::EventChunk { chunk, .. } => items.contains(&chunk.item),
            JournalRecord::Claimed { claim } => items.contains(&claim.item),
            JournalRecord::Lost { item, .. } | JournalRecord::Respecified { item, .. } => {
                items.contains(item)
            }
            JournalRecord::Retried { .. }
            | JournalRecord::Farm(_)
            | JournalRecord::Closed(_)
            | JournalRecord::Opened(_)
            | JournalRecord::Stopping { .. }
            | JournalRecord::Paused { .. } => false,
        };
        if is_needed { Ok(record) } else { Err(record) }
    }
}
