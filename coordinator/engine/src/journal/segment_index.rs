//! The segments of a journal: which of them count, and whether they hold everything that was known
//! to be durable.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rollout_protocol::Timestamp;
use rollout_protocol::id::ItemId;
use rollout_protocol::wire::delivery::PreviousPools;

use super::prefix::JournalPrefix;
use super::read::ReplayExtent;
use super::segment::SegmentReader;
use super::{JournalError, RunLayout};
use crate::core::{PredecessorSegment, ReplacedSegment, SessionStart};

/// Most segments that a compaction names as replaced, the newest ones: many times the compactions
/// between two renewals of an entry in the KV store, and some kilobytes in the journal.
const REPLACED_SEGMENTS: usize = 256;

/// The segments of a run directory. Those that count are the newest one with a whole opening and,
/// from each, the one that it names. Segments that a previous owner created beside its successor
/// are not among them.
#[derive(Debug)]
pub struct SegmentIndex {
    layout: RunLayout,
    newest: u32,
    segments: Vec<ActiveSegment>,
}

/// A segment that counts.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) opened: SessionStart,
    /// When it was made.
    at: Timestamp,
    /// How much of it counts, as the next one records.
    pub(super) end: Option<PredecessorSegment>,
}

/// The length of a segment that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentExtent {
    /// Its epoch.
    pub epoch: u32,
    /// Bytes of its header and its first record.
    pub opening_bytes: u64,
    /// Bytes up to its last whole record, or to the one that the next segment goes back to.
    pub bytes: u64,
}

/// Items that a journal reopens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reopenings {
    /// How often each item was reopened.
    pub times: HashMap<ItemId, u32>,
    /// Epochs of the segments in which items were reopened, ascending.
    pub epochs: BTreeSet<u32>,
    /// Bytes of the newest segment that were read for this; `None` if it was not read.
    pub newest_bytes: Option<u64>,
}

/// The part of a durable prefix that a journal lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingRecords {
    /// The durable prefix.
    pub wanted: JournalPrefix,
    /// The existing prefix of that segment; `None` if the segment is not among those that count.
    pub found: Option<JournalPrefix>,
}

impl Reopenings {
    /// How much of the journal may be replayed with them: what a former owner appended since could
    /// reopen more.
    pub fn extent(&self) -> ReplayExtent {
        self.newest_bytes.map_or(ReplayExtent::Whole, ReplayExtent::Until)
    }

    fn add<'a>(&mut self, epoch: u32, items: impl Iterator<Item = &'a ItemId>) {
        for item in items {
            self.epochs.insert(epoch);
            *self.times.entry(*item).or_insert(0) += 1;
        }
    }
}

impl SegmentIndex {
    /// Reads every segment's first record.
    ///
    /// # Errors
    /// [`JournalError`] when a segment cannot be read, or names one that is missing.
    pub fn read(layout: &RunLayout) -> Result<Self, JournalError> {
        let epochs = epochs(&layout.journal())?;
        let newest = epochs.last().copied().unwrap_or_default();
        let mut segments: Vec<ActiveSegment> = Vec::new();
        for epoch in epochs.iter().rev() {
            let former = match segments.last() {
                None => None,
                Some(ActiveSegment { opened: SessionStart { former: None, .. }, .. }) => break,
                Some(ActiveSegment {
                    opened: SessionStart { former: Some(former), .. }, ..
                }) => Some(*former),
            };
            if former.is_some_and(|former| former.epoch != *epoch) {
                continue;
            }
            let mut segment = SegmentReader::open(layout, *epoch)?;
            match segment.opening()? {
                Some((at, opened)) => segments.push(ActiveSegment { opened, at, end: former }),
                // A successor that died before its first record, unless it held more.
                None if former.is_none() => segment.check_rest(0, u64::MAX)?,
                None => {}
            }
        }
        if let Some(former) = segments.last().and_then(|first| first.opened.former) {
            return Err(missing(layout, &epochs, former));
        }
        segments.reverse();
        Ok(Self { layout: layout.clone(), newest, segments })
    }

    /// The epoch of the next session: one above the newest segment.
    pub fn next_epoch(&self) -> u32 {
        self.newest.saturating_add(1)
    }

    /// The openings of the segments that count, the oldest first.
    pub fn openings(&self) -> impl DoubleEndedIterator<Item = &SessionStart> {
        self.segments.iter().map(|link| &link.opened)
    }

    /// Start of the last session, by the clock of its host.
    pub fn last_session_start(&self) -> Option<Timestamp> {
        self.segments.last().map(|segment| segment.at)
    }

    /// Start of the first session, by the clock of its host.
    pub(super) fn first_session_start(&self) -> Option<Timestamp> {
        self.segments.first().map(|segment| segment.at)
    }

    /// The segments that count and those that they replace themselves, for a segment that replaces
    /// them. `newest` is the length of the newest one. An entry in the KV store that was not renewed
    /// since an earlier compaction names a segment of that time.
    pub(super) fn replaced(&self, newest: u64) -> Vec<ReplacedSegment> {
        let earlier = self.openings().flat_map(|opened| &opened.replaces).copied();
        let present = self.segments.iter().map(|segment| ReplacedSegment {
            epoch: segment.opened.epoch,
            bytes: segment.end.map_or(newest, |end| end.bytes),
        });
        let mut replaced: Vec<_> = earlier.chain(present).collect();
        replaced.drain(..replaced.len().saturating_sub(REPLACED_SEGMENTS));
        replaced
    }

    /// The items that were reopened. Reads every segment, but parses few of its records.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn reopenings(&self) -> Result<Reopenings, JournalError> {
        let mut reopenings = Reopenings::default();
        for segment in &self.segments {
            let opened = &segment.opened;
            // A repair lists the items of all records of its segment.
            let listed = opened.reopened.iter().chain(&opened.reopened_within);
            reopenings.add(opened.epoch, listed);
            if opened.reopened_within.is_empty() {
                self.read_reopenings(segment, &mut reopenings)?;
            }
        }
        Ok(reopenings)
    }

    /// Adds the items that the records of a segment reopen.
    fn read_reopenings(
        &self,
        segment: &ActiveSegment,
        reopenings: &mut Reopenings,
    ) -> Result<(), JournalError> {
        let epoch = segment.opened.epoch;
        let mut reader = SegmentReader::open(&self.layout, epoch)?;
        let end = segment.end.map_or(u64::MAX, |end| end.bytes);
        if reader.opening()?.is_none() {
            return Ok(());
        }
        while reader.prefix().bytes < end
            && let Some(items) = reader.next_reopened()?
        {
            reopenings.add(epoch, items.iter());
        }
        reopenings.newest_bytes = segment.end.is_none().then(|| reader.prefix().bytes);
        Ok(())
    }

    /// The pools to which the tries of each epoch were offered. Unknown for epochs before a repair.
    pub fn pools(&self) -> PreviousPools {
        let oldest = self.openings().next().map_or(0, |opened| opened.epoch);
        let repaired = (0..oldest).map(|epoch| (epoch, None));
        repaired.chain(self.openings().map(|o| (o.epoch, o.pool.clone()))).collect()
    }

    pub(super) fn layout(&self) -> &RunLayout {
        &self.layout
    }

    pub(super) fn active_segments(&self) -> &[ActiveSegment] {
        &self.segments
    }

    /// The whole records of the newest segment that counts.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn durable_prefix(&self) -> Result<Option<JournalPrefix>, JournalError> {
        self.segments.last().map(|last| self.read_prefix(last, u64::MAX)).transpose()
    }

    /// How much of each segment counts, the oldest first.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn extents(&self) -> Result<Vec<SegmentExtent>, JournalError> {
        let extent = |segment: &ActiveSegment| {
            let epoch = segment.opened.epoch;
            let mut reader = SegmentReader::open(&self.layout, epoch)?;
            reader.opening()?;
            let opening_bytes = reader.prefix().bytes;
            let end = segment.end.map(|end| end.bytes);
            let bytes = match end {
                Some(end) => end,
                None => self.read_prefix(segment, u64::MAX)?.bytes,
            };
            Ok(SegmentExtent { epoch, opening_bytes, bytes })
        };
        self.segments.iter().map(extent).collect()
    }

    /// The missing part of a durable prefix; `None` when all of it exists.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn find_missing_records(
        &self,
        wanted: JournalPrefix,
    ) -> Result<Option<MissingRecords>, JournalError> {
        let Some(link) = self.segments.iter().find(|link| link.opened.epoch == wanted.epoch) else {
            let replaces = self.openings().flat_map(|opened| &opened.replaces);
            let mut replaces = replaces.filter(|replaced| replaced.epoch == wanted.epoch);
            let repaired = replaces.any(|replaced| replaced.bytes >= wanted.bytes);
            return Ok((!repaired).then_some(MissingRecords { wanted, found: None }));
        };
        let end = link.end.map_or(u64::MAX, |end| end.bytes);
        let found = self.read_prefix(link, end.min(wanted.bytes))?;
        Ok((found != wanted).then_some(MissingRecords { wanted, found: Some(found) }))
    }

    /// The whole records of a segment up to the first that ends at or after `end`.
    fn read_prefix(
        &self,
        segment: &ActiveSegment,
        end: u64,
    ) -> Result<JournalPrefix, JournalError> {
        let mut segment = SegmentReader::open(&self.layout, segment.opened.epoch)?;
        let opened = segment.opening()?.is_some();
        while opened && segment.prefix().bytes < end && segment.skip()? {}
        if segment.prefix().bytes < end {
            segment.check_trailing_records(end)?;
        }
        Ok(segment.prefix())
    }
}

/// The error for a previous segment that is missing, or cut before the end of its opening.
fn missing(layout: &RunLayout, epochs: &[u32], former: PredecessorSegment) -> JournalError {
    let path = layout.segment(former.epoch);
    if epochs.contains(&former.epoch) {
        return no_opening(layout, former.epoch, former.bytes).unwrap_or_else(|error| error);
    }
    JournalError::Missing { path }
}

/// The error for a segment without a whole opening of which this many bytes were durable.
pub(super) fn no_opening(
    layout: &RunLayout,
    epoch: u32,
    durable_bytes: u64,
) -> Result<JournalError, JournalError> {
    let segment = SegmentReader::open(layout, epoch)?;
    let path = layout.segment(epoch);
    Ok(match segment.check_rest(durable_bytes.max(1), durable_bytes) {
        Err(error) => error,
        Ok(()) => JournalError::Header { path },
    })
}

impl fmt::Display for MissingRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, found } = self;
        let JournalPrefix { epoch, records, bytes, .. } = wanted;
        match found {
            None => write!(f, "session {epoch} with {records} records ({bytes} bytes) is missing"),
            Some(found) if found.bytes < *bytes => write!(
                f,
                "of the {records} records ({bytes} bytes) of session {epoch} the last {} are \
                 missing ({} bytes)",
                records.saturating_sub(found.records),
                bytes - found.bytes
            ),
            Some(_) => {
                write!(f, "the {records} records ({bytes} bytes) of session {epoch} are different")
            }
        }
    }
}

/// One above the newest epoch of any segment, readable or not.
///
/// # Errors
/// [`JournalError`] when the segments cannot be listed.
pub fn next_epoch(layout: &RunLayout) -> Result<u32, JournalError> {
    Ok(epochs(&layout.journal())?.last().copied().unwrap_or_default().saturating_add(1))
}

/// Epochs that have a segment, readable or not, ascending.
///
/// # Errors
/// [`JournalError`] when the segments cannot be listed.
pub fn segment_epochs(layout: &RunLayout) -> Result<Vec<u32>, JournalError> {
    epochs(&layout.journal())
}

/// Epochs that have a segment, ascending.
pub(super) fn epochs(directory: &Path) -> Result<Vec<u32>, JournalError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(JournalError::io("list", directory)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(JournalError::io("list", directory))?.file_name();
        let epoch: Option<u32> =
            name.to_str().and_then(|n| n.strip_suffix(".log")).and_then(|n| n.parse().ok());
        found.extend(epoch);
    }
    found.sort_unstable();
    Ok(found)
}
