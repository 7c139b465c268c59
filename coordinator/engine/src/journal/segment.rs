//! Reading of one segment, frame by frame, in memory bounded by the largest record. At the place
//! where reading stops, it decides whether the rest is torn or damaged.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read as _};
use std::path::PathBuf;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::id::ItemId;

use super::damage;
use super::durable_length;
use super::frame::{self, DecodedRecord, SEGMENT_HEADER};
use super::prefix::JournalPrefix;
use super::{JOURNAL_FORMAT, JournalError, RunLayout};
use crate::core::{JournalRecord, SessionStart};

/// A segment that is being read.
pub(super) struct SegmentReader {
    pub(super) path: PathBuf,
    file: BufReader<File>,
    pub(super) length: u64,
    /// Prefix up to the last whole frame.
    prefix: JournalPrefix,
    hasher: Option<DigestHasher>,
    frame: Vec<u8>,
    /// Start of the last batch that was read; `None` when no record marks the beginning of a batch.
    batch: Option<u64>,
    /// The durable length in the file beside the segment.
    durable: Option<u64>,
}

impl SegmentReader {
    pub(super) fn open(layout: &RunLayout, epoch: u32) -> Result<Self, JournalError> {
        let path = layout.segment(epoch);
        // Before the length: a writer may append meanwhile.
        let durable = durable_length::read(layout, epoch);
        let file = File::open(&path).map_err(JournalError::io("open", &path))?;
        let length = file.metadata().map_err(JournalError::io("inspect", &path))?.len();
        let file = BufReader::with_capacity(1 << 20, file);
        let prefix = JournalPrefix { bytes: 0, ..JournalPrefix::start(epoch) };
        let (hasher, frame, batch) = (None, Vec::new(), None);
        Ok(Self { path, file, length, prefix, hasher, frame, batch, durable })
    }

    /// Opens a segment, and computes the digest of the bytes read.
    pub(super) fn open_digested(layout: &RunLayout, epoch: u32) -> Result<Self, JournalError> {
        Ok(Self { hasher: Some(DigestHasher::default()), ..Self::open(layout, epoch)? })
    }

    /// The prefix read so far.
    pub(super) fn prefix(&self) -> JournalPrefix {
        self.prefix
    }

    /// Digest of the bytes read, if it was requested.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.hasher.clone().map(DigestHasher::finish)
    }

    /// How much of the segment is known to be durable, given another source; `None` if nothing is
    /// known.
    pub(super) fn durable_bytes(&self, known: Option<u64>) -> Option<u64> {
        self.durable.max(known)
    }

    /// The header and the first record; `None` when the segment was cut before its end.
    pub(super) fn opening(&mut self) -> Result<Option<(Timestamp, SessionStart)>, JournalError> {
        if !self.fill(SEGMENT_HEADER.len())? {
            return Ok(None);
        }
        if self.frame != SEGMENT_HEADER {
            let first = damage::read_whole_frame(
                self.file.get_ref(),
                SEGMENT_HEADER.len() as u64,
                self.length,
            );
            return match first.map_err(JournalError::io("read", &self.path))? {
                // The header is damaged.
                Some(_) => Ok(None),
                None => Err(JournalError::Header { path: self.path.clone() }),
            };
        }
        self.digest_frame();
        self.prefix.bytes = SEGMENT_HEADER.len() as u64;
        let Some(first) = self.next()? else { return Ok(None) };
        match first.record {
            JournalRecord::Opened(opened) if opened.format <= JOURNAL_FORMAT => {
                Ok(Some((first.at, *opened)))
            }
            JournalRecord::Opened(_) => Err(JournalError::Header { path: self.path.clone() }),
            _ => Err(JournalError::NoOpening { path: self.path.clone() }),
        }
    }

    /// The next record; `None` at the first frame that is not whole.
    pub(super) fn next(&mut self) -> Result<Option<DecodedRecord>, JournalError> {
        if !self.frame()? {
            return Ok(None);
        }
        let payload = &self.frame[frame::FRAME_HEADER_BYTES..];
        let incoming = serde_json::from_slice(payload).map_err(|source| JournalError::Record {
            path: self.path.clone(),
            offset: self.prefix.bytes,
            source,
        })?;
        self.accept();
        Ok(Some(incoming))
    }

    /// The items that the next record reopens, without reading other records; `None` at the first
    /// frame that is not whole.
    pub(super) fn next_reopened(&mut self) -> Result<Option<Vec<ItemId>>, JournalError> {
        if !self.frame()? {
            return Ok(None);
        }
        let mut reopened = Vec::new();
        if frame::is_reopening(&self.frame) {
            let payload = &self.frame[frame::FRAME_HEADER_BYTES..];
            let path = self.path.clone();
            let offset = self.prefix.bytes;
            let incoming: DecodedRecord = serde_json::from_slice(payload)
                .map_err(|source| JournalError::Record { path, offset, source })?;
            if let JournalRecord::Reopened { items, .. } = incoming.record {
                reopened = items;
            }
        }
        self.accept();
        Ok(Some(reopened))
    }

    /// Skips the next record; false at the first frame that is not whole.
    pub(super) fn skip(&mut self) -> Result<bool, JournalError> {
        let whole = self.frame()?;
        if whole {
            self.accept();
        }
        Ok(whole)
    }

    /// Refuses the bytes after the last record read, up to `end`, unless they are the torn tail of
    /// a writer that died. `durable` bytes are known to be durable from another source.
    pub(super) fn check_rest(&self, durable: u64, end: u64) -> Result<(), JournalError> {
        let (offset, end) = (self.prefix.bytes, end.min(self.length));
        let durable_bytes = durable.max(self.durable.unwrap_or(0));
        if offset >= end && offset >= durable_bytes {
            return Ok(());
        }
        let place = damage::ReadStop { offset, end, batch: self.batch, durable: self.durable };
        let (torn, behind) = match offset < end {
            true => damage::is_torn(self.file.get_ref(), place)
                .map_err(JournalError::io("read", &self.path))?,
            false => (true, damage::TrailingRecords::default()),
        };
        if torn && offset >= durable_bytes {
            return Ok(());
        }
        let path = self.path.clone();
        let records_behind = behind.records;
        Err(JournalError::Damaged { path, offset, durable_bytes, records_behind })
    }

    /// Refuses the bytes after the last record read if whole records are among them.
    pub(super) fn check_trailing_records(&self, end: u64) -> Result<(), JournalError> {
        match self.check_rest(0, end) {
            Err(JournalError::Damaged { records_behind: 0, .. }) => Ok(()),
            checked => checked,
        }
    }

    /// Reads the next frame and checks it.
    fn frame(&mut self) -> Result<bool, JournalError> {
        if !self.fill(frame::FRAME_HEADER_BYTES)? {
            return Ok(false);
        }
        let Some(size) = frame::payload_bytes(&self.frame) else { return Ok(false) };
        let end = self.prefix.bytes + (frame::FRAME_HEADER_BYTES + size) as u64;
        Ok(end <= self.length && self.extend(size)? && frame::decode(&self.frame).is_some())
    }

    fn fill(&mut self, bytes: usize) -> Result<bool, JournalError> {
        self.frame.clear();
        self.extend(bytes)
    }

    fn extend(&mut self, bytes: usize) -> Result<bool, JournalError> {
        let start = self.frame.len();
        self.frame.resize(start + bytes, 0);
        match self.file.read_exact(&mut self.frame[start..]) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(JournalError::io("read", &self.path)(error)),
        }
    }

    fn accept(&mut self) {
        self.digest_frame();
        if frame::is_synced(&self.frame) {
            self.batch = Some(self.prefix.bytes);
        }
        self.prefix.add(&self.frame);
    }

    fn digest_frame(&mut self) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&self.frame);
        }
    }
}
