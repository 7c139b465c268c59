//! Changes to the run directory; files are copied first.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_base::durable;
use rollout_engine::core::SessionStart;
use rollout_engine::journal::SegmentRebuilder;
use rollout_engine::{JournalExtent, RunError, RunManifest, atomic_file};
use rollout_protocol::Timestamp;

use super::history::{HistorySummary, RunHistory};
use super::{RepairError, RunDirectoryContents};

/// Restores the bytes that changed.
pub(super) fn repair_in_place(found: &RunDirectoryContents) -> Result<PathBuf, RepairError> {
    let copies = create_copies_directory(found.layout.root())?;
    move_documents(found, &copies)?;
    for (path, bytes) in found.salvage.repaired_files()? {
        copy(&path, &copies)?;
        atomic_file::replace(&path, &bytes).map_err(failed("write", &path))?;
    }
    sync_directory(&copies)?;
    Ok(copies)
}

/// Replaces the journal by one intact segment.
pub(super) fn rebuild(
    history: &RunHistory<'_>,
    opening: (Timestamp, SessionStart),
    summary: &HistorySummary,
) -> Result<PathBuf, RepairError> {
    let found = history.contents;
    let copies = create_copies_directory(found.layout.root())?;
    let manifest = found.layout.manifest();
    if manifest.exists() {
        copy(&manifest, &copies)?;
    }
    let (at, opened) = opening;
    let (epoch, reopens) = (opened.epoch, !opened.reopened_within.is_empty());
    let mut rebuild = SegmentRebuilder::create(&found.layout, at, opened)?;
    let mut written = Ok(());
    history.write_records(&mut |at, record| {
        if written.is_ok() {
            written = rebuild.record(at, record);
        }
    })?;
    written?;
    let head = rebuild.finish()?;
    move_documents(found, &copies)?;
    if let Some(manifest) = &found.manifest {
        let former = manifest.reopened.iter().flatten().copied();
        let reopened = former.chain(reopens.then_some(epoch)).collect();
        let manifest = RunManifest {
            epoch,
            settled: summary.settled as u64,
            journal: JournalExtent { epoch: head.epoch, durable_bytes: head.bytes },
            // The order of its records files may differ from the journal's now.
            sealed: Vec::new(),
            unsealed: None,
            reopened: Some(reopened),
            ..manifest.clone()
        };
        manifest.write(&found.layout)?;
    }
    move_segments(found, epoch, &copies)?;
    sync_directory(&copies)?;
    Ok(copies)
}

/// Moves unreadable documents away: the next run of the job writes them again.
fn move_documents(found: &RunDirectoryContents, copies: &Path) -> Result<(), RepairError> {
    for path in &found.documents {
        let to = copies.join(path.file_name().unwrap_or_default());
        if to.exists() {
            fs::remove_file(path).map_err(failed("remove", path))?;
        } else {
            fs::rename(path, &to).map_err(failed("move", path))?;
        }
    }
    Ok(())
}

/// Moves away every segment that the new one replaces.
fn move_segments(
    found: &RunDirectoryContents,
    epoch: u32,
    copies: &Path,
) -> Result<(), RepairError> {
    let to = copies.join("journal");
    fs::create_dir_all(&to).map_err(failed("create", &to))?;
    let journal = found.layout.journal();
    let kept = [found.layout.segment(epoch), found.layout.durable_length(epoch)];
    for entry in fs::read_dir(&journal).map_err(failed("list", &journal))? {
        let path = entry.map_err(failed("list", &journal))?.path();
        if !kept.contains(&path) {
            let name = path.file_name().unwrap_or_default();
            fs::rename(&path, to.join(name)).map_err(failed("move", &path))?;
        }
    }
    sync_directory(&to)?;
    sync_directory(&journal)
}

/// Creates a new directory for copies.
fn create_copies_directory(root: &Path) -> Result<PathBuf, RepairError> {
    for n in 1.. {
        let path = root.join(format!("repair-{n}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create", &path)(error)),
        }
    }
    unreachable!("there are fewer directories than numbers")
}

fn copy(path: &Path, copies: &Path) -> Result<(), RepairError> {
    let to = copies.join(path.file_name().unwrap_or_default());
    let copied = fs::copy(path, &to).and_then(|_| fs::File::open(&to)?.sync_all());
    copied.map_err(failed("copy", path))
}

fn sync_directory(directory: &Path) -> Result<(), RepairError> {
    durable::sync_directory(directory).map_err(failed("sync", directory))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RepairError {
    let path = path.to_owned();
    move |source| RepairError::Run(RunError::File { action, path, source })
}
