//! The state directory of a daemon.
//!
//! ```text
//! <dir>/daemon.lock        locked by the daemon
//! <dir>/runs/<id>.json     record of a run
//! <dir>/runs/<id>.yaml     its job document
//! <dir>/runs/<id>.trials   trials of an executor that were started, one item a line
//! <dir>/runs/<id>.events   events of a search, a line of JSON each
//! <dir>/farms/<id>.json    record of a farm
//! <dir>/farms/<id>.yaml    its job document
//! <dir>/datasets/<digest>/ an uploaded dataset
//! <dir>/dataset-users/<digest>  the user who uploaded it, and its size
//! <dir>/jobs/<id>/         run directory of a run or of a farm
//! <dir>/jobs/.rollout/     blobs and caches of all runs
//! ```

use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rollout_base::durable;
use rollout_engine::atomic_file;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::event_feed::EventSource;
use super::hosted_run::HostedRun;
use super::id::{HostedFarmId, HostedRunId};
use super::record::{HostedKind, HostedRunRecord, RECORD_FORMAT, RecordError};

/// Directory of the users of datasets.
pub(super) const DATASET_USERS: &str = "dataset-users";

/// The directory of a daemon, locked while this lives.
#[derive(Debug)]
pub(super) struct DaemonDir {
    root: PathBuf,
    _lock: File,
}

/// An id of something that has a record in the directory.
pub(super) trait StoredId: Display + FromStr + Ord {
    /// Directory of the records.
    const DIRECTORY: &'static str;
}

impl StoredId for HostedRunId {
    const DIRECTORY: &'static str = "runs";
}

impl StoredId for HostedFarmId {
    const DIRECTORY: &'static str = "farms";
}

/// A record in the directory.
pub(super) trait StoredRecord: Serialize + DeserializeOwned {
    /// Its id.
    type Id: StoredId;

    /// Its id.
    fn id(&self) -> &Self::Id;
}

/// A run or a farm in the directory.
#[derive(Debug)]
pub(super) struct FoundRecord<R: StoredRecord> {
    /// Its id.
    pub(super) id: R::Id,
    /// Its record, if it can be read.
    pub(super) record: Result<R, RecordError>,
}

impl DaemonDir {
    /// Opens or makes the directory, and locks it. Its files are for this user only: documents of
    /// jobs may contain secrets. Blocks.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn open(root: &Path) -> Result<Self, RecordError> {
        let names =
            [HostedRunId::DIRECTORY, HostedFarmId::DIRECTORY, "jobs", "datasets", DATASET_USERS];
        let directories = names.map(|name| root.join(name));
        for directory in std::iter::once(root.to_owned()).chain(directories) {
            durable::create_directory_with(
                DirBuilder::new().recursive(true).mode(0o700),
                &directory,
            )
            .map_err(RecordError::file("create", &directory))?;
        }
        // Relative paths of documents must not depend on the working directory.
        let root = root.canonicalize().map_err(RecordError::file("find", root))?;
        let path = root.join("daemon.lock");
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(RecordError::file("open", &path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(RecordError::InUse { path: root });
        }
        for name in [HostedRunId::DIRECTORY, HostedFarmId::DIRECTORY, DATASET_USERS] {
            let records = root.join(name);
            atomic_file::remove_unfinished(&records)
                .map_err(RecordError::file("clear", &records))?;
        }
        remove_unfinished_uploads(&root.join("datasets"))?;
        Ok(Self { root, _lock: lock })
    }

    /// Parent of all run directories.
    pub(super) fn jobs(&self) -> PathBuf {
        self.root.join("jobs")
    }

    /// Records of runs or farms.
    pub(super) fn records_of<I: StoredId>(&self) -> PathBuf {
        self.root.join(I::DIRECTORY)
    }

    /// Datasets that users uploaded.
    pub(super) fn uploads(&self) -> PathBuf {
        self.root.join("datasets")
    }

    /// The users who uploaded them.
    pub(super) fn dataset_users(&self) -> PathBuf {
        self.root.join(DATASET_USERS)
    }

    /// The run directory of a run or a farm.
    pub(super) fn run_dir(&self, id: &impl StoredId) -> PathBuf {
        self.jobs().join(id.to_string())
    }

    /// The job document of a run or a farm.
    pub(super) fn document<I: StoredId>(&self, id: &I) -> PathBuf {
        self.root.join(I::DIRECTORY).join(format!("{id}.yaml"))
    }

    /// The trials of an executor that were started.
    pub(super) fn started_trials<I: StoredId>(&self, id: &I) -> PathBuf {
        self.root.join(I::DIRECTORY).join(format!("{id}.trials"))
    }

    /// The events of a search.
    fn search_log<I: StoredId>(&self, id: &I) -> PathBuf {
        self.root.join(I::DIRECTORY).join(format!("{id}.events"))
    }

    /// The run of a record.
    pub(super) fn hosted(&self, record: HostedRunRecord) -> Arc<HostedRun> {
        let directory = self.run_dir(&record.id);
        let events = match record.kind {
            HostedKind::Job | HostedKind::Executor => EventSource::Journal(directory.clone()),
            HostedKind::Tree => EventSource::Log(self.search_log(&record.id)),
        };
        Arc::new(HostedRun::new(record, directory, events))
    }

    fn record<I: StoredId>(&self, id: &I) -> PathBuf {
        self.root.join(I::DIRECTORY).join(format!("{id}.json"))
    }

    /// Writes a document that is not durable yet. Blocks.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn write_document(&self, id: &impl StoredId, text: &str) -> Result<(), RecordError> {
        let path = self.document(id);
        atomic_file::replace(&path, text.as_bytes()).map_err(RecordError::file("write", &path))
    }

    /// Replaces a record, durably. Blocks.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn write_record(&self, record: &impl StoredRecord) -> Result<(), RecordError> {
        let path = self.record(record.id());
        let mut text = serde_json::to_vec_pretty(record)
            .map_err(|error| RecordError::file("encode", &path)(error.into()))?;
        text.push(b'\n');
        atomic_file::replace(&path, &text).map_err(RecordError::file("write", &path))
    }

    /// Every record of a kind, oldest first. Removes documents without a record: their submissions were not
    /// answered. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub(super) fn records<R: StoredRecord>(&self) -> Result<Vec<FoundRecord<R>>, RecordError> {
        let directory = self.root.join(R::Id::DIRECTORY);
        let failed = || RecordError::file("list", &directory);
        let mut found: Vec<FoundRecord<R>> = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed())? {
            let path = entry.map_err(failed())?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let Ok(id) = stem.parse::<R::Id>() else { continue };
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => found.push(FoundRecord { record: read_record(&path, &id), id }),
                Some("yaml") if !self.record(&id).exists() => remove_file(&path)?,
                _ => {}
            }
        }
        found.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Removes a document whose submission was refused. Blocks.
    pub(super) fn discard_document(&self, id: &impl StoredId) {
        if let Err(error) = remove_file(&self.document(id)) {
            tracing::warn!("cannot remove a refused document: {error}");
        }
    }

    /// Removes all files of a run or a farm, the record last. Blocks.
    ///
    /// # Errors
    /// [`RecordError`]; the rest stays for another attempt.
    pub(super) fn remove(&self, id: &impl StoredId) -> Result<(), RecordError> {
        let run_dir = self.run_dir(id);
        match fs::remove_dir_all(&run_dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(RecordError::file("remove", run_dir)(error));
            }
            _ => {}
        }
        remove_file(&self.started_trials(id))?;
        remove_file(&self.search_log(id))?;
        remove_file(&self.document(id))?;
        remove_file(&self.record(id))
    }
}

/// Removes uploads that a killed daemon left, archives and directories. One that cannot be removed
/// only takes space.
fn remove_unfinished_uploads(uploads: &Path) -> Result<(), RecordError> {
    let failed = || RecordError::file("list", uploads);
    for entry in fs::read_dir(uploads).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".tmp") {
            continue;
        }
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if let Err(error) = removed {
            tracing::warn!("cannot remove the unfinished upload {}: {error}", path.display());
        }
    }
    Ok(())
}

fn read_record<R: StoredRecord>(path: &Path, id: &R::Id) -> Result<R, RecordError> {
    let damaged = |reason: String| RecordError::Damaged { path: path.to_owned(), reason };
    let text = fs::read(path).map_err(RecordError::file("read", path))?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    let format = value.get("format").and_then(serde_json::Value::as_u64).unwrap_or_default();
    if format > u64::from(RECORD_FORMAT) {
        let found = u32::try_from(format).unwrap_or(u32::MAX);
        return Err(RecordError::Newer { path: path.to_owned(), found });
    }
    let record: R = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
    match record.id() == id {
        true => Ok(record),
        false => Err(damaged(format!("it is the record of {}", record.id()))),
    }
}

fn remove_file(path: &Path) -> Result<(), RecordError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(RecordError::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}
