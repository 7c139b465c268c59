//! Announcements of hook events while the harness that writes them runs.
//!
//! The events of one command are a log: the bytes of its file, without secrets. A worker stores the
//! log in pieces, the chunks, and announces each of them. The log in the record of the execution
//! replaces them.

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::limits;

/// A stored piece of a log of hook events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedEventChunk")]
pub struct EventChunk {
    /// Number of the announcement. It increases in an execution, from 1, and may have gaps.
    pub number: u32,
    /// Number of the log in its execution, from 1: the command of every step, and of every attempt
    /// at a step, writes its own.
    pub log: u32,
    /// Index of the task's step, from 0.
    pub step: u32,
    /// Offset of the first byte in the log. Chunks of a log may overlap.
    pub offset: u64,
    /// The bytes: whole lines, unless the chunk ends in a line that no reader accepts.
    pub blob: BlobRef,
    /// The largest `seq` of an event up to the end of this chunk. Absent if there is none, or if
    /// the chunk does not end with a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
    /// Valid events of the log up to the end of this chunk.
    pub total: u64,
    /// Violations in the log up to the end of this chunk.
    pub violations: u64,
}

/// A chunk as it was received.
#[derive(Deserialize)]
struct UncheckedEventChunk {
    number: u32,
    log: u32,
    step: u32,
    offset: u64,
    blob: BlobRef,
    #[serde(default)]
    last_seq: Option<u64>,
    total: u64,
    violations: u64,
}

/// Why an announcement is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a chunk of {size_bytes} bytes at {offset} is empty, or ends beyond {} bytes of its log",
    limits::HOOK_EVENTS_BYTES
)]
pub struct InvalidEventChunk {
    /// Its size.
    pub size_bytes: u64,
    /// Its offset.
    pub offset: u64,
}

impl EventChunk {
    /// Offset in the log after its last byte.
    pub const fn end(&self) -> u64 {
        self.offset + self.blob.size_bytes
    }
}

impl TryFrom<UncheckedEventChunk> for EventChunk {
    type Error = InvalidEventChunk;

    fn try_from(found: UncheckedEventChunk) -> Result<Self, InvalidEventChunk> {
        let UncheckedEventChunk { number, log, step, offset, blob, last_seq, total, violations } =
            found;
        let size_bytes = blob.size_bytes;
        let end = offset.checked_add(size_bytes);
        if size_bytes == 0 || end.is_none_or(|end| end > limits::HOOK_EVENTS_BYTES) {
            return Err(InvalidEventChunk { size_bytes, offset });
        }
        Ok(Self { number, log, step, offset, blob, last_seq, total, violations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::MediaType;

    fn chunk(offset: u64, size_bytes: u64) -> EventChunk {
        let blob = BlobRef { size_bytes, ..BlobRef::for_bytes(b"{}\n", MediaType::Text) };
        let (number, log, step, last_seq) = (1, 1, 0, Some(7));
        EventChunk { number, log, step, offset, blob, last_seq, total: 1, violations: 0 }
    }

    #[test]
    fn chunk_outside_of_largest_log_is_refused() {
        let read = |chunk: &EventChunk| {
            let text = serde_json::to_string(chunk).expect("JSON");
            serde_json::from_str::<EventChunk>(&text)
        };
        for good in [chunk(0, 1), chunk(limits::HOOK_EVENTS_BYTES - 1, 1)] {
            assert_eq!(read(&good).expect("a chunk"), good);
        }
        for bad in [chunk(0, 0), chunk(limits::HOOK_EVENTS_BYTES, 1), chunk(u64::MAX, 2)] {
            assert!(read(&bad).expect_err("refused").to_string().contains("a chunk of "));
        }
    }
}
