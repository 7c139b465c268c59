//! The events in logs of hook events, in their order and from any number, as often as a log grows.
//!
//! Lines are text of agents. Lines that are no events are skipped: they are violations, which the
//! record of the execution has.

use std::collections::BTreeMap;

use rollout_engine::core::AnnouncedChunk;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::harness::{HookEvent, LineSplitter, SplitLine, parse_event};
use rollout_protocol::limits;
use rollout_store::{BlobStore, StoreError};
use tokio::io::AsyncReadExt as _;

use super::captured::CapturedError;
use super::hook_events::{HookLog, HookLogContent};

/// Bytes of a log that are read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Name of a log in errors.
const LOG_NAME: &str = "hook events";

/// How far the logs of one execution were read.
#[derive(Debug, Clone, Default)]
pub struct HookLogCursor {
    from: u64,
    steps: BTreeMap<u32, StepCursor>,
}

#[derive(Debug, Clone, Default)]
struct StepCursor {
    /// Number of the log.
    log: u32,
    /// Offset after the last whole line that was read.
    offset: u64,
    /// Whether the first event was found that is wanted.
    begun: bool,
    /// Whether the whole log was read to its end.
    complete: bool,
}

/// Something that was read from a log.
#[derive(Debug)]
pub enum HookEventRead<'a> {
    /// An event, and its line.
    Event(&'a HookEvent, &'a str),
    /// This many bytes of the log are missing here, with the events in them.
    Gap(u64),
    /// The log begins again: another attempt replaces everything that was read of this step.
    Restarted,
}

/// Result of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookLogRead {
    /// Whether the whole log was read, to which nothing is added any more.
    pub is_complete: bool,
}

impl HookLogCursor {
    /// The beginning of the logs: events of each step are wanted from the first one whose `seq` is
    /// at least `from`.
    pub fn new(from: u64) -> Self {
        Self { from, steps: BTreeMap::new() }
    }

    /// Reads what was added to a log since the last call, and passes it to `see` in its order.
    ///
    /// # Errors
    /// [`CapturedError::Store`] when a blob cannot be read; a part may have been passed.
    pub async fn read(
        &mut self,
        store: &dyn BlobStore,
        log: &HookLog,
        see: &mut (dyn FnMut(HookEventRead<'_>) + Send),
    ) -> Result<HookLogRead, CapturedError> {
        let cursor = self.steps.entry(log.step).or_default();
        if cursor.complete {
            return Ok(HookLogRead { is_complete: true });
        }
        let (number, whole) = match &log.content {
            HookLogContent::Whole(number, _) => (number.unwrap_or(cursor.log), true),
            HookLogContent::Chunks(number, _) => (*number, false),
        };
        if number != cursor.log {
            if cursor.offset > 0 {
                see(HookEventRead::Restarted);
            }
            *cursor = StepCursor { log: number, ..StepCursor::default() };
        }
        let mut lines = LineReader::new(self.from, cursor.clone(), see);
        match &log.content {
            HookLogContent::Whole(_, blob) => lines.read_blob(store, blob, 0).await?,
            HookLogContent::Chunks(_, chunks) => lines.read_chunks(store, chunks).await?,
        }
        *cursor = lines.finish(whole);
        Ok(HookLogRead { is_complete: whole })
    }
}

/// Splits a log into lines and passes on the events among them.
struct LineReader<'a> {
    from: u64,
    cursor: StepCursor,
    /// Offset of the next byte.
    position: u64,
    splitter: LineSplitter,
    see: &'a mut (dyn FnMut(HookEventRead<'_>) + Send),
}

impl<'a> LineReader<'a> {
    fn new(
        from: u64,
        cursor: StepCursor,
        see: &'a mut (dyn FnMut(HookEventRead<'_>) + Send),
    ) -> Self {
        let splitter = LineSplitter::new(limits::HOOK_EVENT_BYTES);
        Self { from, position: cursor.offset, cursor, splitter, see }
    }

    /// Reads the chunks after the position, whose bytes may overlap.
    async fn read_chunks(
        &mut self,
        store: &dyn BlobStore,
        chunks: &[AnnouncedChunk],
    ) -> Result<(), CapturedError> {
        if !self.cursor.begun {
            // Chunks that only have events with lower numbers are not read.
            let skipped = chunks.iter().filter(|c| c.last_seq.is_some_and(|seq| seq < self.from));
            let skipped = skipped.map(AnnouncedChunk::end).max().unwrap_or_default();
            self.position = self.position.max(skipped);
            self.cursor.offset = self.position;
        }
        for chunk in chunks {
            if chunk.end() <= self.position {
                continue;
            }
            if chunk.offset > self.position {
                (self.see)(HookEventRead::Gap(chunk.offset - self.position));
                self.position = chunk.offset;
                self.cursor.offset = chunk.offset;
                self.splitter = LineSplitter::new(limits::HOOK_EVENT_BYTES);
            }
            self.read_blob(store, &chunk.blob(), chunk.offset).await?;
        }
        Ok(())
    }

    /// Reads a blob, whose first byte has this offset in the log, from the position on.
    async fn read_blob(
        &mut self,
        store: &dyn BlobStore,
        blob: &BlobRef,
        offset: u64,
    ) -> Result<(), CapturedError> {
        let path = || LOG_NAME.to_owned();
        let source = store.get(&blob.digest).await;
        let mut source = source.map_err(|source| CapturedError::Store { path: path(), source })?;
        let mut skip = self.position.saturating_sub(offset);
        let (mut buffer, mut left) = (vec![0; PIECE_BYTES], blob.size_bytes);
        loop {
            let read = source.read(&mut buffer).await;
            let read = read.map_err(|source| CapturedError::Read { path: path(), source })?;
            if read == 0 {
                return match left {
                    0 => Ok(()),
                    _ => {
                        Err(CapturedError::Store { path: path(), source: wrong_size(store, blob) })
                    }
                };
            }
            left = left.saturating_sub(read as u64);
            let skipped = skip.min(read as u64);
            skip -= skipped;
            self.push(&buffer[usize::try_from(skipped).unwrap_or(read)..read]);
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let Self { from, cursor, splitter, see, .. } = self;
        splitter.push(bytes, |line| give(*from, &mut cursor.begun, line, *see));
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            self.cursor.offset = self.position + end as u64 + 1;
        }
        self.position += bytes.len() as u64;
    }

    /// Ends the reading; at the end of a whole log its last line need not end.
    fn finish(mut self, whole: bool) -> StepCursor {
        if whole {
            let Self { from, cursor, splitter, see, .. } = &mut self;
            splitter.finish(|line| give(*from, &mut cursor.begun, line, *see));
        }
        StepCursor { complete: whole, ..self.cursor }
    }
}

/// Passes on the event of a line, if it is one and is wanted.
fn give(
    from: u64,
    begun: &mut bool,
    line: SplitLine<'_>,
    see: &mut (dyn FnMut(HookEventRead<'_>) + Send),
) {
    let SplitLine::Complete(bytes) = line else { return };
    let (Ok(event), Ok(text)) = (parse_event(bytes), std::str::from_utf8(bytes)) else { return };
    *begun |= event.seq >= from;
    if *begun {
        see(HookEventRead::Event(&event, text.trim_ascii()));
    }
}

fn wrong_size(store: &dyn BlobStore, blob: &BlobRef) -> StoreError {
    StoreError::Missing { digest: blob.digest, store: store.identity().to_owned() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use rollout_engine::core::HexDigest;
    use rollout_protocol::blob::MediaType;
    use rollout_protocol::id::{ExecId, ItemId, TryId};
    use rollout_store::MemoryStore;
    use serde_json::json;

    use super::*;

    fn line(seq: u64) -> String {
        let ids = json!({
            "run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0,
        });
        let event = json!({
            "event_type": "error", "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids,
            "message": "m",
        });
        format!("{event}\n")
    }

    async fn chunk(
        store: &MemoryStore,
        text: &str,
        range: std::ops::Range<usize>,
    ) -> AnnouncedChunk {
        let bytes = &text.as_bytes()[range.clone()];
        let blob = store.put_bytes(Bytes::copy_from_slice(bytes), MediaType::Text).await;
        let so_far = text[..range.end].lines().filter_map(|line| {
            serde_json::from_str::<serde_json::Value>(line).ok()?["seq"].as_u64()
        });
        AnnouncedChunk {
            item: ItemId::from_bytes([1; 16]),
            try_id: TryId::first(1),
            exec: ExecId::from_bytes([2; 16]),
            worker: "w".parse().expect("a token"),
            log: 1,
            step: 0,
            offset: range.start as u64,
            size_bytes: range.len() as u64,
            chunk_hex: HexDigest(blob.expect("stored").digest),
            last_seq: so_far.max().filter(|_| bytes.ends_with(b"\n")),
            total: 0,
            violations: 0,
        }
    }

    fn log(content: HookLogContent) -> HookLog {
        HookLog { step: 0, name: None, content }
    }

    /// Numbers of the events that a reading passes on; gaps are negative.
    async fn read(cursor: &mut HookLogCursor, store: &MemoryStore, log: &HookLog) -> Vec<i64> {
        let mut seen = Vec::new();
        let mut see = |read: HookEventRead<'_>| {
            seen.push(match read {
                HookEventRead::Event(event, _) => event.seq as i64,
                HookEventRead::Gap(bytes) => -(bytes as i64),
                HookEventRead::Restarted => i64::MIN,
            });
        };
        cursor.read(store, log, &mut see).await.expect("readable");
        seen
    }

    #[tokio::test]
    async fn growing_log_is_read_once_and_then_from_its_whole() {
        let store = MemoryStore::default();
        let text: String = (1..=6).map(line).collect();
        let length = line(1).len();
        let mut chunks = vec![chunk(&store, &text, 0..2 * length).await];
        let mut cursor = HookLogCursor::new(2);
        let live = log(HookLogContent::Chunks(1, chunks.clone()));
        assert_eq!(read(&mut cursor, &store, &live).await, [2]);
        assert!(read(&mut cursor, &store, &live).await.is_empty(), "nothing was added");
        // One announcement was repeated with later events.
        chunks.push(chunk(&store, &text, length..4 * length).await);
        let live = log(HookLogContent::Chunks(1, chunks));
        assert_eq!(read(&mut cursor, &store, &live).await, [3, 4]);
        let whole = store.put_bytes(text.into(), MediaType::Text).await.expect("stored");
        let whole = log(HookLogContent::Whole(Some(1), whole));
        assert_eq!(read(&mut cursor, &store, &whole).await, [5, 6]);
        assert!(read(&mut cursor, &store, &whole).await.is_empty());
        assert_eq!(read(&mut HookLogCursor::new(5), &store, &whole).await, [5, 6]);
    }

    #[tokio::test]
    async fn missing_chunk_is_a_gap_and_another_log_restarts() {
        let store = MemoryStore::default();
        let text: String = (1..=5).map(line).collect();
        let length = line(1).len();
        let chunks = vec![
            chunk(&store, &text, 0..length).await,
            chunk(&store, &text, 3 * length..5 * length).await,
        ];
        let mut cursor = HookLogCursor::new(0);
        let live = log(HookLogContent::Chunks(1, chunks.clone()));
        assert_eq!(read(&mut cursor, &store, &live).await, [1, -2 * length as i64, 4, 5]);
        let again = log(HookLogContent::Chunks(2, chunks[..1].to_vec()));
        assert_eq!(read(&mut cursor, &store, &again).await, [i64::MIN, 1]);
    }

    #[tokio::test]
    async fn chunks_with_lower_numbers_only_are_not_read() {
        let store = MemoryStore::default();
        let text: String = (1..=4).map(line).collect();
        let length = line(1).len();
        let mut first = chunk(&store, &text, 0..2 * length).await;
        first.chunk_hex = HexDigest(rollout_protocol::digest::Digest::sha256(b"not stored"));
        let second = chunk(&store, &text, 2 * length..4 * length).await;
        let live = log(HookLogContent::Chunks(1, vec![first, second]));
        assert_eq!(read(&mut HookLogCursor::new(4), &store, &live).await, [4]);
        let mut lost = HookLogCursor::new(2);
        assert!(lost.read(&store, &live, &mut |_| {}).await.is_err(), "its blob is missing");
    }

    proptest! {
        #[test]
        fn reading_from_any_number_is_a_suffix_however_the_log_is_cut(
            count in 1u64..30,
            from in 0u64..32,
            cuts in proptest::collection::vec(0usize..6000, 0..8),
            polls in 1usize..4,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let store = MemoryStore::default();
                let text: String = (1..=count).map(line).collect();
                let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
                cuts.extend([0, text.len()]);
                cuts.sort_unstable();
                cuts.dedup();
                let mut chunks = Vec::new();
                for pair in cuts.windows(2) {
                    chunks.push(chunk(&store, &text, pair[0]..pair[1]).await);
                }
                let (mut cursor, mut seen) = (HookLogCursor::new(from), Vec::new());
                for poll in 1..=polls {
                    let known = chunks[..chunks.len() * poll / polls].to_vec();
                    let live = log(HookLogContent::Chunks(1, known));
                    seen.extend(read(&mut cursor, &store, &live).await);
                }
                let wanted: Vec<i64> = (from.max(1)..=count).map(|seq| seq as i64).collect();
                prop_assert_eq!(seen, wanted);
                Ok(())
            })?;
        }
    }
}
