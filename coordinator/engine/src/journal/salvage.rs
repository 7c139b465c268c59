//! Reading of a damaged journal: every whole record, and the unreadable places between them.

use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::DigestHasher;

use super::damage::{self, ReadStop};
use super::frame::{self, DecodedRecord, FRAME_HEADER_BYTES, SEGMENT_HEADER};
use super::{JOURNAL_FORMAT, JournalError, RunLayout, bit_repair, durable_length, segment_index};
use crate::core::{JournalRecord, PredecessorSegment, ReplacedSegment, SessionStart};

/// Bytes that are searched for a changed bit at once.
const MAX_REPAIR_BYTES: u64 = 64 * 1024 * 1024;

/// The readable part of a journal.
#[derive(Debug)]
pub struct JournalSalvage {
    layout: RunLayout,
    /// The segments that count, the oldest first.
    segments: Vec<SegmentScan>,
    missing: Vec<PathBuf>,
    /// Newest epoch whose segment is known to have been durable.
    newest: u32,
}

/// An unreadable place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDamage {
    /// The segment.
    pub path: PathBuf,
    /// Where it begins.
    pub offset: u64,
    /// Where whole records resume, or the segment ends.
    pub end: u64,
    /// The original bytes, when one changed bit explains the damage.
    pub repaired: Option<Vec<u8>>,
}

/// One scanned segment.
#[derive(Debug)]
struct SegmentScan {
    epoch: u32,
    path: PathBuf,
    opening: Option<(Timestamp, SessionStart)>,
    length: u64,
    /// End of the part that counts.
    end: u64,
    damages: Vec<JournalDamage>,
    /// Whether its content differs from the one its successor recorded, although every record is
    /// whole.
    changed: bool,
}

impl JournalSalvage {
    /// Reads the journal of a run directory. `durable` are lengths of segments that are known to
    /// have been durable.
    ///
    /// # Errors
    /// [`JournalError`] when a file cannot be read, or is of a newer format.
    pub fn read(layout: &RunLayout, durable: &[(u32, u64)]) -> Result<Self, JournalError> {
        let mut segments: Vec<SegmentScan> = Vec::new();
        let epochs = segment_index::epochs(&layout.journal())?;
        let newest = epochs.last().copied().unwrap_or_default();
        let gone = durable.iter().filter(|(epoch, _)| *epoch > newest);
        let mut missing: Vec<_> = gone.map(|(epoch, _)| layout.segment(*epoch)).collect();
        for epoch in epochs.into_iter().rev() {
            let former = match segments.last() {
                None => None,
                Some(scan) => match scan.predecessor() {
                    Some(None) => break,
                    // The predecessor of a segment whose opening is lost is the newest one before
                    // it.
                    None => Some(None),
                    Some(Some(former)) if former.epoch < epoch => continue,
                    Some(Some(former)) if former.epoch > epoch => {
                        missing.push(layout.segment(former.epoch));
                        Some(None)
                    }
                    Some(Some(former)) => Some(Some(former)),
                },
            };
            let known = durable.iter().filter(|(of, _)| *of == epoch).map(|(_, bytes)| *bytes);
            let known = known.chain(durable_length::read(layout, epoch)).max();
            let scan = SegmentScan::open(layout, epoch, former.flatten(), known, former.is_none())?;
            if scan.is_empty() && former.is_none() {
                continue;
            }
            segments.push(scan);
        }
        if let Some(Some(Some(former))) = segments.last().map(SegmentScan::predecessor) {
            missing.push(layout.segment(former.epoch));
        }
        segments.reverse();
        let durable = durable.iter().map(|(epoch, _)| *epoch).max().unwrap_or_default();
        let found = segments.last().map_or(0, |scan| scan.epoch);
        Ok(Self { layout: layout.clone(), segments, missing, newest: durable.max(found) })
    }

    /// The unreadable places.
    pub fn damages(&self) -> impl Iterator<Item = &JournalDamage> {
        self.segments.iter().flat_map(|scan| &scan.damages)
    }

    /// Missing segments.
    pub fn missing(&self) -> &[PathBuf] {
        &self.missing
    }

    /// Segments that were changed by others than their writers.
    pub fn changed(&self) -> impl Iterator<Item = &PathBuf> {
        self.segments.iter().filter(|scan| scan.changed).map(|scan| &scan.path)
    }

    /// Whether every damaged place can be restored as it was.
    pub fn is_repairable(&self) -> bool {
        self.damages().all(|damage| damage.repaired.is_some()) && self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.changed().next().is_none()
    }

    /// The oldest and the newest readable opening.
    pub fn openings(&self) -> Option<((Timestamp, &SessionStart), &SessionStart)> {
        let mut openings = self.segments.iter().filter_map(|scan| scan.opening.as_ref());
        let (at, first) = openings.next()?;
        let last = openings.next_back().map_or(first, |(_, last)| last);
        Some(((*at, first), last))
    }

    /// The readable openings of the segments that count, the oldest first.
    pub fn every_opening(&self) -> impl Iterator<Item = &SessionStart> {
        self.segments.iter().filter_map(|scan| scan.opening.as_ref()).map(|(_, opened)| opened)
    }

    /// Epochs of sessions whose opening may be lost: their segments are missing, or have no
    /// readable beginning.
    pub fn lost_openings(&self) -> Vec<RangeInclusive<u32>> {
        let mut lost = Vec::new();
        let mut before = 0;
        for scan in &self.segments {
            let last = match scan.predecessor() {
                None => scan.epoch,
                Some(None) => before,
                Some(Some(former)) if former.epoch == before => before,
                Some(Some(_)) => scan.epoch.saturating_sub(1),
            };
            lost.push(before.saturating_add(1)..=last);
            before = scan.epoch;
        }
        lost.push(before.saturating_add(1)..=self.newest);
        lost.retain(|range| !range.is_empty());
        lost
    }

    /// The segments that a journal rebuilt from this one replaces.
    pub fn replaces(&self) -> Vec<ReplacedSegment> {
        let earlier = self.openings().map(|(_, last)| last.replaces.clone()).unwrap_or_default();
        let these = self.segments.iter();
        let these = these.map(|scan| {
            let durable = scan.damages.last().map_or(0, |damage| damage.end);
            ReplacedSegment { epoch: scan.epoch, bytes: scan.length.max(durable) }
        });
        earlier.into_iter().chain(these).collect()
    }

    /// Every segment's file, the oldest first.
    pub fn files(&self) -> Vec<PathBuf> {
        self.segments.iter().map(|scan| scan.path.clone()).collect()
    }

    /// Passes on every whole record in order, repaired ones included.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn records(
        &self,
        mut each: impl FnMut(Timestamp, JournalRecord),
    ) -> Result<(), JournalError> {
        for scan in &self.segments {
            scan.frames(|offset, frame| {
                let DecodedRecord { at, record, .. } = scan.decode(offset, frame)?;
                each(at, record);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The damaged segments, with every place restored.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn repaired_files(&self) -> Result<Vec<(PathBuf, Vec<u8>)>, JournalError> {
        let damaged = self.segments.iter().filter(|scan| !scan.damages.is_empty());
        damaged.map(|scan| Ok((scan.path.clone(), scan.repaired()?))).collect()
    }

    /// The layout of the run directory.
    pub fn layout(&self) -> &RunLayout {
        &self.layout
    }
}

impl SegmentScan {
    fn open(
        layout: &RunLayout,
        epoch: u32,
        former: Option<PredecessorSegment>,
        durable: Option<u64>,
        is_last: bool,
    ) -> Result<Self, JournalError> {
        let path = layout.segment(epoch);
        let file = File::open(&path).map_err(JournalError::io("open", &path))?;
        let length = file.metadata().map_err(JournalError::io("inspect", &path))?.len();
        let end = former.map_or(length, |former| former.bytes.min(length));
        let (opening, damages) = (None, Vec::new());
        let mut scan = Self { epoch, path, opening, length, end, damages, changed: false };
        scan.read(&file, durable, is_last).map_err(JournalError::io("read", &scan.path.clone()))?;
        scan.find_opening()?;
        if let Some(former) = former {
            scan.compare(former)?;
        }
        Ok(scan)
    }

    /// Scans all frames and records the damaged places.
    fn read(
        &mut self,
        file: &File,
        durable: Option<u64>,
        is_last: bool,
    ) -> Result<(), std::io::Error> {
        let header = SEGMENT_HEADER.len() as u64;
        if self.end < header {
            if let Some(durable) = durable.filter(|durable| is_last && *durable > 0) {
                self.add(0, durable, None);
            }
            self.end = 0;
            return Ok(());
        }
        let mut first = vec![0; SEGMENT_HEADER.len()];
        file.read_exact_at(&mut first, 0)?;
        if first != SEGMENT_HEADER {
            self.add(0, header, Some(SEGMENT_HEADER.to_vec()));
        }
        let (mut at, mut batch) = (header, None);
        while at < self.end {
            if let Some(frame) = damage::read_whole_frame(file, at, self.end)? {
                batch = if frame::is_synced(&frame) { Some(at) } else { batch };
                at += frame.len() as u64;
                continue;
            }
            let place = ReadStop { offset: at, end: self.end, batch, durable };
            if is_last && durable.unwrap_or(0) <= at && damage::is_torn(file, place)?.0 {
                self.end = at;
                return Ok(());
            }
            let mut rest =
                vec![0; usize::try_from((self.end - at).min(MAX_REPAIR_BYTES)).unwrap_or(0)];
            file.read_exact_at(&mut rest, at)?;
            let mended = bit_repair::repair_bit(&rest);
            let end = match &mended {
                Some(frame) => at + frame.len() as u64,
                None => damage::find_whole_frame(file, at, self.end)?
                    .map_or(self.end, |found| found.offset),
            };
            self.add(at, end, mended);
            at = end;
        }
        // The durable end is missing.
        if let Some(durable) = durable.filter(|durable| is_last && *durable > self.end) {
            self.add(self.end, durable, None);
        }
        Ok(())
    }

    fn add(&mut self, offset: u64, end: u64, repaired: Option<Vec<u8>>) {
        self.damages.push(JournalDamage { path: self.path.clone(), offset, end, repaired });
    }

    /// Passes on every whole frame, repaired ones included.
    fn frames(
        &self,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let read = |error| JournalError::io("read", &self.path)(error);
        let file = File::open(&self.path).map_err(read)?;
        let mut damages = self.damages.iter().peekable();
        let mut at = SEGMENT_HEADER.len() as u64;
        while at < self.end {
            while damages.next_if(|damage| damage.end <= at).is_some() {}
            if let Some(damage) = damages.next_if(|damage| damage.offset == at) {
                if let Some(frame) = &damage.repaired {
                    each(at, frame)?;
                }
                at = damage.end;
                continue;
            }
            let Some(frame) = damage::read_whole_frame(&file, at, self.end).map_err(read)? else {
                break;
            };
            each(at, &frame)?;
            at += frame.len() as u64;
        }
        Ok(())
    }

    fn decode(&self, offset: u64, frame: &[u8]) -> Result<DecodedRecord, JournalError> {
        let path = self.path.clone();
        serde_json::from_slice(&frame[FRAME_HEADER_BYTES..])
            .map_err(|source| JournalError::Record { path, offset, source })
    }

    fn find_opening(&mut self) -> Result<(), JournalError> {
        let mut opening = None;
        self.frames(|offset, frame| {
            if offset == SEGMENT_HEADER.len() as u64
                && let DecodedRecord { at, record: JournalRecord::Opened(opened), .. } =
                    self.decode(offset, frame)?
            {
                opening = Some((at, opened));
            }
            Ok(())
        })?;
        if opening.as_ref().is_some_and(|(_, opened)| opened.format > JOURNAL_FORMAT) {
            return Err(JournalError::Header { path: self.path.clone() });
        }
        self.opening = opening.map(|(at, opened): (Timestamp, Box<SessionStart>)| (at, *opened));
        Ok(())
    }

    /// Compares the content with the state that the next owner recorded.
    fn compare(&mut self, former: PredecessorSegment) -> Result<(), JournalError> {
        if self.end < former.bytes {
            self.add(self.end, former.bytes, None);
        } else if self.damages.iter().all(|damage| damage.repaired.is_some()) {
            let mut hasher = DigestHasher::default();
            hasher.update(SEGMENT_HEADER);
            self.frames(|_, frame| {
                hasher.update(frame);
                Ok(())
            })?;
            self.changed = hasher.finish() != former.digest;
        }
        Ok(())
    }

    /// The segment that its opening names; the outer `Option` is `None` when the opening is
    /// unreadable.
    fn predecessor(&self) -> Option<Option<PredecessorSegment>> {
        self.opening.as_ref().map(|(_, opened)| opened.former)
    }

    /// Whether it holds nothing that counts: its owner died before its first record.
    fn is_empty(&self) -> bool {
        self.opening.is_none() && self.damages.is_empty()
    }

    fn repaired(&self) -> Result<Vec<u8>, JournalError> {
        let mut bytes = std::fs::read(&self.path).map_err(JournalError::io("read", &self.path))?;
        for damage in &self.damages {
            let place = usize::try_from(damage.offset).unwrap_or(usize::MAX);
            if let Some(mended) = &damage.repaired
                && let Some(place) = bytes.get_mut(place..place + mended.len())
            {
                place.copy_from_slice(mended);
            }
        }
        Ok(bytes)
    }
}
