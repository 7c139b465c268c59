//! The steps that make a finished execution durable. A process that dies between any two of them
//! leaves either the mark of an unfinished execution or a complete entry.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rollout_base::fs_make::make_directory;
use rollout_base::shown_path::shown;
use rollout_base::{digest_line, regular_file};
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::version::RUN_FORMAT;

use super::entry::{self, SpoolEntry, SpoolFile};
use super::{SCRATCH_DIR, SPOOL_DIR, discard};
use crate::executor::{Finished, RecordFile};

/// One change on the disk. Idempotent.
#[derive(Debug)]
pub(super) enum PersistStep {
    CreateDir(PathBuf),
    Move { from: PathBuf, to: PathBuf },
    Write { path: PathBuf, bytes: Vec<u8> },
    Sync(PathBuf),
    Discard(PathBuf),
}

pub(super) fn persist(
    worker_dir: &Path,
    finished: Finished,
    marker: bool,
) -> io::Result<SpoolEntry> {
    let (mut entry, steps) = persist_plan(worker_dir, finished, marker)?;
    for step in steps {
        step.perform()?;
    }
    entry.bytes = entry_size(&entry)?;
    Ok(entry)
}

/// The execution with its files where a `persist` that failed has left them: some may be in the entry.
pub(super) fn locate_files(entry_dir: &Path, mut finished: Finished) -> Finished {
    for (number, RecordFile { file, .. }) in finished.files.iter_mut().enumerate() {
        let moved = entry_file_path(entry_dir, number);
        if !file.exists() && moved.exists() {
            *file = moved;
        }
    }
    finished
}

/// The place of a file in the entry. Its number is the same in every repetition, also if a file before it
/// has disappeared.
fn entry_file_path(entry_dir: &Path, number: usize) -> PathBuf {
    entry_dir.join(number.to_string())
}

/// The entry, and the steps that write it.
pub(super) fn persist_plan(
    worker_dir: &Path,
    finished: Finished,
    marker: bool,
) -> io::Result<(SpoolEntry, Vec<PersistStep>)> {
    let Finished { record, files, stopped } = finished;
    let (.., exec) = record.ids();
    let exec = exec.to_string();
    let spool = worker_dir.join(SPOOL_DIR);
    let dir = spool.join(&exec);
    let mut steps = vec![PersistStep::CreateDir(dir.clone())];
    let mut entry = SpoolEntry {
        format: RUN_FORMAT,
        record,
        stopped,
        marker,
        files: Vec::new(),
        dir: dir.clone(),
        bytes: 0,
    };
    for (number, RecordFile { file, media_type, role, digest }) in files.into_iter().enumerate() {
        let to = entry_file_path(&dir, number);
        if !file.exists() && !to.exists() {
            entry.record.add_error(missing_file_error(&file));
            continue;
        }
        let digest = match digest {
            Some(digest) => digest,
            None => regular_file::digest(if file.exists() { &file } else { &to })?,
        };
        steps.extend([PersistStep::Move { from: file, to: to.clone() }, PersistStep::Sync(to)]);
        let file = SpoolFile::new(&entry, number, media_type, role, digest);
        entry.files.push(file);
    }
    let (temporary, entry_file) = (dir.join("entry.json.new"), dir.join(entry::ENTRY_FILE));
    let bytes = digest_line::append(serde_json::to_vec(&entry)?);
    steps.extend([
        PersistStep::Write { path: temporary.clone(), bytes },
        PersistStep::Sync(temporary.clone()),
        PersistStep::Move { from: temporary, to: entry_file },
        PersistStep::Sync(dir),
        PersistStep::Sync(spool),
        PersistStep::Discard(worker_dir.join(SCRATCH_DIR).join(&exec)),
    ]);
    Ok((entry, steps))
}

impl PersistStep {
    pub(super) fn perform(&self) -> io::Result<()> {
        match self {
            // Not the directory of the worker itself.
            Self::CreateDir(dir) => make_directory(dir, 1),
            Self::Move { from, to } => match fs::rename(from, to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && to.exists() => Ok(()),
                moved => moved,
            },
            Self::Write { path, bytes } => fs::write(path, bytes),
            Self::Sync(path) => File::open(path)?.sync_all(),
            Self::Discard(dir) => {
                discard(dir);
                Ok(())
            }
        }
    }
}

fn entry_size(entry: &SpoolEntry) -> io::Result<u64> {
    let mut bytes = fs::metadata(entry.dir.join(entry::ENTRY_FILE))?.len();
    for index in 0..entry.files.len() {
        bytes += fs::metadata(entry.file(index))?.len();
    }
    Ok(bytes)
}

/// The error recorded for a missing file. The other files are kept.
fn missing_file_error(file: &Path) -> TrialError {
    let message = format!("a collected file disappeared before it was stored: {}", shown(file));
    TrialError::transient(ErrorType::InternalError, ErrorCode::COLLECTION_FAILED, message)
        .in_phase(Phase::Collection)
}
