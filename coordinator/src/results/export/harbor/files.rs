//! Moves a trial's files from rollout's layout to Harbor's.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::record::{ATIF_PATH, TrialRecord};
use serde_json::json;

use crate::results::files::FileError;
use crate::results::files::durable::write_json;
use crate::results::rows::parent;

/// New paths of directories of a trial or a step.
const MOVED_PATHS: [(&str, &str); 6] = [
    ("logs/agent", "agent"),
    ("logs/user-agent", "user-agent"),
    ("logs/verifier", "verifier"),
    ("logs/artifacts", "artifacts/logs/artifacts"),
    ("setup", "agent/setup"),
    ("command", "agent/command"),
];

/// New paths of files, after the directories are moved.
const MOVED_FILES: [(&str, &str); 2] = [
    ("verifier/stdout.txt", "verifier/test-stdout.txt"),
    ("verifier/stderr.txt", "verifier/test-stderr.txt"),
];

/// Moves the files below `trial` to Harbor's layout. Files without a place in it stay.
pub(super) fn arrange(trial: &Path, record: &TrialRecord) -> Result<(), FileError> {
    let steps = record.steps.iter().map(|step| trial.join("steps").join(&step.name));
    let steps: Vec<PathBuf> = steps.collect();
    if let Some(last) = steps.last() {
        // The logs of a trial have the artifacts of its last step, which Harbor moves there.
        let (from, to) = (trial.join("logs/artifacts"), last.join("artifacts/logs/artifacts"));
        move_path(&from, &to)?;
    }
    for base in std::iter::once(trial.to_owned()).chain(steps) {
        for (from, to) in MOVED_PATHS.iter().chain(&MOVED_FILES) {
            move_path(&base.join(from), &base.join(to))?;
        }
        // Fails if the directory is not empty, which is fine.
        let _not_empty = fs::remove_dir(base.join("logs"));
        write_default_manifest(&base)?;
    }
    place_trajectory(trial)
}

/// Moves the trajectory that the worker made to its place, unless the agent left one there.
fn place_trajectory(trial: &Path) -> Result<(), FileError> {
    let to = trial.join("agent/trajectory.json");
    if to.symlink_metadata().is_ok() {
        return Ok(());
    }
    let from = trial.join(ATIF_PATH);
    move_path(&from, &to)?;
    // Fails if the directory is not empty, which is fine.
    let _not_empty = fs::remove_dir(parent(&from));
    Ok(())
}

/// Moves `from`, if it exists, and moves an existing `to` aside.
fn move_path(from: &Path, to: &Path) -> Result<(), FileError> {
    if from.symlink_metadata().is_err() {
        return Ok(());
    }
    // The record's artifact has the same content.
    if from.ends_with("logs/artifacts") && to.is_dir() {
        return fs::remove_dir_all(from).map_err(FileError::with_context("remove", from));
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(FileError::with_context("create", parent))?;
    }
    move_aside(to)?;
    fs::rename(from, to).map_err(FileError::with_context("move a file to", to))
}

/// Renames an existing file at `path`, to keep files that an agent left there.
pub(super) fn move_aside(path: &Path) -> Result<(), FileError> {
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let mut other = path.as_os_str().to_owned();
    while Path::new(&other).symlink_metadata().is_ok() {
        other.push("~");
    }
    fs::rename(path, PathBuf::from(other)).map_err(FileError::with_context("move away", path))
}

/// Writes a manifest for artifacts without one: those that agents left in `/logs/artifacts`.
fn write_default_manifest(base: &Path) -> Result<(), FileError> {
    let artifacts = base.join("artifacts");
    let manifest = artifacts.join("manifest.json");
    if !artifacts.join("logs/artifacts").is_dir() || manifest.exists() {
        return Ok(());
    }
    let entry = json!({
        "source": "/logs/artifacts",
        "destination": "artifacts/logs/artifacts",
        "type": "directory",
        "status": "ok",
        "service": null,
    });
    fs::File::create_new(&manifest)
        .and_then(|file| write_json(file, &[entry]))
        .map_err(FileError::with_context("write", &manifest))
}
