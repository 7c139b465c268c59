//! Making a finished execution durable, step by step: a process that dies between any two of them
//! leaves either the mark of an unfinished execution or a whole entry.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::version::RUN_FORMAT;

use super::entry::{self, SpoolEntry, SpoolFile};
use super::{SCRATCH, SPOOL, discard};
use crate::digest_line;
use crate::executor::{Finished, RecordFile};

/// Bytes of a file that are read at once.
const CHUNK: usize = 64 * 1024;

/// One change of the disk. Doing it again does no harm.
#[derive(Debug)]
pub(super) enum Step {
    CreateDir(PathBuf),
    Move { from: PathBuf, to: PathBuf },
    Write { path: PathBuf, bytes: Vec<u8> },
    Sync(PathBuf),
    Discard(PathBuf),
}

pub(super) fn keep(worker_dir: &Path, finished: Finished, marker: bool) -> io::Result<SpoolEntry> {
    let (mut entry, steps) = plan(worker_dir, finished, marker)?;
    for step in steps {
        step.perform()?;
    }
    entry.bytes = size(&entry)?;
    Ok(entry)
}

/// What will be kept, and how.
pub(super) fn plan(
    worker_dir: &Path,
    finished: Finished,
    marker: bool,
) -> io::Result<(SpoolEntry, Vec<Step>)> {
    let Finished { record, files, stopped } = finished;
    let (.., exec) = record.ids();
    let exec = exec.to_string();
    let spool = worker_dir.join(SPOOL);
    let dir = spool.join(&exec);
    let mut steps = vec![Step::CreateDir(dir.clone())];
    let mut entry = SpoolEntry {
        format: RUN_FORMAT,
        record,
        stopped,
        marker,
        files: Vec::new(),
        dir: dir.clone(),
        bytes: 0,
    };
    for RecordFile { file, media_type, role } in files {
        let to = dir.join(entry.files.len().to_string());
        if !file.exists() && !to.exists() {
            entry.record.add_error(vanished(&file));
            continue;
        }
        let digest = digest(if file.exists() { &file } else { &to })?;
        steps.extend([Step::Move { from: file, to: to.clone() }, Step::Sync(to)]);
        entry.files.push(SpoolFile::new(&entry.record, media_type, role, digest));
    }
    let (unready, whole) = (dir.join("entry.json.new"), dir.join(entry::FILE));
    let bytes = digest_line::append(serde_json::to_vec(&entry)?);
    steps.extend([
        Step::Write { path: unready.clone(), bytes },
        Step::Sync(unready.clone()),
        Step::Move { from: unready, to: whole },
        Step::Sync(dir),
        Step::Sync(spool),
        Step::Discard(worker_dir.join(SCRATCH).join(&exec)),
    ]);
    Ok((entry, steps))
}

impl Step {
    pub(super) fn perform(&self) -> io::Result<()> {
        match self {
            Self::CreateDir(dir) => fs::create_dir_all(dir),
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

fn digest(path: &Path) -> io::Result<Digest> {
    let (mut file, mut hasher) = (File::open(path)?, DigestHasher::default());
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(read) => hasher.update(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn size(entry: &SpoolEntry) -> io::Result<u64> {
    let mut bytes = fs::metadata(entry.dir.join(entry::FILE))?.len();
    for index in 0..entry.files.len() {
        bytes += fs::metadata(entry.file(index))?.len();
    }
    Ok(bytes)
}

/// A missing file is said, and takes nothing else with it.
fn vanished(file: &Path) -> TrialError {
    let message = format!("a collected file vanished before it was stored: {}", file.display());
    TrialError::transient(ErrorType::InternalError, ErrorCode::COLLECTION_FAILED, message)
        .in_phase(Phase::Collection)
}
