//! Removal of files and directories of a trial that hold nothing. Most streams of most trials are empty;
//! the record lists them.

use std::fs;
use std::path::Path;

use rollout_protocol::limits::NAME_BYTES;
use rollout_protocol::name;
use rollout_protocol::record::TrialRecord;
use rollout_store::archive::ArchivePath;

use super::durable::{self, FileError};
use super::layout;

/// Removes empty captured output, and directories without a file of output and logs. Artifacts stay.
pub(super) fn remove(record: &TrialRecord, trial: &Path) -> Result<(), FileError> {
    for output in record.outputs.iter().filter(|output| output.blob.size_bytes == 0) {
        // Nothing was written for another path.
        let Ok(Some(path)) = ArchivePath::clean(output.path.as_bytes()) else { continue };
        let path = trial.join(path.as_path());
        durable::remove(&path)?;
        for parent in path.ancestors().skip(1).take_while(|parent| *parent != trial) {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
    }
    remove_directories(&trial.join("logs"));
    // Nothing was written for a step with another name.
    let is_directory = |name: &str| name::check_component(name, NAME_BYTES).is_ok();
    for step in record.steps.iter().filter(|step| is_directory(&step.name)) {
        remove_directories(&trial.join(layout::STEPS).join(&step.name).join("logs"));
    }
    Ok(())
}

/// Removes the directories without a file at and below a path.
fn remove_directories(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    // Not open while those below are read: they may be nested deeply.
    let below: Vec<_> = (entries.flatten())
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    for directory in below {
        remove_directories(&directory);
    }
    // One with a file stays.
    let _has_files = fs::remove_dir(directory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_without_a_file_go_at_any_depth() {
        let place = tempfile::tempdir().expect("a directory");
        let logs = place.path().join("logs");
        for directory in ["agent/a/b", "agent/a/c", "verifier/d"] {
            fs::create_dir_all(logs.join(directory)).expect("made");
        }
        fs::write(logs.join("agent/a/c/file"), "").expect("written");
        remove_directories(&logs);
        assert!(logs.join("agent/a/c/file").is_file());
        assert!(!logs.join("agent/a/b").exists() && !logs.join("verifier").exists());
        remove_directories(&logs.join("agent/none"));
        fs::remove_file(logs.join("agent/a/c/file")).expect("removed");
        remove_directories(&logs);
        assert!(!logs.exists());
    }
}
