//! The file of the calls of a try: lines that are only appended, and synced before anything depends
//! on them.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollout_base::durable;
use rollout_base::fs_make::{SCRATCH_DEPTH, make_directory};
use rollout_base::supervise::{self, BlockingDrop};
use rollout_protocol::record::ModelCallLine;
use tokio::sync::Mutex;

/// Name of the file.
pub(crate) const CALLS_FILE: &str = "calls.jsonl";

/// The file.
#[derive(Debug)]
pub(crate) struct CallLog {
    path: PathBuf,
    file: Arc<BlockingDrop<File>>,
    /// Bytes of whole lines.
    bytes: Arc<AtomicU64>,
    /// Locked while a line is appended: a disk without an answer holds one thread.
    appending: Arc<Mutex<()>>,
    /// Bytes that are synced. Locked during a sync: those who wait for it share the next one.
    synced: Mutex<u64>,
}

impl CallLog {
    /// Creates the file in a directory, which is created, too.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn create(directory: &Path) -> io::Result<Self> {
        let (directory, path) = (directory.to_owned(), directory.join(CALLS_FILE));
        let created = path.clone();
        let file = supervise::blocking(move || {
            make_directory(&directory, SCRATCH_DEPTH)?;
            let file = File::options().create(true).write(true).truncate(true).open(created)?;
            // The entry of the file must be on disk as well.
            durable::sync_directory(&directory)?;
            io::Result::Ok(file)
        });
        let file = Arc::new(BlockingDrop::new(file.await?));
        let (bytes, appending, synced) = (Arc::default(), Arc::default(), Mutex::default());
        Ok(Self { path, file, bytes, appending, synced })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of its lines.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Appends a line, which is whole or absent afterwards; returns the position of its end.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn append(&self, line: &ModelCallLine) -> io::Result<u64> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let (file, bytes) = (Arc::clone(&self.file), Arc::clone(&self.bytes));
        let one = Arc::clone(&self.appending).lock_owned().await;
        let work = move || {
            let start = bytes.load(Ordering::Acquire);
            let end = append_at(&file, start, &text);
            if let Ok(end) = end {
                bytes.store(end, Ordering::Release);
            }
            drop(one);
            end
        };
        supervise::blocking(work).await
    }

    /// Syncs everything up to a position. Concurrent calls share their syncs.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn sync_to(&self, position: u64) -> io::Result<()> {
        let mut synced = self.synced.lock().await;
        if *synced >= position {
            return Ok(());
        }
        let (file, end) = (Arc::clone(&self.file), self.bytes());
        supervise::blocking(move || file.sync_data()).await?;
        *synced = end;
        drop(synced);
        Ok(())
    }
}

/// Appends to a file of `start` bytes; returns its new length. After an error it has the old one.
fn append_at(mut file: &File, start: u64, text: &[u8]) -> io::Result<u64> {
    if let Err(error) = file.write_all(text) {
        // Part of the line may be there, for instance on a full disk.
        file.set_len(start)?;
        file.seek(SeekFrom::Start(start))?;
        return Err(error);
    }
    Ok(start + text.len() as u64)
}

#[cfg(test)]
mod tests {
    use rollout_protocol::record::{CallBegun, CallBody, ModelEndpoint};

    use super::*;

    fn line(call: u64) -> ModelCallLine {
        ModelCallLine::Begun(Box::new(CallBegun {
            call,
            began_at: rollout_protocol::Timestamp::UNIX_EPOCH,
            upstream: "main".to_owned(),
            endpoint: ModelEndpoint::Completions,
            path: "/completions".to_owned(),
            headers: std::collections::BTreeMap::new(),
            request: CallBody::default(),
            added: Vec::new(),
            repeats: None,
        }))
    }

    #[tokio::test]
    async fn lines_of_concurrent_calls_are_whole_and_synced() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = CallLog::create(&directory.path().join("gateway")).await.expect("made");
        let append = |call| {
            let log = &log;
            async move {
                let end = log.append(&line(call)).await.expect("appended");
                log.sync_to(end).await.expect("synced");
                assert!(*log.synced.lock().await >= end);
            }
        };
        futures_util::future::join_all((0..40).map(append)).await;
        let text = std::fs::read_to_string(log.path()).expect("the file");
        assert_eq!(text.len() as u64, log.bytes());
        let mut calls: Vec<u64> = text
            .lines()
            .map(|line| match serde_json::from_str(line).expect("a whole line") {
                ModelCallLine::Begun(begun) => begun.call,
                ModelCallLine::Ended(ended) => ended.call,
            })
            .collect();
        calls.sort_unstable();
        assert_eq!(calls, (0..40).collect::<Vec<_>>());
    }
}
