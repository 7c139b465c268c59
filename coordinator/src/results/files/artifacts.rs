//! Collected artifacts of a trial and the `manifest.json` that lists their status.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rollout_base::supervise;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::record::{ArtifactKind, ArtifactRecord, ArtifactStatus};
use rollout_store::BlobStore;
use rollout_store::archive::{self, ArchiveLimits, ArchivePath, ExtractBlobError};
use serde::Serialize;

use super::content;
use super::durable::{self, FileError};
use super::layout;
use super::trial_dir_writer::{TrialFilesError, make_directories, prepare_target};

/// Name of the artifact directory of a trial and of each of its steps.
const ARTIFACTS_DIR: &str = "artifacts";

/// An entry of the manifest.
#[derive(Debug, Serialize)]
struct ArtifactEntry<'a> {
    /// Absolute path inside the environment.
    source: &'a str,
    /// Path below the directory of the trial or of the step.
    destination: String,
    #[serde(rename = "type")]
    kind: ArtifactKind,
    status: ArtifactStatus,
    service: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    possible_secrets: &'a [String],
}

/// Writes the artifacts and a manifest for each artifact directory below `trial`; overwrites
/// existing files there. Returns errors of artifacts whose content is damaged or missing.
///
/// # Errors
/// [`TrialFilesError`] when the store or the disk fails, or an artifact has an invalid path.
pub(super) async fn write(
    store: &dyn BlobStore,
    artifacts: &[ArtifactRecord],
    trial: &Path,
) -> Result<Vec<TrialFilesError>, TrialFilesError> {
    let mut lost = Vec::new();
    let mut manifests: BTreeMap<PathBuf, Vec<ArtifactEntry<'_>>> = BTreeMap::new();
    for artifact in artifacts {
        let (base, below) = split(&artifact.path)?;
        manifests.entry(base).or_default().push(entry(artifact, &below));
        if let Some(archive) = &artifact.archive {
            let unpacked = unpack(store, artifact, archive, trial).await;
            let target = trial.join(&artifact.path);
            lost.extend(content::unless_lost(&target, unpacked)?);
        }
    }
    for (base, entries) in manifests {
        let path = base.join(ARTIFACTS_DIR).join(layout::MANIFEST);
        let target = trial.join(&path);
        prepare_target(trial, &path, &target)?;
        File::create_new(&target)
            .and_then(|file| durable::write_json(file, &entries))
            .map_err(FileError::with_context("write", &target))?;
    }
    Ok(lost)
}

/// Splits the path of an artifact into the directory of its step, empty for the trial itself, and
/// the rest: `steps/one` and `artifacts/tmp/x`.
fn split(path: &str) -> Result<(PathBuf, PathBuf), TrialFilesError> {
    let bad = || TrialFilesError::InvalidFile(path.to_owned());
    let clean = ArchivePath::clean(path.as_bytes()).ok().flatten().ok_or_else(bad)?;
    let parts: Vec<_> = clean.as_path().iter().collect();
    let base = match parts[..] {
        [first, _, ..] if first == ARTIFACTS_DIR => 0,
        [steps, _, third, _, ..] if steps == layout::STEPS && third == ARTIFACTS_DIR => 2,
        _ => return Err(bad()),
    };
    Ok((parts[..base].iter().collect(), parts[base..].iter().collect()))
}

fn entry<'a>(artifact: &'a ArtifactRecord, below: &Path) -> ArtifactEntry<'a> {
    ArtifactEntry {
        source: &artifact.source,
        destination: below.to_string_lossy().into_owned(),
        kind: artifact.kind.unwrap_or_else(|| likely_kind(&artifact.source)),
        status: artifact.status,
        service: artifact.service.as_deref(),
        error: artifact.error.as_deref(),
        possible_secrets: &artifact.possible_secrets,
    }
}

/// The probable kind of a missing artifact, derived from its name.
fn likely_kind(source: &str) -> ArtifactKind {
    match Path::new(source).extension() {
        Some(_) => ArtifactKind::File,
        None => ArtifactKind::Directory,
    }
}

async fn unpack(
    store: &dyn BlobStore,
    artifact: &ArtifactRecord,
    archive: &BlobRef,
    trial: &Path,
) -> Result<(), TrialFilesError> {
    let path = PathBuf::from(&artifact.path);
    let target = trial.join(&path);
    let file = artifact.kind == Some(ArtifactKind::File);
    let (root, to) = (trial.to_owned(), target.clone());
    supervise::blocking(move || {
        // Artifacts may overlap: one directory may lie inside another.
        if file { prepare_target(&root, &path, &to) } else { make_directories(&root, &path) }
    })
    .await?;
    if !file {
        return extract(store, &artifact.path, archive, &target).await;
    }
    let parent = target.parent().unwrap_or(trial);
    let staging = tempfile::tempdir_in(parent)
        .map_err(FileError::with_context("create a directory in", parent))?;
    extract(store, &artifact.path, archive, staging.path()).await?;
    let what = artifact.path.clone();
    supervise::blocking(move || {
        let only = only_file(staging.path())?.ok_or(TrialFilesError::NoFile { what })?;
        fs::rename(only, &target).map_err(FileError::with_context("move a file to", &target))?;
        Ok(())
    })
    .await
}

/// Unpacks an archive of files from an environment.
///
/// # Errors
/// [`TrialFilesError`] when the store or the disk fails, or the archive is incomplete.
pub(super) async fn extract(
    store: &dyn BlobStore,
    what: &str,
    archive: &BlobRef,
    into: &Path,
) -> Result<(), TrialFilesError> {
    let what = || what.to_owned();
    let extracted =
        archive::extract_blob(store, &archive.digest, into, ArchiveLimits::ARTIFACTS).await;
    let report = extracted.map_err(|error| match error {
        ExtractBlobError::Store(source) => TrialFilesError::Store { what: what(), source },
        ExtractBlobError::Archive(source) => TrialFilesError::Unpack { what: what(), source },
    })?;
    report.cut.map_or(Ok(()), |cut| Err(TrialFilesError::ArchiveTruncated { what: what(), cut }))
}

/// The only regular file below `dir`.
fn only_file(dir: &Path) -> Result<Option<PathBuf>, FileError> {
    for entry in fs::read_dir(dir).map_err(FileError::with_context("list", dir))? {
        let entry = entry.map_err(FileError::with_context("list", dir))?;
        let kind = entry.file_type().map_err(FileError::with_context("list", dir))?;
        let found = if kind.is_dir() { only_file(&entry.path())? } else { Some(entry.path()) };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}
