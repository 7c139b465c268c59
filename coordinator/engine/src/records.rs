//! Terminal records: `records/<n>.jsonl`, one line per settlement in the order of the journal.
//!
//! The lines follow from the journal, so they need no sync of their own: after a crash the last,
//! unsealed file is written again from the replay. A file gets its name when it is full or the
//! session ended in order. A full one has its digest in the manifest.
//!
//! If settled items run again within the session, its end writes all files again without the lines
//! that no longer count; the next session does not build on them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rollout_base::durable;
use rollout_base::fs_make::make_directory;
use rollout_protocol::digest::DigestHasher;
use rollout_protocol::id::ItemId;
use rollout_protocol::record::Settlement;
use serde::Deserialize;

use super::RunError;
use super::manifest::RecordsFile;
use crate::journal::RunLayout;

/// Settlements in one file: large enough that a million items make a hundred files, small enough
/// that writing the last one again after a crash takes no time.
const SETTLEMENTS_PER_FILE: u64 = 10_000;

/// Batches that may wait for the writer.
const MAX_QUEUED_BATCHES: usize = 64;

/// Extension of incomplete files.
const PARTIAL_EXTENSION: &str = "partial";

/// Commands of the writer.
enum RecordsCommand {
    Add(Vec<Arc<Settlement>>),
    Reopen(Vec<ItemId>),
    Finish,
}

/// The files of terminal records at the end of a session.
#[derive(Debug, Default, Clone)]
pub(super) struct RecordsFileSet {
    /// Files that will not change any more.
    pub(super) sealed: Vec<RecordsFile>,
    /// The last file, unless it is empty.
    pub(super) unsealed: Option<RecordsFile>,
}

impl RecordsFileSet {
    /// Whether it has no file.
    pub(super) fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.unsealed.is_none()
    }
}

/// Writes terminal records on its own thread. Dropped without [`RecordsWriter::finish`], it leaves
/// every file as it was.
#[derive(Debug)]
pub(super) struct RecordsWriter {
    settlements: SyncSender<RecordsCommand>,
    thread: Option<JoinHandle<Result<RecordsFileSet, RunError>>>,
}

impl RecordsWriter {
    /// Starts after the settlements that the `sealed` files hold; these are skipped.
    pub(super) fn start(
        layout: &RunLayout,
        epoch: u32,
        sealed: Vec<RecordsFile>,
    ) -> Result<Self, RunError> {
        let directory = layout.records();
        let failed = |source| RunError::File { action: "create", path: directory.clone(), source };
        // Not the run directory itself: one that was moved must not reappear in part.
        make_directory(&directory, 0).map_err(failed)?;
        durable::sync_directory(directory.parent().unwrap_or(&directory)).map_err(failed)?;
        let (sender, receiver) = sync_channel(MAX_QUEUED_BATCHES);
        let layout = layout.clone();
        let thread = rollout_base::supervise::thread("records", move || {
            let skip = sealed.iter().map(|s| s.settlements).sum();
            let outdated = HashMap::new();
            RecordsFileWriter { layout, epoch, skip, sealed, open: None, outdated }
                .write_all(&receiver)
        })
        .map_err(failed)?;
        Ok(Self { settlements: sender, thread: Some(thread) })
    }

    /// Adds settlements. Blocks while the disk is far behind.
    pub(super) fn add(&self, settlements: Vec<Arc<Settlement>>) {
        // The writer ends early only with an error, which `finish` returns.
        drop(self.settlements.send(RecordsCommand::Add(settlements)));
    }

    /// The last line of each of these items no longer counts.
    pub(super) fn reopen(&self, items: Vec<ItemId>) {
        drop(self.settlements.send(RecordsCommand::Reopen(items)));
    }

    /// Writes and syncs the rest.
    pub(super) fn finish(mut self) -> Result<RecordsFileSet, RunError> {
        drop(self.settlements.send(RecordsCommand::Finish));
        let thread = self.thread.take().expect("finish is called once");
        thread.join().map_err(|_| RunError::PartEnded("the writer of records"))?
    }
}

struct RecordsFileWriter {
    layout: RunLayout,
    epoch: u32,
    skip: u64,
    sealed: Vec<RecordsFile>,
    open: Option<OpenRecordsFile>,
    /// How many lines of an item, from its first on, do not count.
    outdated: HashMap<ItemId, u32>,
}

/// The part of a line that names its item.
#[derive(Deserialize)]
struct LineKey {
    item: ItemId,
}

struct OpenRecordsFile {
    /// Its final name.
    path: PathBuf,
    /// Its name until it is complete.
    partial: PathBuf,
    file: BufWriter<File>,
    settlements: u64,
    bytes: u64,
    digest: DigestHasher,
}

impl RecordsFileWriter {
    fn write_all(
        mut self,
        commands: &Receiver<RecordsCommand>,
    ) -> Result<RecordsFileSet, RunError> {
        let mut line = Vec::new();
        loop {
            let batch = match commands.recv() {
                Ok(RecordsCommand::Add(batch)) => batch,
                Ok(RecordsCommand::Reopen(items)) => {
                    for item in items {
                        *self.outdated.entry(item).or_insert(0) += 1;
                    }
                    continue;
                }
                Ok(RecordsCommand::Finish) => return self.finish(),
                // Not finished: the session failed, or did not begin.
                Err(_) => {
                    if let Some(open) = self.open.take() {
                        open.discard();
                    }
                    return Ok(RecordsFileSet { sealed: self.sealed, unsealed: None });
                }
            };
            for settlement in batch {
                if self.skip > 0 {
                    self.skip -= 1;
                    continue;
                }
                line.clear();
                serde_json::to_writer(&mut line, &*settlement).expect("text keys only");
                line.push(b'\n');
                self.write_line(&line)?;
            }
        }
    }

    /// Gives the last file its name, and removes files of a previous, longer plan.
    fn finish(mut self) -> Result<RecordsFileSet, RunError> {
        if !self.outdated.is_empty() {
            self.rewrite()?;
        }
        let mut number = u32::try_from(self.sealed.len()).expect("few files") + 1;
        let mut unsealed = None;
        if let Some(open) = self.open.take() {
            unsealed = Some(open.sync()?);
            number += 1;
        }
        while std::fs::remove_file(self.layout.record_file(number)).is_ok() {
            number += 1;
        }
        let directory = self.layout.records();
        remove_partial(&directory);
        durable::sync_directory(&directory).map_err(|source| RunError::File {
            action: "sync",
            path: directory,
            source,
        })?;
        Ok(RecordsFileSet { sealed: self.sealed, unsealed })
    }

    /// Writes all files again without the lines that no longer count.
    fn rewrite(&mut self) -> Result<(), RunError> {
        let former = self.open.take().map(OpenRecordsFile::sync).transpose()?;
        let former: Vec<_> = std::mem::take(&mut self.sealed).into_iter().chain(former).collect();
        let mut outdated = std::mem::take(&mut self.outdated);
        let directory = self.layout.records();
        // A new file replaces none that is still to be opened: it holds lines of earlier ones.
        for RecordsFile { file, .. } in former {
            let path = directory.join(file);
            let failed = |source| RunError::File { action: "read", path: path.clone(), source };
            let lines = BufReader::new(File::open(&path).map_err(failed)?);
            for line in lines.split(b'\n') {
                let mut line = line.map_err(failed)?;
                let key = serde_json::from_slice::<LineKey>(&line);
                let LineKey { item } = key.map_err(|error| failed(error.into()))?;
                if let Some(times) = outdated.get_mut(&item).filter(|times| **times > 0) {
                    *times -= 1;
                    continue;
                }
                line.push(b'\n');
                self.write_line(&line)?;
            }
        }
        Ok(())
    }

    fn write_line(&mut self, line: &[u8]) -> Result<(), RunError> {
        if self.open.is_none() {
            let number = u32::try_from(self.sealed.len()).expect("few files") + 1;
            self.open = Some(OpenRecordsFile::create(self.layout.record_file(number), self.epoch)?);
        }
        let open = self.open.as_mut().expect("opened above");
        open.file.write_all(line).map_err(|source| open.failed("write", source))?;
        open.digest.update(line);
        open.bytes += line.len() as u64;
        open.settlements += 1;
        if open.settlements == SETTLEMENTS_PER_FILE {
            let open = self.open.take().expect("opened above");
            self.sealed.push(open.sync()?);
        }
        Ok(())
    }
}

/// Removes partial files of killed sessions.
fn remove_partial(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == PARTIAL_EXTENSION) {
            // Nothing reads it.
            drop(std::fs::remove_file(entry.path()));
        }
    }
}

impl OpenRecordsFile {
    /// Uses a name of this session only: a woken owner must not write into its successor's file.
    fn create(path: PathBuf, epoch: u32) -> Result<Self, RunError> {
        let partial = path.with_extension(format!("jsonl.{epoch}.{PARTIAL_EXTENSION}"));
        let file = File::create(&partial).map_err(|source| RunError::File {
            action: "create",
            path: partial.clone(),
            source,
        })?;
        let file = BufWriter::with_capacity(1 << 18, file);
        Ok(Self { path, partial, file, settlements: 0, bytes: 0, digest: DigestHasher::default() })
    }

    fn sync(mut self) -> Result<RecordsFile, RunError> {
        self.file.flush().map_err(|source| self.failed("write", source))?;
        self.file.get_ref().sync_all().map_err(|source| self.failed("sync", source))?;
        std::fs::rename(&self.partial, &self.path)
            .map_err(|source| self.failed("rename", source))?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(RecordsFile {
            file: name,
            settlements: self.settlements,
            bytes: self.bytes,
            digest: self.digest.finish(),
        })
    }

    fn discard(self) {
        // Nothing reads a partial file; the next session writes its own.
        drop(std::fs::remove_file(&self.partial));
    }

    fn failed(&self, action: &'static str, source: std::io::Error) -> RunError {
        RunError::File { action, path: self.partial.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::Timestamp;
    use rollout_protocol::record::Verdict;
    use rollout_protocol::spec::trial::TrialName;

    use super::*;

    fn settlement(task: u64, reward: f64) -> Arc<Settlement> {
        let (agent, dataset, task) = ("a".to_owned(), "d".to_owned(), task.to_string());
        let trial = TrialName { agent, dataset, task, attempt: 1 };
        Arc::new(Settlement {
            item: trial.item(),
            name: trial.into(),
            by: None,
            verdict: Verdict::completed(reward),
            superseded: Vec::new(),
            settled_at: Timestamp::UNIX_EPOCH,
            task_git_commit_id: None,
        })
    }

    #[test]
    fn records_of_reopened_items_hold_their_last_settlement_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = RunLayout::new(directory.path());
        let writer = RecordsWriter::start(&layout, 1, Vec::new()).expect("started");
        let all = SETTLEMENTS_PER_FILE + 2;
        writer.add((0..all).map(|task| settlement(task, 0.0)).collect());
        let retried = [0, 1, all - 1].map(|task| settlement(task, 1.0));
        writer.reopen(retried.iter().map(|again| again.item).collect());
        writer.add(retried[..2].to_vec());
        writer.reopen(vec![retried[0].item]);
        writer.add(vec![settlement(0, 2.0)]);
        let files = writer.finish().expect("written");
        let counts = files.sealed.iter().chain(&files.unsealed).map(|file| file.settlements);
        assert_eq!(counts.collect::<Vec<_>>(), [SETTLEMENTS_PER_FILE, 1]);
        let mut rewards = HashMap::new();
        for number in 1..=2 {
            let text = std::fs::read_to_string(layout.record_file(number)).expect("a file");
            for line in text.lines() {
                let settled: Settlement = serde_json::from_str(line).expect("a settlement");
                assert!(rewards.insert(settled.item, settled.verdict.reward).is_none());
            }
        }
        let reward = |task| rewards.get(&settlement(task, 0.0).item).copied().flatten();
        assert_eq!([0, 1, 2, all - 1].map(reward), [Some(2.0), Some(1.0), Some(0.0), None]);
        assert!(!layout.record_file(3).exists());
    }
}
