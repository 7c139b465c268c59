//! Run directories: segments of records. A crash keeps the synced part and any number of bytes of
//! the rest.

use rollout_engine::core::{JournalRecord, PredecessorSegment};
use rollout_protocol::digest::Digest;
use serde_json::Deserializer;

use crate::lock::JournalHead;

/// The journal of a run in one directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelRunDirectory {
    pub(crate) segments: Vec<ModelJournalSegment>,
}

/// The records of one run session.
#[derive(Debug, Clone)]
pub(crate) struct ModelJournalSegment {
    pub(crate) epoch: u32,
    pub(crate) records: Vec<JournalRecord>,
    /// Number of synced records.
    pub(crate) durable: usize,
}

impl ModelRunDirectory {
    pub(crate) fn segment(&mut self, epoch: u32) -> &mut ModelJournalSegment {
        let found = self.segments.iter_mut().find(|segment| segment.epoch == epoch);
        found.expect("the run session's segment exists")
    }

    /// Newest epoch of any segment.
    pub(crate) fn epoch(&self) -> u32 {
        self.segments.iter().map(|segment| segment.epoch).max().unwrap_or(0)
    }

    /// Number of valid records of a segment: all, unless a later segment states how many it builds
    /// on.
    fn valid_records(&self, segment: &ModelJournalSegment) -> usize {
        let named = self.segments.iter().find_map(|later| match later.records.first() {
            Some(JournalRecord::Opened(opened)) => {
                opened.former.filter(|f| f.epoch == segment.epoch)
            }
            _ => None,
        });
        named.map_or(segment.records.len(), |former: PredecessorSegment| {
            usize::try_from(former.bytes).expect("a number of records")
        })
    }

    /// Its end.
    pub(crate) fn head(&self) -> Option<JournalHead> {
        let last = self.segments.last()?;
        Some(JournalHead { epoch: last.epoch, records: last.durable, position: None })
    }

    /// Every valid record, in order.
    pub(crate) fn replay(&self) -> impl Iterator<Item = &JournalRecord> {
        self.segments.iter().flat_map(|segment| &segment.records[..self.valid_records(segment)])
    }

    /// Predecessor entry of the next segment. Makes everything that is read durable first.
    pub(crate) fn seal_last_segment(&mut self) -> Option<PredecessorSegment> {
        let last = self.segments.last_mut()?;
        last.durable = last.records.len();
        let bytes = last.records.len() as u64;
        Some(PredecessorSegment { epoch: last.epoch, bytes, digest: Digest::from_bytes([0; 32]) })
    }

    /// Whether it contains everything up to a position.
    pub(crate) fn contains(&self, head: &JournalHead) -> bool {
        let segment = self.segments.iter().find(|segment| segment.epoch == head.epoch);
        segment.is_some_and(|segment| self.valid_records(segment) >= head.records)
    }

    /// A copy for another host: the records that are durable now.
    pub(crate) fn copy(&self) -> Self {
        let mut copy = self.clone();
        for segment in &mut copy.segments {
            segment.records.truncate(segment.durable);
        }
        copy.segments.retain(|segment| !segment.records.is_empty());
        copy
    }

    /// Simulates a crash of a segment's writer: `share` / 65,536 of the unsynced bytes survive.
    pub(crate) fn crash(&mut self, epoch: u32, share: u16) {
        let segment = self.segment(epoch);
        let tail = segment.records.split_off(segment.durable);
        if tail.is_empty() {
            return;
        }
        let mut bytes = Vec::new();
        for record in &tail {
            serde_json::to_writer(&mut bytes, record).expect("records can be written");
            bytes.push(b'\n');
        }
        bytes.truncate(bytes.len() * usize::from(share) / 65_535);
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let read = Deserializer::from_slice(&bytes[..whole]).into_iter();
        segment.records.extend(read.map(|record| record.expect("whole lines can be read")));
    }
}
