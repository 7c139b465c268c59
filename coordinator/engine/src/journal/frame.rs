//! Frames: length, checksum, payload.

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::short_form::{RecordForm, ShortCompletions, ShortReport};
use crate::core::JournalRecord;

/// First bytes of every segment.
pub(super) const SEGMENT_HEADER: &[u8] = b"rollout-journal 1\n";

/// Longest payload: a batch of offers of the largest run at its widest. A longer length is damage.
/// Tests reach theirs in little memory.
pub(super) const MAX_PAYLOAD_BYTES: usize = if cfg!(test) { 8 } else { 256 } * 1024 * 1024;

/// A record that no reader would take. It is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the journal takes no record of {bytes} bytes: at most {MAX_PAYLOAD_BYTES} are allowed")]
pub struct TooLongRecord {
    /// Its length.
    pub bytes: usize,
}

#[derive(Serialize)]
struct EncodedRecord<'a> {
    at: Timestamp,
    #[serde(skip_serializing_if = "is_false")]
    synced: bool,
    #[serde(flatten)]
    content: EncodedContent<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum EncodedContent<'a> {
    Record(&'a JournalRecord),
    Report(Box<ShortReport<'a>>),
    Completed(ShortCompletions),
}

impl<'a> EncodedContent<'a> {
    fn new(record: &'a JournalRecord, form: RecordForm) -> Self {
        if form == RecordForm::Full {
            return Self::Record(record);
        }
        let report = ShortReport::of(record).map(|report| Self::Report(Box::new(report)));
        report
            .or_else(|| ShortCompletions::of(record).map(Self::Completed))
            .unwrap_or(Self::Record(record))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A record with the time it was made.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "StoredPayload")]
pub(super) struct DecodedRecord {
    pub(super) at: Timestamp,
    /// Whether it begins a batch: everything before this record was durable when it was written.
    pub(super) synced: bool,
    pub(super) record: JournalRecord,
}

/// A payload in either form.
#[derive(Deserialize)]
struct StoredPayload {
    at: Timestamp,
    #[serde(default)]
    synced: bool,
    record: Option<JournalRecord>,
    report: Option<ShortReport<'static>>,
    completed: Option<ShortCompletions>,
}

impl TryFrom<StoredPayload> for DecodedRecord {
    type Error = &'static str;

    fn try_from(stored: StoredPayload) -> Result<Self, Self::Error> {
        let StoredPayload { at, synced, record, report, completed } = stored;
        let record = match (record, report, completed) {
            (Some(record), None, None) => record,
            (None, Some(report), None) => report.into_record()?,
            (None, None, Some(completed)) => completed.into_record()?,
            _ => return Err("it has no record, or several"),
        };
        Ok(Self { at, synced, record })
    }
}

/// First bytes of every payload.
pub(super) const PAYLOAD_START: &[u8] = b"{\"at\":";

/// Appends the frame of a record in its full form to `buffer`; `synced` if it begins a batch.
///
/// # Errors
/// [`TooLongRecord`]: a reader would take the frame for damage. The buffer is as before.
pub(super) fn encode(
    buffer: &mut Vec<u8>,
    at: Timestamp,
    synced: bool,
    record: &JournalRecord,
) -> Result<(), TooLongRecord> {
    encode_as(RecordForm::Full, buffer, at, synced, record)
}

/// Appends the frame of a record in a form to `buffer`; `synced` if it begins a batch.
///
/// # Errors
/// As [`encode`].
pub(super) fn encode_as(
    form: RecordForm,
    buffer: &mut Vec<u8>,
    at: Timestamp,
    synced: bool,
    record: &JournalRecord,
) -> Result<(), TooLongRecord> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 8]);
    let content = EncodedContent::new(record, form);
    serde_json::to_writer(&mut *buffer, &EncodedRecord { at, synced, content })
        .expect("records have text keys and memory does not fail to be written");
    let bytes = buffer.len() - start - 8;
    if bytes > MAX_PAYLOAD_BYTES {
        buffer.truncate(start);
        return Err(TooLongRecord { bytes });
    }
    let length = u32::try_from(bytes).expect("far below 4 GiB").to_le_bytes();
    let checksum = checksum(length, &buffer[start + 8..]);
    buffer[start..start + 4].copy_from_slice(&length);
    buffer[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// Length and checksum.
pub(super) const FRAME_HEADER_BYTES: usize = 8;

/// The payload length that a frame states, if it is valid.
pub(super) fn payload_bytes(frame: &[u8]) -> Option<usize> {
    let (length, _) = frame.split_first_chunk::<4>()?;
    let size = u32::from_le_bytes(*length) as usize;
    (1..=MAX_PAYLOAD_BYTES).contains(&size).then_some(size)
}

/// The payload of a frame; `None` when its checksum does not match.
pub(super) fn decode(frame: &[u8]) -> Option<&[u8]> {
    let (length, rest) = frame.split_first_chunk::<4>()?;
    let (expected, payload) = rest.split_first_chunk::<4>()?;
    (checksum(*length, payload) == u32::from_le_bytes(*expected)).then_some(payload)
}

/// Whether a whole frame begins a batch. Decided by the text between its time and its record: no
/// string of either can contain it.
pub(super) fn is_synced(frame: &[u8]) -> bool {
    let marks: [&[u8]; 3] = [
        b",\"synced\":true,\"record\":",
        b",\"synced\":true,\"report\":",
        b",\"synced\":true,\"completed\":",
    ];
    marks.into_iter().any(|mark| begins_with(frame, mark))
}

/// Whether a whole frame holds a record that reopens items. Decided as [`is_synced`].
pub(super) fn is_reopening(frame: &[u8]) -> bool {
    begins_with(frame, b",\"record\":{\"reopened\":")
}

/// Whether a mark is in the first bytes of a payload.
fn begins_with(frame: &[u8], mark: &[u8]) -> bool {
    let start = &frame[FRAME_HEADER_BYTES..];
    start[..start.len().min(96)].windows(mark.len()).any(|bytes| bytes == mark)
}

/// The XOR of a frame's stated and actual checksums.
pub(super) fn checksum_difference(frame: &[u8]) -> Option<u32> {
    let (length, rest) = frame.split_first_chunk::<4>()?;
    let (expected, payload) = rest.split_first_chunk::<4>()?;
    Some(checksum(*length, payload) ^ u32::from_le_bytes(*expected))
}

fn checksum(length: [u8; 4], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length), payload)
}
