//! The journal's form of an announcement of hook events.

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, TryId, WorkerId};
use rollout_protocol::wire::event_chunk::EventChunk;
use rollout_protocol::wire::report::Report;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A chunk of hook events with its execution. Short, because a journal may hold one for every second
/// of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncedChunk {
    /// Item.
    #[serde(rename = "i")]
    pub item: ItemId,
    /// Try.
    #[serde(rename = "t")]
    pub try_id: TryId,
    /// Execution.
    #[serde(rename = "e")]
    pub exec: ExecId,
    /// Worker.
    #[serde(rename = "w")]
    pub worker: WorkerId,
    /// Number of the log in the execution.
    #[serde(rename = "l")]
    pub log: u32,
    /// Index of the task's step.
    #[serde(rename = "s", default)]
    pub step: u32,
    /// Offset of the first byte in the log.
    #[serde(rename = "o")]
    pub offset: u64,
    /// Number of bytes.
    #[serde(rename = "b")]
    pub size_bytes: u64,
    /// Digest of the bytes. Without its algorithm: whether a run still needs the blob depends on
    /// other records, so that it is not found as other digests of a journal are.
    pub chunk_hex: HexDigest,
    /// The largest `seq` so far, if the chunk ends with a line.
    #[serde(rename = "q", default, skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<u64>,
    /// Valid events so far.
    #[serde(rename = "n")]
    pub total: u64,
    /// Violations so far.
    #[serde(rename = "v", default)]
    pub violations: u64,
}

/// A digest without its algorithm in documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HexDigest(pub Digest);

impl Serialize for HexDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.hex())
    }
}

impl<'de> Deserialize<'de> for HexDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        format!("sha256:{hex}").parse().map(Self).map_err(D::Error::custom)
    }
}

impl AnnouncedChunk {
    /// The chunk that a report announces.
    pub(super) fn new(report: &Report, chunk: &EventChunk) -> Self {
        Self {
            item: report.item,
            try_id: report.try_id,
            exec: report.exec,
            worker: report.worker.clone(),
            log: chunk.log,
            step: chunk.step,
            offset: chunk.offset,
            size_bytes: chunk.blob.size_bytes,
            chunk_hex: HexDigest(chunk.blob.digest),
            last_seq: chunk.last_seq,
            total: chunk.total,
            violations: chunk.violations,
        }
    }

    /// The blob with its bytes.
    pub fn blob(&self) -> BlobRef {
        let (digest, size_bytes) = (self.chunk_hex.0, self.size_bytes);
        BlobRef { digest, size_bytes, media_type: Some(MediaType::Text) }
    }

    /// Offset in the log after its last byte.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.size_bytes)
    }
}
