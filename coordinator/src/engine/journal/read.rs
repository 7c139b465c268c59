//! Reading a journal back, segment by segment.

use std::fs::File;

use rollout_protocol::Timestamp;

use super::segment::SegmentReader;
use super::segment_index::{self, ActiveSegment, SegmentIndex};
use super::{JournalError, JournalPrefix, RunLayout};
use crate::engine::core::{JournalRecord, PredecessorSegment, SessionStart};

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

/// Reads every record of a run in order. `None` when the run has no journal yet.
///
/// `durable` are lengths of segments that are known to have been durable.
///
/// # Errors
/// [`JournalError`] for anything but a cut tail that was not known to be durable.
pub fn replay(
    layout: &RunLayout,
    durable: &[(u32, u64)],
    mut apply: impl FnMut(Timestamp, JournalRecord),
) -> Result<Option<ReplaySummary>, JournalError> {
    let index = SegmentIndex::read(layout)?;
    for (epoch, durable_bytes) in durable {
        check_opening(layout, &index, *epoch, *durable_bytes)?;
    }
    let mut replay: Option<ReplaySummary> = None;
    for link in index.active_segments() {
        let known = durable.iter().filter(|(of, _)| *of == link.opened.epoch);
        let known = known.map(|(_, bytes)| *bytes).max();
        read_segment(layout, link, known.unwrap_or_default(), &mut replay, &mut apply)?;
    }
    Ok(replay)
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
    known_durable: u64,
    replay: &mut Option<ReplaySummary>,
    apply: &mut impl FnMut(Timestamp, JournalRecord),
) -> Result<(), JournalError> {
    let mut segment = SegmentReader::open_digested(layout, link.opened.epoch)?;
    let former = link.end;
    let opening = segment.opening()?;
    if let Some((at, opened)) = &opening {
        apply(*at, JournalRecord::Opened(Box::new(opened.clone())));
        let end = former.map_or(u64::MAX, |former| former.bytes);
        while segment.prefix().bytes < end
            && let Some(incoming) = segment.next()?
        {
            apply(incoming.at, incoming.record);
        }
    }
    let JournalPrefix { epoch, records, bytes, .. } = segment.prefix();
    // The length that the next owner recorded counts, whatever a woken previous owner states.
    match former {
        Some(former) if bytes < former.bytes => segment.check_rest(former.bytes, former.bytes)?,
        Some(_) => {}
        None => segment.check_rest(known_durable, u64::MAX)?,
    }
    let digest = segment.digest().expect("it was opened to be digested");
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
