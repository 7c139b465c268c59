//! Reading one segment, frame by frame, in memory bounded by the largest record.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read as _};
use std::path::PathBuf;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::{Digest, Hasher};

use super::frame::{self, HEADER, Incoming};
use super::head::Head;
use super::{JournalError, Layout};
use crate::core::{Opened, Record};

/// A segment that is being read.
pub(super) struct Segment {
    pub(super) path: PathBuf,
    file: BufReader<File>,
    pub(super) length: u64,
    /// Up to the last whole frame.
    head: Head,
    hasher: Option<Hasher>,
    frame: Vec<u8>,
}

impl Segment {
    pub(super) fn open(layout: &Layout, epoch: u32) -> Result<Self, JournalError> {
        let path = layout.segment(epoch);
        let file = File::open(&path).map_err(JournalError::io("open", &path))?;
        let length = file.metadata().map_err(JournalError::io("inspect", &path))?.len();
        let file = BufReader::with_capacity(1 << 20, file);
        let head = Head { bytes: 0, ..Head::start(epoch) };
        Ok(Self { path, file, length, head, hasher: None, frame: Vec::new() })
    }

    /// The same, with the digest of what is read.
    pub(super) fn open_digested(layout: &Layout, epoch: u32) -> Result<Self, JournalError> {
        Ok(Self { hasher: Some(Hasher::default()), ..Self::open(layout, epoch)? })
    }

    /// How far it was read.
    pub(super) fn head(&self) -> Head {
        self.head
    }

    /// Digest of what was read, if it was asked for.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.hasher.clone().map(Hasher::finish)
    }

    /// The header and the first record; `None` when the segment was cut before its end.
    pub(super) fn opening(&mut self) -> Result<Option<(Timestamp, Opened)>, JournalError> {
        if !self.fill(HEADER.len())? {
            return Ok(None);
        }
        if self.frame != HEADER {
            return Err(JournalError::Header { path: self.path.clone() });
        }
        self.digest_frame();
        self.head.bytes = HEADER.len() as u64;
        let Some(first) = self.next()? else { return Ok(None) };
        match first.record {
            Record::Opened(opened) if opened.format <= rollout_protocol::version::RUN_FORMAT => {
                Ok(Some((first.at, opened)))
            }
            Record::Opened(_) => Err(JournalError::Header { path: self.path.clone() }),
            _ => Err(JournalError::NoOpening { path: self.path.clone() }),
        }
    }

    /// The next record; `None` at the first frame that is not whole.
    pub(super) fn next(&mut self) -> Result<Option<Incoming>, JournalError> {
        if !self.frame()? {
            return Ok(None);
        }
        let payload = &self.frame[frame::PREFIX_BYTES..];
        let incoming = serde_json::from_slice(payload).map_err(|source| JournalError::Record {
            path: self.path.clone(),
            offset: self.head.bytes,
            source,
        })?;
        self.accept();
        Ok(Some(incoming))
    }

    /// Passes over the next record; false at the first frame that is not whole.
    pub(super) fn skip(&mut self) -> Result<bool, JournalError> {
        let whole = self.frame()?;
        if whole {
            self.accept();
        }
        Ok(whole)
    }

    /// Reads the next frame and checks it.
    fn frame(&mut self) -> Result<bool, JournalError> {
        if !self.fill(frame::PREFIX_BYTES)? {
            return Ok(false);
        }
        let Some(size) = frame::payload_bytes(&self.frame) else { return Ok(false) };
        let end = self.head.bytes + (frame::PREFIX_BYTES + size) as u64;
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
        self.head.add(&self.frame);
    }

    fn digest_frame(&mut self) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&self.frame);
        }
    }
}
