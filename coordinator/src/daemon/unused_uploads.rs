//! Removal of uploaded datasets that no run and no farm needs any more, also while a daemon uses the
//! directory: it notices that they are gone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::disk::{bytes_in, remove_file};
use super::record::RecordError;
use super::state_dir::DATASET_USERS;

/// Digits of the name of a dataset.
const NAME_DIGITS: usize = 64;

/// Directories of records, whose documents name datasets.
const RECORDS: [&str; 2] = ["runs", "farms"];

/// A dataset that was removed; in a dry run, one that would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedUpload {
    /// Its digest, in hexadecimal digits.
    pub name: String,
    /// Bytes of the disk that it took.
    pub bytes: u64,
}

/// Result of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UploadRemoval {
    /// Datasets that are gone.
    pub removed: Vec<UnusedUpload>,
    /// Number of those that a run or a farm needs, or that are too young.
    pub kept: u64,
}

/// Removes the datasets in the state directory of a daemon that were uploaded longer ago than `grace`,
/// and that no run or farm names that has not ended. Blocks.
///
/// # Errors
/// [`RecordError`].
pub fn remove_unused_uploads(
    root: &Path,
    grace: Duration,
    dry_run: bool,
) -> Result<UploadRemoval, RecordError> {
    // Before the documents are read: what they name later was uploaded later.
    let limit = SystemTime::now().checked_sub(grace).unwrap_or(SystemTime::UNIX_EPOCH);
    let uploads = root.join("datasets");
    let mut needed = BTreeSet::new();
    for directory in RECORDS {
        add_named(&root.join(directory), &mut needed)?;
    }
    let failed = || RecordError::file("list", &uploads);
    let mut removal = UploadRemoval::default();
    for entry in fs::read_dir(&uploads).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let metadata = entry.metadata().map_err(RecordError::file("look at", &path))?;
        if name.len() != NAME_DIGITS || !metadata.is_dir() {
            continue;
        }
        // It got its name then. The archive may have set the other times.
        let seconds = u64::try_from(metadata.ctime()).unwrap_or(0);
        let uploaded = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        if needed.contains(&name) || uploaded > limit {
            removal.kept += 1;
            continue;
        }
        let bytes = bytes_in(&path);
        if !dry_run {
            // First: who uploads it meanwhile has it until it is gone, and then no one has.
            let users = root.join(DATASET_USERS).join(&name);
            remove_file(&users).map_err(RecordError::file("remove", &users))?;
            fs::remove_dir_all(&path).map_err(RecordError::file("remove", &path))?;
        }
        removal.removed.push(UnusedUpload { name, bytes });
    }
    removal.removed.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(removal)
}

/// Adds the datasets that documents name, except those of records that have ended.
fn add_named(directory: &Path, needed: &mut BTreeSet<String>) -> Result<(), RecordError> {
    for entry in fs::read_dir(directory).map_err(RecordError::file("list", directory))? {
        let path = entry.map_err(RecordError::file("list", directory))?.path();
        if path.extension() != Some(OsStr::new("yaml")) || has_ended(&path.with_extension("json")) {
            continue;
        }
        match fs::read_to_string(&path) {
            Ok(text) => needed.extend(names_in(&text)),
            // Its run was deleted meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(RecordError::file("read", &path)(error)),
        }
    }
    Ok(())
}

/// Whether a record says that its run or farm has ended. One that cannot be read has not.
fn has_ended(record: &Path) -> bool {
    let record = fs::read(record).ok();
    let record: Option<serde_json::Value> =
        record.and_then(|text| serde_json::from_slice(&text).ok());
    record.is_some_and(|record| record.get("end").is_some_and(|end| !end.is_null()))
}

/// The names of datasets in a document.
fn names_in(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|character: char| !character.is_ascii_hexdigit());
    words.filter(|word| word.len() == NAME_DIGITS).map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_named_by_open_runs_and_young_ones_stay() {
        let root = tempfile::tempdir().expect("a directory");
        let uploads = root.path().join("datasets");
        let [open, ended, unnamed] = ["a", "b", "c"].map(|digit| digit.repeat(NAME_DIGITS));
        for name in [&open, &ended, &unnamed, &"short".to_owned()] {
            fs::create_dir_all(uploads.join(name)).expect("made");
        }
        for directory in RECORDS {
            fs::create_dir(root.path().join(directory)).expect("made");
        }
        let write = |name: &str, text: &str| {
            fs::write(root.path().join(name), text).expect("written");
        };
        write("runs/1.yaml", &format!("datasets: [{{path: /state/datasets/{open}/tasks}}]"));
        write("runs/1.json", r#"{"format":1}"#);
        write("farms/2.yaml", &format!("datasets: [{{path: /state/datasets/{ended}}}]"));
        write("farms/2.json", r#"{"end":{"at":"2026-01-01T00:00:00Z"}}"#);
        let users = root.path().join(DATASET_USERS);
        fs::create_dir(&users).expect("made");
        for name in [&open, &ended] {
            fs::write(users.join(name), "{}").expect("written");
        }
        let remove = |hours: u64, dry_run| {
            let grace = Duration::from_secs(hours * 3600);
            remove_unused_uploads(root.path(), grace, dry_run).expect("readable")
        };
        assert_eq!(remove(1, false), UploadRemoval { removed: Vec::new(), kept: 3 });
        let dry = remove(0, true);
        let names: Vec<_> = dry.removed.iter().map(|removed| removed.name.clone()).collect();
        assert_eq!((names, dry.kept), (vec![ended.clone(), unnamed.clone()], 1));
        assert!(uploads.join(&ended).exists());
        assert_eq!(remove(0, false), dry);
        let left = [&open, &ended, &unnamed].map(|name| uploads.join(name).exists());
        assert_eq!(left, [true, false, false]);
        assert!(users.join(&open).exists() && !users.join(&ended).exists());
    }
}
