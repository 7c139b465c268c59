//! Reading a journal back, segment by segment.

use std::fs::File;

use rollout_protocol::Timestamp;

use super::segment::SegmentReader;
use super::segment_index::{self, ActiveSegment, SegmentIndex};
use super::{JournalError, JournalPrefix, RunLayout};
use crate::core::{JournalRecord, PredecessorSegment, SessionStart};

/// Summary of a replayed journal.
#[derive(Debug)]
pub struct ReplaySummary {
    /// The first session's opening, and its time.
    pub first: (Timestamp, SessionStart),
    /// The last session's opening.
    pub last: SessionStart,
    /// The last segment and how much of it counts.
    pub head: PredecessorSegment,
    /// Bytes after that, which were never known to be durable.
    pub torn_bytes: u64,
    /// Number of records read.
    pub records: u64,
}

/// Syncs a segment that was read, as it is: its writer may have died before its last sync.
///
/// # Errors
/// [`JournalError`].
pub fn sync_segment(layout: &RunLayout, epoch: u32) -> Result<(), JournalError> {
    for path in [layout.segment(epoch), layout.journal()] {
        File::open(&path)
            .and_then(|file| file.sync_all())
            .map_err(JournalError::io("sync", &path))?;
    }
    Ok(())
}

/// How much of the newest segment is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayExtent {
    /// Every whole record: the writer has ended.
    Whole,
    /// The records up to this byte, as a new session does. A former owner that woke up may have
    /// appended more, which no longer counts.
    Until(u64),
    /// The records that are known to be durable: the writer may be appending. Every whole record if
    /// nothing is known.
    Durable,
}

/// Reads every record of a run in order. `None` when the run has no journal yet.
///
/// `durable` are lengths of segments that are known to have been durable.
///
/// # Errors
/// [`JournalError`] for anything but a cut tail that was not known to be durable.
pub fn replay(
    layout: &RunLayout,
    durable: &[(u32, u64)],
    apply: impl FnMut(Timestamp, JournalRecord),
) -> Result<Option<ReplaySummary>, JournalError> {
    SegmentIndex::read(layout)?.replay(durable, ReplayExtent::Whole, apply)
}

impl SegmentIndex {
    /// Reads every record of the segments in order, as [`replay`] does.
    ///
    /// # Errors
    /// [`JournalError`] for anything but a cut tail that was not known to be durable.
    pub fn replay(
        &self,
        durable: &[(u32, u64)],
        extent: ReplayExtent,
        mut apply: impl FnMut(Timestamp, JournalRecord),
    ) -> Result<Option<ReplaySummary>, JournalError> {
        let layout = self.layout();
        for (epoch, durable_bytes) in durable {
            check_opening(layout, self, *epoch, *durable_bytes)?;
        }
        let mut replay: Option<ReplaySummary> = None;
        for link in self.active_segments() {
            let known = durable.iter().filter(|(of, _)| *of == link.opened.epoch);
            let known = known.map(|(_, bytes)| *bytes).max();
            read_segment(layout, link, known, extent, &mut replay, &mut apply)?;
        }
        Ok(replay)
    }
}

/// Refuses a journal whose durable segment `epoch` does not count: it is missing, or cut before the
/// end of its first record.
fn check_opening(
    layout: &RunLayout,
    index: &SegmentIndex,
    epoch: u32,
    durable_bytes: u64,
) -> Result<(), JournalError> {
    let newest = index.openings().next_back().map(|opened| opened.epoch);
    if newest >= Some(epoch) {
        return Ok(());
    }
    let path = layout.segment(epoch);
    if !path.exists() {
        return Err(JournalError::Missing { path });
    }
    Err(segment_index::no_opening(layout, epoch, durable_bytes)?)
}

fn read_segment(
    layout: &RunLayout,
    link: &ActiveSegment,
    known_durable: Option<u64>,
    extent: ReplayExtent,
    replay: &mut Option<ReplaySummary>,
    apply: &mut impl FnMut(Timestamp, JournalRecord),
) -> Result<(), JournalError> {
    let mut segment = SegmentReader::open_digested(layout, link.opened.epoch)?;
    let former = link.end;
    // A writer that appends has no torn tail: what it has not synced is not read.
    let limit = match (former, extent) {
        (None, ReplayExtent::Durable) => segment.durable_bytes(known_durable),
        (None, ReplayExtent::Until(bytes)) => Some(bytes),
        (Some(_), _) | (None, ReplayExtent::Whole) => None,
    };
    let opening = segment.opening()?;
    if let Some((at, opened)) = &opening {
        apply(*at, JournalRecord::Opened(Box::new(opened.clone())));
        let end = former.map(|former| former.bytes).or(limit).unwrap_or(u64::MAX);
        while segment.prefix().bytes < end
            && let Some(incoming) = segment.next()?
        {
            apply(incoming.at, incoming.record);
        }
    }
    let JournalPrefix { epoch, records, bytes, .. } = segment.prefix();
    let digest = segment.digest().expect("it was opened to be digested");
    // The length that the next owner recorded counts, whatever a woken previous owner states.
    match (former, extent) {
        (Some(former), _) if bytes < former.bytes => {
            segment.check_rest(former.bytes, former.bytes)?;
        }
        (Some(_), _) => {}
        (None, ReplayExtent::Whole) => {
            segment.check_rest(known_durable.unwrap_or_default(), u64::MAX)?;
        }
        (None, ReplayExtent::Until(_)) => {
            if segment.next()?.is_none() {
                segment.check_rest(known_durable.unwrap_or_default(), u64::MAX)?;
            }
        }
        (None, ReplayExtent::Durable) => {
            if let Some(limit) = limit.filter(|limit| bytes < *limit) {
                segment.check_rest(limit, limit)?;
            }
        }
    }
    let head = PredecessorSegment { epoch, bytes, digest };
    if former.is_some_and(|former| former != head) {
        return Err(JournalError::Changed { path: segment.path });
    }
    let Some((at, opened)) = opening else { return Ok(()) };
    let torn_bytes = segment.length.saturating_sub(bytes);
    match replay {
        None => {
            let first = (at, opened.clone());
            *replay = Some(ReplaySummary { first, last: opened, head, torn_bytes, records });
        }
        Some(replay) => {
            replay.last = opened;
            replay.head = head;
            replay.torn_bytes = torn_bytes;
            replay.records += records;
        }
    }
    Ok(())
}
