//! Files of a trial, from our places to Harbor's.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::record::TrialRecord;
use serde_json::json;

use crate::results::files::FileError;
use crate::results::files::durable::write_json;

/// Where things of a trial, or of one of its steps, go.
const MOVED_PATHS: [(&str, &str); 6] = [
    ("logs/agent", "agent"),
    ("logs/user-agent", "user-agent"),
    ("logs/verifier", "verifier"),
    ("logs/artifacts", "artifacts/logs/artifacts"),
    ("setup", "agent/setup"),
    ("command", "agent/command"),
];

/// Where single files go.
const MOVED_FILES: [(&str, &str); 2] = [
    ("verifier/stdout.txt", "verifier/test-stdout.txt"),
    ("verifier/stderr.txt", "verifier/test-stderr.txt"),
];

/// Moves what lies below `trial` in our places. What has no place in Harbor's layout stays.
pub(super) fn arrange(trial: &Path, record: &TrialRecord) -> Result<(), FileError> {
    let steps = record.steps.iter().map(|step| trial.join("steps").join(&step.name));
    for base in std::iter::once(trial.to_owned()).chain(steps) {
        for (from, to) in MOVED_PATHS.iter().chain(&MOVED_FILES) {
            move_path(&base.join(from), &base.join(to))?;
        }
        // Fails while something is left in it, which is fine.
        let _not_empty = fs::remove_dir(base.join("logs"));
        write_default_manifest(&base)?;
    }
    Ok(())
}

/// Moves something, if it is there, and makes room for it.
fn move_path(from: &Path, to: &Path) -> Result<(), FileError> {
    if from.symlink_metadata().is_err() {
        return Ok(());
    }
    // An artifact that the record tells of is what this is a copy of.
    if from.ends_with("logs/artifacts") && to.is_dir() {
        return fs::remove_dir_all(from).map_err(FileError::at("remove", from));
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(FileError::at("create", parent))?;
    }
    move_aside(to)?;
    fs::rename(from, to).map_err(FileError::at("move a file to", to))
}

/// Gives what stands at `path` another name: it is somebody's, too.
pub(super) fn move_aside(path: &Path) -> Result<(), FileError> {
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let mut other = path.as_os_str().to_owned();
    while Path::new(&other).symlink_metadata().is_ok() {
        other.push("~");
    }
    fs::rename(path, PathBuf::from(other)).map_err(FileError::at("move away", path))
}

/// Artifacts that no manifest tells of were left where agents leave them.
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
        .map_err(FileError::at("write", &manifest))
}
