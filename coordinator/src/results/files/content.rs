//! Writer of the logs, artifacts and outputs that a trial's record refers to.

use std::path::Path;

use rollout_base::supervise;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::limits::{DOCUMENT_BYTES, NAME_BYTES};
use rollout_protocol::name;
use rollout_protocol::record::{OutputFile, Settlement, TrialRecord};
use rollout_protocol::version;
use rollout_store::BlobStore;
use rollout_store::archive::ArchivePath;

use super::artifacts;
use super::durable;
use super::layout;
use super::materialize::MaterializeMode;
use super::trial_dir_writer::{TrialFilesError, make_directories, prepare_target};

/// Reads the record of the execution that settled a trial.
///
/// # Errors
/// [`TrialFilesError`] when the store fails, or the record is of a newer format or not of that
/// execution.
pub(crate) async fn read_record(
    store: &dyn BlobStore,
    blob: &BlobRef,
    settlement: &Settlement,
) -> Result<TrialRecord, TrialFilesError> {
    let exec = settlement.by.as_ref().map(|by| by.exec);
    read_record_of(store, blob, settlement.item, exec).await
}

/// Reads the record of an execution of an item.
///
/// # Errors
/// As [`read_record`].
pub(crate) async fn read_record_of(
    store: &dyn BlobStore,
    blob: &BlobRef,
    item: ItemId,
    exec: Option<ExecId>,
) -> Result<TrialRecord, TrialFilesError> {
    let bytes = (store.get_bytes(&blob.digest, DOCUMENT_BYTES).await)
        .map_err(|source| TrialFilesError::Store { what: "the record".to_owned(), source })?;
    let digest = blob.digest;
    let record: TrialRecord =
        serde_json::from_slice(&bytes).map_err(|source| match version::newer_format(&bytes) {
            Some(source) => TrialFilesError::NewerRecord { digest, source },
            None => TrialFilesError::Record { digest, source },
        })?;
    if record.item == item && Some(record.exec) == exec {
        Ok(record)
    } else {
        Err(TrialFilesError::RecordMismatch(digest))
    }
}

/// Writes the files of a mode below `into`: captured output, logs, artifacts. Returns errors of
/// files whose content is damaged or missing.
///
/// # Errors
/// [`TrialFilesError`] when the store or the disk fails, or the record has an invalid name or path.
pub(crate) async fn write(
    store: &dyn BlobStore,
    record: &TrialRecord,
    into: &Path,
    mode: MaterializeMode,
) -> Result<Vec<TrialFilesError>, TrialFilesError> {
    let mut lost = match mode.has_archives() {
        true => write_archives(store, record, into).await?,
        false => Vec::new(),
    };
    let outputs = if mode.has_outputs() { &record.outputs[..] } else { &[] };
    for output in outputs {
        let target = into.join(&output.path);
        let copied = copy_output(store, output, into).await;
        lost.extend(unless_lost(&target, copied)?);
    }
    Ok(lost)
}

/// Writes logs and artifacts.
async fn write_archives(
    store: &dyn BlobStore,
    record: &TrialRecord,
    into: &Path,
) -> Result<Vec<TrialFilesError>, TrialFilesError> {
    let mut lost = Vec::new();
    if let Some(logs) = &record.logs {
        let to = into.join("logs");
        let extracted = artifacts::extract(store, "the logs", &logs.archive, &to).await;
        lost.extend(unless_lost(&to, extracted)?);
    }
    for step in &record.steps {
        let Some(logs) = &step.logs else { continue };
        name::check_component(&step.name, NAME_BYTES)
            .map_err(|bad| TrialFilesError::Name { name: step.name.clone(), bad })?;
        let below = Path::new(layout::STEPS).join(&step.name).join("logs");
        let (root, to) = (into.to_owned(), into.join(&below));
        supervise::blocking(move || make_directories(&root, &below)).await?;
        let what = format!("the logs of step {}", step.name);
        let extracted = artifacts::extract(store, &what, &logs.archive, &to).await;
        lost.extend(unless_lost(&to, extracted)?);
    }
    lost.extend(artifacts::write(store, &record.artifacts, into).await?);
    Ok(lost)
}

/// Returns the error of content that is permanently damaged or missing, after removing its partial
/// files at `target`.
///
/// # Errors
/// Any other error.
pub(super) fn unless_lost(
    target: &Path,
    written: Result<(), TrialFilesError>,
) -> Result<Option<TrialFilesError>, TrialFilesError> {
    let Err(error) = written else { return Ok(None) };
    if !error.is_lost() {
        return Err(error);
    }
    durable::remove(target)?;
    Ok(Some(error))
}

/// Copies captured output. It replaces a file of the same name that an agent left in its logs.
async fn copy_output(
    store: &dyn BlobStore,
    output: &OutputFile,
    into: &Path,
) -> Result<(), TrialFilesError> {
    let bad = || TrialFilesError::InvalidFile(output.path.clone());
    let path = ArchivePath::clean(output.path.as_bytes()).ok().flatten().ok_or_else(bad)?;
    let target = into.join(path.as_path());
    let root = into.to_owned();
    let cleared = target.clone();
    supervise::blocking(move || prepare_target(&root, path.as_path(), &cleared)).await?;
    (store.get_file(&output.blob.digest, &target).await)
        .map_err(|source| TrialFilesError::Store { what: output.path.clone(), source })
}
