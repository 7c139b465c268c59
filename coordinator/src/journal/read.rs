//! Reading a journal back, segment by segment, in memory bounded by the largest record.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Hasher;

use super::frame::{self, HEADER, Incoming};
use super::{JournalError, Layout};
use crate::core::{Former, Opened, Record};

/// What a journal says.
#[derive(Debug)]
pub struct Replay {
    /// The first sitting's opening, and when it was.
    pub first: (Timestamp, Opened),
    /// The last sitting's opening.
    pub last: Opened,
    /// The last segment and how much of it counts.
    pub head: Former,
    /// Bytes behind that, which were never known to be durable.
    pub torn_bytes: u64,
    /// Records read.
    pub records: u64,
}

/// The epoch of the next sitting: one more than any segment there is.
///
/// # Errors
/// [`JournalError`] when the directory cannot be listed.
pub fn next_epoch(layout: &Layout) -> Result<u32, JournalError> {
    Ok(epochs(&layout.journal())?.last().map_or(1, |newest| newest + 1))
}

/// Makes a segment that was read durable as it is: its writer may have died before its last sync.
///
/// # Errors
/// [`JournalError`].
pub fn persist(layout: &Layout, epoch: u32) -> Result<(), JournalError> {
    for path in [layout.segment(epoch), layout.journal()] {
        File::open(&path)
            .and_then(|file| file.sync_all())
            .map_err(JournalError::io("sync", &path))?;
    }
    Ok(())
}

/// Reads every record of a run in order. `None` when the run has no journal yet.
///
/// `durable` is a segment's length that is known to have been durable, from the manifest.
///
/// # Errors
/// [`JournalError`] for anything but a cut tail that nobody knew to be durable.
pub fn replay(
    layout: &Layout,
    durable: Option<(u32, u64)>,
    mut apply: impl FnMut(Timestamp, Record),
) -> Result<Option<Replay>, JournalError> {
    let epochs = epochs(&layout.journal())?;
    let mut formers = HashMap::new();
    for epoch in &epochs {
        let mut segment = Segment::open(layout, *epoch)?;
        if let Some((_, opened)) = segment.opening()?
            && let Some(former) = opened.former
        {
            if !epochs.contains(&former.epoch) {
                return Err(JournalError::Missing { path: layout.segment(former.epoch) });
            }
            formers.insert(former.epoch, former);
        }
    }
    let mut replay: Option<Replay> = None;
    for epoch in epochs {
        let known = match durable {
            Some((of, bytes)) if of == epoch => bytes,
            _ => 0,
        };
        read_segment(layout, epoch, formers.get(&epoch), known, &mut replay, &mut apply)?;
    }
    Ok(replay)
}

/// Epochs that have a segment, ascending.
fn epochs(directory: &Path) -> Result<Vec<u32>, JournalError> {
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

fn read_segment(
    layout: &Layout,
    epoch: u32,
    former: Option<&Former>,
    known_durable: u64,
    replay: &mut Option<Replay>,
    apply: &mut impl FnMut(Timestamp, Record),
) -> Result<(), JournalError> {
    let mut segment = Segment::open(layout, epoch)?;
    let opening = segment.opening()?;
    let mut records = 0;
    if let Some((at, opened)) = &opening {
        apply(*at, Record::Opened(opened.clone()));
        records += 1;
        let end = former.map_or(u64::MAX, |former| former.bytes);
        while segment.at < end
            && let Some(incoming) = segment.next()?
        {
            apply(incoming.at, incoming.record);
            records += 1;
        }
    }
    let expected_bytes = former.map_or(known_durable, |former| former.bytes.max(known_durable));
    if segment.at < expected_bytes {
        let (path, offset) = (segment.path, segment.at);
        return Err(JournalError::Damaged { path, offset, expected_bytes });
    }
    let head = Former { epoch, bytes: segment.at, digest: segment.digest.clone().finish() };
    if former.is_some_and(|former| *former != head) {
        return Err(JournalError::Changed { path: segment.path });
    }
    let Some((at, opened)) = opening else { return Ok(()) };
    let torn_bytes = segment.length.saturating_sub(segment.at);
    match replay {
        None => {
            let first = (at, opened.clone());
            *replay = Some(Replay { first, last: opened, head, torn_bytes, records });
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

/// A segment that is being read.
struct Segment {
    path: PathBuf,
    file: BufReader<File>,
    length: u64,
    /// End of the last whole frame.
    at: u64,
    digest: Hasher,
    frame: Vec<u8>,
}

impl Segment {
    fn open(layout: &Layout, epoch: u32) -> Result<Self, JournalError> {
        let path = layout.segment(epoch);
        let file = File::open(&path).map_err(JournalError::io("open", &path))?;
        let length = file.metadata().map_err(JournalError::io("inspect", &path))?.len();
        let file = BufReader::with_capacity(1 << 20, file);
        let digest = Hasher::default();
        Ok(Self { path, file, length, at: 0, digest, frame: Vec::new() })
    }

    /// The header and the first record; `None` when the segment was cut before its end.
    fn opening(&mut self) -> Result<Option<(Timestamp, Opened)>, JournalError> {
        if !self.fill(HEADER.len())? {
            return Ok(None);
        }
        if self.frame != HEADER {
            return Err(JournalError::Header { path: self.path.clone() });
        }
        self.accept();
        let Some(first) = self.next()? else { return Ok(None) };
        match first.record {
            Record::Opened(opened) if opened.format <= rollout_protocol::version::RUN_FORMAT => {
                Ok(Some((first.at, opened)))
            }
            Record::Opened(_) => Err(JournalError::Header { path: self.path.clone() }),
            Record::Offered { .. }
            | Record::Reported { .. }
            | Record::Claimed { .. }
            | Record::Lost { .. }
            | Record::Respecified { .. }
            | Record::Stopping { .. }
            | Record::Closed(_) => Err(JournalError::NoOpening { path: self.path.clone() }),
        }
    }

    /// The next record; `None` at the first frame that is not whole.
    fn next(&mut self) -> Result<Option<Incoming>, JournalError> {
        if !self.fill(frame::PREFIX_BYTES)? {
            return Ok(None);
        }
        let Some(size) = frame::payload_bytes(&self.frame) else { return Ok(None) };
        if self.at + (frame::PREFIX_BYTES + size) as u64 > self.length || !self.extend(size)? {
            return Ok(None);
        }
        let Some(payload) = frame::decode(&self.frame) else { return Ok(None) };
        let incoming = serde_json::from_slice(payload).map_err(|source| JournalError::Record {
            path: self.path.clone(),
            offset: self.at,
            source,
        })?;
        self.accept();
        Ok(Some(incoming))
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
        self.digest.update(&self.frame);
        self.at += self.frame.len() as u64;
    }
}
