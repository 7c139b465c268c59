//! The hook events of a harness while its command runs: about once a second the new ones are read,
//! checked, stored and announced.

use std::convert::Infallible;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use rollout_base::secrets::Redactor;
use rollout_base::supervise;
use rollout_environment::Environment;
use rollout_protocol::harness::HookStreamValidator;
use rollout_protocol::limits;
use rollout_protocol::record::HarnessEvents;
use rollout_store::archive::{self, CapturedFile, FilePieces};
use tokio::time::Instant;

use super::control::WrittenControls;
use super::growing_log::{GrowingLog, LogPiece};
use crate::executor::{self, EventLogSink, NewEventChunk, with_timeout};

/// Longest wait for one reading: the next reading continues.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// How much longer than a reading the pause after it is: environments give files as a whole, and
/// readings of a large file must not slow down the trials of a host.
const PAUSE_PER_READING: u32 = 20;

/// Longest wait for the events that are stored after the command: they are in the record, too.
const REST_LIMIT: Duration = Duration::from_secs(5);

/// Bytes that are stored after the command. A larger rest is found in the record only.
const REST_BYTES: u64 = 4 * limits::HOOK_EVENT_CHUNK_BYTES as u64;

/// Stores the events of one command while it runs.
#[derive(Debug)]
pub(super) struct LiveEvents<'a> {
    path: String,
    sink: &'a dyn EventLogSink,
    step: u32,
    began: Instant,
    log: GrowingLog,
    written: WrittenControls,
    /// Controls of `written` that the log knows.
    known_controls: usize,
    stored: StoredProgress,
}

/// The chunks that were stored and announced.
#[derive(Debug, Clone, Copy, Default)]
struct StoredProgress {
    /// Number of the log, once there is one.
    log: Option<u32>,
    chunks: u32,
    /// Bytes of the log in them.
    bytes: u64,
}

/// The part of a log that was stored while its command ran.
#[derive(Debug)]
pub(super) struct StoredLog {
    step: u32,
    progress: StoredProgress,
    /// Duration of the command.
    lasted: Duration,
}

impl<'a> LiveEvents<'a> {
    /// The events at `path` of a command that begins now, in the task's step with this index.
    pub(super) fn new(
        path: String,
        sink: &'a dyn EventLogSink,
        step: usize,
        (validator, written): (HookStreamValidator, WrittenControls),
        redactor: &Redactor,
    ) -> Self {
        Self {
            path,
            sink,
            step: u32::try_from(step).unwrap_or(u32::MAX),
            began: Instant::now(),
            log: GrowingLog::new(validator, redactor),
            written,
            known_controls: 0,
            stored: StoredProgress::default(),
        }
    }

    /// Stores new events until it is dropped. Faults are not reported: the events are read again
    /// when the command has ended.
    pub(super) async fn store(&mut self, environment: &dyn Environment) -> Infallible {
        let mut pause = limits::HOOK_EVENT_CHUNK_INTERVAL;
        loop {
            tokio::time::sleep(pause).await;
            let began = Instant::now();
            let Some(new) = self.read(environment).await else {
                let path = &self.path;
                tracing::warn!(
                    "{path}: events are no longer read while the command runs: the file shrank or is too large"
                );
                return std::future::pending().await;
            };
            let took = began.elapsed();
            for control in self.written.since(self.known_controls) {
                self.known_controls += 1;
                self.log.add_control(control);
            }
            self.log.push(&new);
            if let Some(piece) = self.log.take() {
                self.append(piece).await;
            }
            let interval = limits::HOOK_EVENT_CHUNK_INTERVAL
                + limits::HOOK_EVENT_CHUNK_SLOWDOWN * self.stored.chunks;
            pause = interval.max(took * PAUSE_PER_READING);
        }
    }

    /// The end of the command.
    pub(super) fn finish(self) -> StoredLog {
        StoredLog { step: self.step, progress: self.stored, lasted: self.began.elapsed() }
    }

    async fn append(&mut self, piece: LogPiece) {
        let LogPiece { offset, bytes, last_seq, total, violations } = piece;
        let end = offset + bytes.len() as u64;
        let log = *self.stored.log.get_or_insert_with(|| self.sink.begin_log());
        let step = self.step;
        self.sink
            .append(NewEventChunk { log, step, offset, bytes, last_seq, total, violations })
            .await;
        self.stored.bytes = end;
        self.stored.chunks += 1;
    }

    /// Bytes that were added to the file, as many as the log can hold; `None` if the file cannot be
    /// followed any more.
    async fn read(&self, environment: &dyn Environment) -> Option<Vec<u8>> {
        let opening = executor::open_stream(environment, &self.path);
        let Ok(opened) = with_timeout(READ_LIMIT, "reading events", opening).await else {
            return Some(Vec::new());
        };
        // A harness may replace its file: for a moment there is none.
        let Some(stream) = opened else { return Some(Vec::new()) };
        let known = self.log.read_bytes();
        let new = NewBytes { length: 0, known, capacity: self.log.capacity(), bytes: Vec::new() };
        let reading = archive::stream_first_file(stream, limits::HOOK_EVENTS_BYTES, new);
        let Ok((new, end)) = tokio::time::timeout(READ_LIMIT, reading).await else {
            return Some(Vec::new());
        };
        match end {
            Err(CapturedFile::TooLarge(_)) => None,
            Ok(()) if new.length < known => None,
            _ => Some(new.bytes),
        }
    }
}

impl StoredLog {
    /// Stores the events that the command wrote last, from the `file` that is kept of them. Gives up
    /// when that takes long, and does nothing for a command that ended within a second: its events
    /// are in the record.
    pub(super) async fn append_rest(
        &self,
        sink: &dyn EventLogSink,
        file: &Path,
        events: &HarnessEvents,
    ) {
        if self.lasted >= limits::HOOK_EVENT_CHUNK_INTERVAL {
            let storing = self.append_chunks(sink, file, events);
            let _gave_up = tokio::time::timeout(REST_LIMIT, storing).await;
        }
    }

    async fn append_chunks(&self, sink: &dyn EventLogSink, file: &Path, events: &HarnessEvents) {
        let (file, mut offset) = (file.to_owned(), self.progress.bytes);
        let rest = supervise::blocking(move || read_rest(&file, offset)).await;
        // The file is kept all the same.
        let Ok(rest) = rest else { return };
        if rest.is_empty() || rest.len() as u64 > REST_BYTES {
            return;
        }
        let log = self.progress.log.unwrap_or_else(|| sink.begin_log());
        let (step, total, violations) = (self.step, events.total, events.violations.total);
        for bytes in rest.chunks(limits::HOOK_EVENT_CHUNK_BYTES) {
            let bytes = Bytes::copy_from_slice(bytes);
            let next = offset + bytes.len() as u64;
            let last_seq = None;
            sink.append(NewEventChunk { log, step, offset, bytes, last_seq, total, violations })
                .await;
            offset = next;
        }
    }
}

/// The bytes of a file after an offset; one byte more than [`REST_BYTES`] if there are more.
fn read_rest(file: &Path, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(file)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut rest = Vec::new();
    file.take(REST_BYTES + 1).read_to_end(&mut rest)?;
    Ok(rest)
}

/// Takes the bytes of a file that are not known.
struct NewBytes {
    /// Length of the file as far as it was read.
    length: u64,
    known: u64,
    capacity: usize,
    bytes: Vec<u8>,
}

impl FilePieces for NewBytes {
    fn take(&mut self, piece: &[u8]) {
        let start = self.length;
        self.length += piece.len() as u64;
        let skipped = usize::try_from(self.known.saturating_sub(start)).unwrap_or(usize::MAX);
        let new = piece.get(skipped..).unwrap_or_default();
        let room = self.capacity.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&new[..room.min(new.len())]);
    }
}
