//! Writer of a journal: one thread, one write and one `fdatasync` per batch.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rollout_base::backoff::error_chain;
use rollout_base::durable;
use rollout_base::fs_make::make_directory;
use rollout_protocol::Timestamp;
use rollout_protocol::digest::{Digest, DigestHasher};
use tokio::sync::mpsc;

use super::compaction::{self, JournalCompaction};
use super::durable_length::DurableLength;
use super::frame::{self, SEGMENT_HEADER, TooLongRecord};
use super::mirror::BlockingMirror;
use super::prefix::JournalPrefix;
use super::short_form::RecordForm;
use super::{JournalError, JournalMirror, RunLayout, SegmentEpochs, SegmentOffset};
use crate::core::{JournalRecord, PredecessorSegment, SessionStart};

/// A durable batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommittedBatch {
    /// Number of the batch, from 1.
    pub number: u64,
    /// The durable prefix of its segment.
    pub prefix: JournalPrefix,
}

struct WriteBatch {
    number: u64,
    frames: Vec<u8>,
    /// A compaction that follows.
    compaction: Option<JournalCompaction>,
}

/// Writes the journal of one session. One batch may be in flight at a time; records made meanwhile
/// form the next one.
#[derive(Debug)]
pub struct JournalWriter {
    form: RecordForm,
    gathering: Vec<u8>,
    /// A record that cannot be written: its batch is not handed over, nor any after it.
    refused: Option<TooLongRecord>,
    submitted: u64,
    committed: u64,
    prefix: JournalPrefix,
    batches: Option<SyncSender<WriteBatch>>,
    commits: mpsc::Receiver<Result<CommittedBatch, JournalError>>,
    mirror: Option<BlockingMirror>,
    thread: Option<JoinHandle<()>>,
}

impl JournalWriter {
    /// Creates the segment of a new epoch with its opening record durable in it.
    ///
    /// # Errors
    /// [`JournalError`]; an existing segment of that epoch is one.
    pub fn create(
        layout: &RunLayout,
        at: Timestamp,
        opened: SessionStart,
    ) -> Result<Self, JournalError> {
        Self::create_mirrored(layout, at, opened, None)
    }

    /// The same with a mirror, on a thread of a runtime that may block.
    ///
    /// # Errors
    /// [`JournalError`]; an existing segment of that epoch is one, here or in the mirror.
    pub fn create_mirrored(
        layout: &RunLayout,
        at: Timestamp,
        opened: SessionStart,
        mirror: Option<Arc<dyn JournalMirror>>,
    ) -> Result<Self, JournalError> {
        let mirror = mirror.map(BlockingMirror::new);
        let form = RecordForm::of(&opened);
        let segment = SegmentFile::create(layout, at, opened, mirror.clone())?;
        let prefix = segment.durable;
        let (batches, incoming) = sync_channel(1);
        let (outgoing, commits) = mpsc::channel(2);
        let layout = layout.clone();
        let thread = rollout_base::supervise::thread("journal", move || {
            write_batches(&layout, segment, &incoming, &outgoing);
        })
        .map_err(JournalError::io("start the writer of", Path::new("the journal")))?;
        Ok(Self {
            form,
            gathering: Vec::new(),
            refused: None,
            submitted: 0,
            committed: 0,
            prefix,
            batches: Some(batches),
            commits,
            mirror,
            thread: Some(thread),
        })
    }

    /// Adds a record to the next batch. After one that is too long, nothing more is written and
    /// [`durable`](Self::durable) says why.
    pub fn record(&mut self, at: Timestamp, record: &JournalRecord) {
        let synced = self.gathering.is_empty();
        if let Err(error) = frame::encode_as(self.form, &mut self.gathering, at, synced, record) {
            self.refused.get_or_insert(error);
        }
    }

    /// Number of the batch with the last record: its effects wait until that batch is durable.
    pub fn last(&self) -> u64 {
        if self.has_gathered() { self.submitted + 1 } else { self.submitted }
    }

    /// Whether there is a next batch. One with a record that was refused never becomes durable.
    fn has_gathered(&self) -> bool {
        !self.gathering.is_empty() || self.refused.is_some()
    }

    /// Number of durable batches.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// The durable prefix of the journal.
    pub fn durable_prefix(&self) -> JournalPrefix {
        self.prefix
    }

    /// Whether nothing waits to be written or is being written.
    pub fn is_idle(&self) -> bool {
        !self.has_gathered() && self.submitted == self.committed
    }

    /// Whether batches also wait for a mirror, which may not answer.
    pub fn is_mirrored(&self) -> bool {
        self.mirror.is_some()
    }

    /// Hands the gathered batch to the disk if the disk is idle; whether it did.
    pub fn submit(&mut self) -> bool {
        if self.gathering.is_empty() {
            return false;
        }
        self.submit_batch(None)
    }

    /// Hands the gathered batch to the disk with a compaction that follows it, if the disk is idle
    /// and there is no mirror; whether it did. The compaction keeps what the records so far need. A
    /// compaction that fails changes nothing.
    pub fn submit_with(&mut self, compaction: JournalCompaction) -> bool {
        self.mirror.is_none() && self.submit_batch(Some(compaction))
    }

    /// Whether a batch that is handed over now is written at once.
    pub fn is_disk_idle(&self) -> bool {
        self.submitted == self.committed
    }

    fn submit_batch(&mut self, compaction: Option<JournalCompaction>) -> bool {
        if !self.is_disk_idle() || self.refused.is_some() {
            return false;
        }
        self.submitted += 1;
        // The next batch will be about as long: reserving avoids copies as it grows.
        let next = Vec::with_capacity(self.gathering.len());
        let frames = std::mem::replace(&mut self.gathering, next);
        let batch = WriteBatch { number: self.submitted, frames, compaction };
        if let Some(batches) = &self.batches {
            // The thread ends only after an error, which `durable` has returned or will return.
            drop(batches.send(batch));
        }
        true
    }

    /// The next batch that becomes durable. Pending while none is in flight. Cancel-safe.
    ///
    /// # Errors
    /// [`JournalError`] when the journal cannot be written any more, not even in a new segment.
    pub async fn durable(&mut self) -> Result<CommittedBatch, JournalError> {
        if let Some(refused) = self.refused {
            return Err(refused.into());
        }
        if self.submitted == self.committed {
            std::future::pending::<()>().await;
        }
        let commit = self.commits.recv().await.expect("the writer answers every batch")?;
        self.committed = commit.number;
        self.prefix = commit.prefix;
        Ok(commit)
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(mirror) = &self.mirror {
            mirror.abandon();
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the writer was reported through its closed channel.
            drop(thread.join());
        }
    }
}

fn write_batches(
    layout: &RunLayout,
    mut segment: SegmentFile,
    incoming: &Receiver<WriteBatch>,
    outgoing: &mpsc::Sender<Result<CommittedBatch, JournalError>>,
) {
    while let Ok(WriteBatch { number, frames, compaction }) = incoming.recv() {
        let appended = if frames.is_empty() { Ok(()) } else { segment.append(&frames) };
        let mut written = appended.or_else(|error| {
            if let JournalError::Mirror(_) = error {
                return Err(error);
            }
            tracing::warn!("{}; continuing in a new segment", error_chain(&error));
            segment = segment.create_successor(layout)?;
            segment.append(&frames)
        });
        if let (Ok(()), Some(compaction)) = (&written, &compaction) {
            match compaction::compact(layout, &segment.opened, segment.durable, compaction) {
                // The former segments no longer count: without the new one nothing can be written.
                Ok((opened, durable)) => match SegmentFile::reopen(layout, opened, durable) {
                    Ok(compacted) => segment = compacted,
                    Err(error) => written = Err(error),
                },
                Err(error) => {
                    tracing::warn!("cannot compact the journal: {}", error_chain(&error));
                }
            }
        }
        let commit = written.map(|()| CommittedBatch { number, prefix: segment.durable });
        let failed = commit.is_err();
        if outgoing.blocking_send(commit).is_err() || failed {
            return;
        }
    }
}

/// One open segment.
#[derive(Debug)]
struct SegmentFile {
    file: File,
    path: std::path::PathBuf,
    opened: SessionStart,
    durable: JournalPrefix,
    length: DurableLength,
    mirror: Option<BlockingMirror>,
}

impl SegmentFile {
    fn create(
        layout: &RunLayout,
        at: Timestamp,
        opened: SessionStart,
        mirror: Option<BlockingMirror>,
    ) -> Result<Self, JournalError> {
        let directory = layout.journal();
        // Not the run directory itself: one that was moved must not reappear in part.
        make_directory(&directory, 0).map_err(JournalError::io("create", &directory))?;
        let path = layout.segment(opened.epoch);
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(&path)
            .map_err(JournalError::io("create", &path))?;
        let mut first = SEGMENT_HEADER.to_vec();
        frame::encode(&mut first, at, true, &JournalRecord::Opened(Box::new(opened.clone())))?;
        let durable = JournalPrefix::start(opened.epoch);
        let length = DurableLength::create(layout, opened.epoch)?;
        let mut segment = Self { file, path, opened, durable, length, mirror };
        segment.write(&first)?;
        sync_directory(&directory)?;
        sync_directory(layout.root())?;
        let SessionStart { run, epoch, former, .. } = segment.opened;
        let epochs = SegmentEpochs { epoch, former: former.map(|former| former.epoch) };
        if let Some(mirror) = &segment.mirror
            && let Err(error) = mirror.create_segment(run, epochs, &first)
        {
            // Whether the mirror has it is not known. If so, the next session fetches it.
            drop(std::fs::remove_file(&segment.path));
            sync_directory(&directory)?;
            return Err(error);
        }
        segment.mark_durable(&first);
        Ok(segment)
    }

    /// Opens the segment of a compaction, and removes those that it replaced.
    fn reopen(
        layout: &RunLayout,
        opened: SessionStart,
        durable: JournalPrefix,
    ) -> Result<Self, JournalError> {
        let path = layout.segment(opened.epoch);
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(JournalError::io("open", &path))?;
        let mut length = DurableLength::create(layout, opened.epoch)?;
        length.write(durable.bytes);
        compaction::remove_replaced(layout, opened.epoch);
        sync_directory(&layout.journal())?;
        Ok(Self { file, path, opened, durable, length, mirror: None })
    }

    fn append(&mut self, frames: &[u8]) -> Result<(), JournalError> {
        self.write(frames)?;
        if let Some(mirror) = &self.mirror {
            let SessionStart { run, epoch, .. } = self.opened;
            mirror.append(SegmentOffset { run, epoch, bytes: self.durable.bytes }, frames)?;
        }
        self.mark_durable(frames);
        Ok(())
    }

    fn mark_durable(&mut self, frames: &[u8]) {
        self.durable.add_all(frames.strip_prefix(SEGMENT_HEADER).unwrap_or(frames));
        self.length.write(self.durable.bytes);
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        self.file.write_all(bytes).map_err(JournalError::io("append to", &self.path))?;
        self.file.sync_data().map_err(JournalError::io("sync", &self.path))
    }

    /// Digest of the durable bytes, read back: needed only after a failure.
    fn digest(&self) -> Result<Digest, JournalError> {
        let read = |source| JournalError::io("read", &self.path)(source);
        let mut file = File::open(&self.path).map_err(read)?.take(self.durable.bytes);
        let mut hasher = DigestHasher::default();
        let mut chunk = vec![0; 1 << 16];
        loop {
            match file.read(&mut chunk).map_err(read)? {
                0 => return Ok(hasher.finish()),
                n => hasher.update(&chunk[..n]),
            }
        }
    }

    /// Creates the segment after this one, whose writes can no longer be trusted.
    fn create_successor(&self, layout: &RunLayout) -> Result<Self, JournalError> {
        let former = PredecessorSegment {
            epoch: self.opened.epoch,
            bytes: self.durable.bytes,
            digest: self.digest()?,
        };
        let opened = SessionStart {
            epoch: self.opened.epoch + 1,
            former: Some(former),
            ..self.opened.clone()
        };
        // It continues the session that has reopened them.
        let opened = SessionStart { reopened: Vec::new(), ..opened };
        Self::create(layout, Timestamp::now(), opened, self.mirror.clone())
    }
}

fn sync_directory(path: &Path) -> Result<(), JournalError> {
    durable::sync_directory(path).map_err(JournalError::io("sync", path))
}
