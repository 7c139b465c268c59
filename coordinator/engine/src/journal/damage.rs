//! Distinction between a torn tail and damage, where reading a segment stopped before its end.
//!
//! A writer that dies leaves at most a part of its last batch, and nothing after it. A place is
//! therefore damaged, not torn, when
//! * it lies before a length that was known to be durable,
//! * a later record states that everything before it was durable, or
//! * there is no durable length of its batch, and the rest is neither cut off nor has gaps of
//!   zeros, which a power failure leaves.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::bit_repair;
use super::frame::{self, FRAME_HEADER_BYTES, PAYLOAD_START, SEGMENT_HEADER};

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Length of a run of zeros that occurs in no frame: these bytes were never written.
const MIN_ZERO_RUN: usize = 16;

/// A whole frame.
#[derive(Debug)]
pub(super) struct WholeFrame {
    /// Where it begins.
    pub(super) offset: u64,
    /// Its bytes.
    pub(super) frame: Vec<u8>,
}

/// The whole records behind an unreadable place.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrailingRecords {
    /// Number of records.
    pub(super) records: u64,
    /// Whether one of them states that everything before it was durable.
    pub(super) synced: bool,
}

/// A place where reading stopped, with its context.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadStop {
    /// End of the last whole record.
    pub(super) offset: u64,
    /// End of the range to examine.
    pub(super) end: u64,
    /// Start of the last batch whose beginning was read; `None` for a segment of a version that did
    /// not mark batches.
    pub(super) batch: Option<u64>,
    /// The durable length in the file beside the segment.
    pub(super) durable: Option<u64>,
}

/// The next whole frame that begins in `from..end`.
pub(super) fn find_whole_frame(
    file: &File,
    from: u64,
    end: u64,
) -> std::io::Result<Option<WholeFrame>> {
    let mut at = from + FRAME_HEADER_BYTES as u64;
    let mut chunk = Vec::new();
    while at < end {
        chunk.resize(CHUNK.min(usize::try_from(end - at).unwrap_or(CHUNK)), 0);
        file.read_exact_at(&mut chunk, at)?;
        let starts = chunk.windows(PAYLOAD_START.len()).enumerate();
        for (index, _) in starts.filter(|(_, bytes)| *bytes == PAYLOAD_START) {
            let offset = at + index as u64 - FRAME_HEADER_BYTES as u64;
            if let Some(frame) = read_whole_frame(file, offset, end)? {
                return Ok(Some(WholeFrame { offset, frame }));
            }
        }
        if chunk.len() < CHUNK {
            break;
        }
        at += (CHUNK - PAYLOAD_START.len() + 1) as u64;
    }
    Ok(None)
}

/// The whole frame that begins at `offset`.
pub(super) fn read_whole_frame(
    file: &File,
    offset: u64,
    end: u64,
) -> std::io::Result<Option<Vec<u8>>> {
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    if end.saturating_sub(offset) < FRAME_HEADER_BYTES as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut frame, offset)?;
    let Some(payload) = frame::payload_bytes(&frame) else { return Ok(None) };
    let size = FRAME_HEADER_BYTES + payload;
    if end - offset < size as u64 {
        return Ok(None);
    }
    frame.resize(size, 0);
    file.read_exact_at(&mut frame[FRAME_HEADER_BYTES..], offset + FRAME_HEADER_BYTES as u64)?;
    Ok(frame::decode(&frame).is_some().then_some(frame))
}

/// Counts the whole records in `from..end`.
pub(super) fn count_trailing_records(
    file: &File,
    from: u64,
    end: u64,
) -> std::io::Result<TrailingRecords> {
    let mut behind = TrailingRecords::default();
    let mut at = from;
    loop {
        let next = match read_whole_frame(file, at, end)? {
            Some(frame) => Some(WholeFrame { offset: at, frame }),
            None => find_whole_frame(file, at, end)?,
        };
        let Some(WholeFrame { offset, frame }) = next else { return Ok(behind) };
        behind.records += 1;
        behind.synced |= frame::is_synced(&frame);
        at = offset + frame.len() as u64;
    }
}

/// Whether a place is the torn tail of a writer that died, and the records that follow it.
pub(super) fn is_torn(file: &File, place: ReadStop) -> std::io::Result<(bool, TrailingRecords)> {
    let ReadStop { offset, end, batch, durable } = place;
    let behind = count_trailing_records(file, offset + 1, end)?;
    if behind.synced || (batch.is_none() && behind.records > 0) {
        return Ok((false, behind));
    }
    let known = durable.is_some_and(|durable| durable == offset || Some(durable) == batch);
    let torn = known || is_cut(file, offset, end)?;
    Ok((torn, behind))
}

/// Whether the rest of a file is cut off in the middle of a frame, or has gaps of zeros.
fn is_cut(file: &File, offset: u64, end: u64) -> std::io::Result<bool> {
    let size = usize::try_from(end - offset).unwrap_or(usize::MAX);
    if offset == 0 {
        // Not even the header is whole.
        return Ok(size < SEGMENT_HEADER.len());
    }
    let mut rest = vec![0; size];
    file.read_exact_at(&mut rest, offset)?;
    let gap =
        rest.chunk_by(|a, b| a == b).any(|run| run[0] == 0 && run.len() >= MIN_ZERO_RUN.min(size));
    let stated = frame::payload_bytes(&rest).map(|payload| FRAME_HEADER_BYTES + payload);
    let short = size < FRAME_HEADER_BYTES || stated.is_some_and(|stated| stated > size);
    Ok(gap || (short && !bit_repair::has_changed_length(&rest)))
}
