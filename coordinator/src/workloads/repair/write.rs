//! Changing the run directory: copies first.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::Timestamp;

use super::history::{History, Told};
use super::{Found, RepairError};
use crate::engine::core::Opened;
use crate::engine::journal::Rebuild;
use crate::engine::{JournalHead, Manifest, RunError, file};

/// Puts back the bytes that changed.
pub(super) fn mend(found: &Found) -> Result<PathBuf, RepairError> {
    let copies = copies(found.layout.root())?;
    set_documents_aside(found, &copies)?;
    for (path, bytes) in found.salvage.mended_files()? {
        copy(&path, &copies)?;
        file::replace(&path, &bytes).map_err(failed("write", &path))?;
    }
    sync(&copies)?;
    Ok(copies)
}

/// Puts one whole segment in the place of the journal.
pub(super) fn rebuild(
    history: &History<'_>,
    opening: (Timestamp, Opened),
    told: &Told,
) -> Result<PathBuf, RepairError> {
    let found = history.found;
    let copies = copies(found.layout.root())?;
    let manifest = found.layout.manifest();
    if manifest.exists() {
        copy(&manifest, &copies)?;
    }
    let (at, opened) = opening;
    let (epoch, reopens) = (opened.epoch, !opened.reopened_within.is_empty());
    let mut rebuild = Rebuild::create(&found.layout, at, opened)?;
    let mut written = Ok(());
    history.tell(&mut |at, record| {
        if written.is_ok() {
            written = rebuild.record(at, record);
        }
    })?;
    written?;
    let head = rebuild.finish()?;
    set_documents_aside(found, &copies)?;
    if let Some(manifest) = &found.manifest {
        let former = manifest.reopened.iter().flatten().copied();
        let reopened = former.chain(reopens.then_some(epoch)).collect();
        let manifest = Manifest {
            epoch,
            settled: told.settled as u64,
            journal: JournalHead { epoch: head.epoch, durable_bytes: head.bytes },
            // Its files of records may have another order than the journal now.
            sealed: Vec::new(),
            unsealed: None,
            reopened: Some(reopened),
            ..manifest.clone()
        };
        manifest.write(&found.layout)?;
    }
    set_segments_aside(found, epoch, &copies)?;
    sync(&copies)?;
    Ok(copies)
}

/// Moves documents away that cannot be read: the next run of the job writes them again.
fn set_documents_aside(found: &Found, copies: &Path) -> Result<(), RepairError> {
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

/// Moves every segment away that the new one replaces.
fn set_segments_aside(found: &Found, epoch: u32, copies: &Path) -> Result<(), RepairError> {
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
    sync(&to)?;
    sync(&journal)
}

/// A new directory for copies.
fn copies(root: &Path) -> Result<PathBuf, RepairError> {
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

fn sync(directory: &Path) -> Result<(), RepairError> {
    let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed("sync", directory))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RepairError {
    let path = path.to_owned();
    move |source| RepairError::Run(RunError::File { action, path, source })
}
