//! The chunks of hook events that a run still needs: those of every log that is in no record. The
//! journal names chunks in a form of their own, so that they are not found as its other digests are.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rollout_engine::core::JournalRecord;
use rollout_engine::journal::{JournalError, ReplayExtent, RunLayout, SegmentIndex};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::ExecId;
use rollout_protocol::limits;
use rollout_protocol::record::TrialRecord;
use rollout_protocol::wire::report::{Report, ReportBody};
use rollout_store::BlobStore;

/// Text before the digits of a chunk's digest in a journal.
const START: &[u8] = b"\"chunk_hex\":\"";

/// Hexadecimal digits of a digest.
const DIGITS: usize = 64;

/// The chunks that the journal of a run names.
#[derive(Debug, Default)]
pub(super) struct EventChunks {
    named: HashSet<Digest>,
    executions: HashMap<ExecId, ExecutionChunks>,
}

/// The chunks of an execution.
#[derive(Debug, Default)]
struct ExecutionChunks {
    /// Its record.
    record: Option<Digest>,
    /// The step of each chunk.
    chunks: Vec<(u32, Digest)>,
}

/// Finds the digests of chunks in a journal that arrives in pieces.
#[derive(Debug, Default)]
pub(super) struct ChunkScanner {
    /// End of the previous pieces.
    rest: Vec<u8>,
}

impl ChunkScanner {
    /// Scans the next piece.
    pub(super) fn scan(&mut self, piece: &[u8], chunks: &mut EventChunks) {
        self.rest.extend_from_slice(piece);
        let mut at = 0;
        while let Some(found) = self.rest[at..].windows(START.len()).position(|text| text == START)
        {
            let start = at + found + START.len();
            let Some(digits) = self.rest.get(start..start + DIGITS) else { break };
            chunks.named.extend(parse(digits));
            at = start;
        }
        let keep = self.rest.len().min(START.len() + DIGITS);
        self.rest.drain(..self.rest.len() - keep);
    }
}

fn parse(digits: &[u8]) -> Option<Digest> {
    format!("sha256:{}", std::str::from_utf8(digits).ok()?).parse().ok()
}

impl EventChunks {
    /// Reads the executions of the chunks from the journal of a run. What cannot be read leaves
    /// chunks that are needed.
    pub(super) fn read_executions(&mut self, run_dir: &Path) {
        if self.named.is_empty() {
            return;
        }
        if let Err(error) = self.replay(run_dir) {
            let run_dir = run_dir.display();
            tracing::warn!("{run_dir}: keeping the events of all executions: {error}");
            self.executions.clear();
        }
    }

    fn replay(&mut self, run_dir: &Path) -> Result<(), JournalError> {
        let index = SegmentIndex::read(&RunLayout::new(run_dir))?;
        let executions = &mut self.executions;
        index.replay(&[], ReplayExtent::Durable, |_, record| match record {
            JournalRecord::EventChunk { chunk, .. } => {
                let known = executions.entry(chunk.exec).or_default();
                known.chunks.push((chunk.step, chunk.chunk_hex.0));
            }
            JournalRecord::Reported { report, .. } | JournalRecord::Recovered { report } => {
                if let Some(known) = executions.get_mut(&report.exec) {
                    known.record = record_of(&report).or(known.record);
                }
            }
            _ => {}
        })?;
        Ok(())
    }

    /// The chunks that are needed: all but those of logs that are in a record.
    pub(super) async fn needed(mut self, store: &dyn BlobStore) -> HashSet<Digest> {
        let (mut kept, mut replaced) = (HashSet::new(), HashSet::new());
        for execution in self.executions.into_values() {
            let logs = recorded_logs(store, execution.record).await;
            for (step, digest) in execution.chunks {
                let set = if logs.contains(&step) { &mut replaced } else { &mut kept };
                set.insert(digest);
            }
        }
        self.named.retain(|digest| kept.contains(digest) || !replaced.contains(digest));
        self.named
    }
}

fn record_of(report: &Report) -> Option<Digest> {
    let record = match &report.body {
        ReportBody::Result(body) => body.record.as_ref(),
        ReportBody::Lost { record, .. } => record.as_ref(),
        ReportBody::Started | ReportBody::Events(_) => None,
    };
    record.map(|blob| blob.digest)
}

/// The steps whose logs a record has. A record that cannot be read has none.
async fn recorded_logs(store: &dyn BlobStore, record: Option<Digest>) -> HashSet<u32> {
    let Some(digest) = record else { return HashSet::new() };
    let text = store.get_bytes(&digest, limits::DOCUMENT_BYTES).await;
    let record = text.ok().and_then(|text| serde_json::from_slice::<TrialRecord>(&text).ok());
    record.iter().flat_map(TrialRecord::event_logs).map(|log| log.step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_is_found_however_the_journal_is_cut() {
        let digests = [Digest::sha256(b"a"), Digest::sha256(b"b")];
        let text = format!(
            "{{\"chunk_hex\":\"{}\",\"q\":1}}{{\"other\":\"{}\",\"chunk_hex\":\"{}\"}}",
            digests[0].hex(),
            Digest::sha256(b"c").hex(),
            digests[1].hex()
        );
        for size in [1, 7, 64, 100, text.len()] {
            let (mut chunks, mut scanner) = (EventChunks::default(), ChunkScanner::default());
            text.as_bytes().chunks(size).for_each(|piece| scanner.scan(piece, &mut chunks));
            assert_eq!(chunks.named, digests.into(), "in pieces of {size}");
        }
    }
}
