//! Writer of trial directories: stages each one, makes it durable, then moves it to its final path.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::backoff::error_chain;
use rollout_base::fs_make::make_below;
use rollout_base::supervise;
use rollout_protocol::id::RunId;
use rollout_protocol::name::{self, InvalidPathComponent};
use rollout_protocol::record::{Settlement, TrialRecord};
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::version::NewerFormat;
use rollout_store::archive::{self, ArchiveError};
use rollout_store::{BlobStore, StoreError};
use tempfile::TempDir;

use super::content;
use super::durable::{self, FileError};
use super::empty_files;
use super::error_text;
use super::former_files;
use super::json_digest;
use super::layout::{self, STAGING};
use super::materialize::MaterializeMode;
use super::trial_result::{ResultOwner, TrialResult};
use crate::results::report::TaskFactsIndex;

/// Reasons why the files of a trial cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum TrialFilesError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A blob could not be read.
    #[error("cannot read {what}")]
    Store {
        /// Name of the blob's content.
        what: String,
        /// The store's error.
        #[source]
        source: StoreError,
    },
    /// An archive could not be unpacked.
    #[error("cannot unpack {what}")]
    Unpack {
        /// Name of its content.
        what: String,
        /// Cause.
        #[source]
        source: ArchiveError,
    },
    /// An archive is incomplete.
    #[error("the archive of {what} is damaged: {cut}")]
    ArchiveTruncated {
        /// Name of its content.
        what: String,
        /// Point of truncation.
        cut: archive::ArchiveTruncation,
    },
    /// The archive of a single file is empty.
    #[error("the archive of {what} contains no file")]
    NoFile {
        /// Name of its content.
        what: String,
    },
    /// The record cannot be parsed.
    #[error("cannot parse the record {digest}")]
    Record {
        /// The blob.
        digest: rollout_protocol::digest::Digest,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// The record was written by a newer version.
    #[error("cannot read the record {digest}")]
    NewerRecord {
        /// The blob.
        digest: rollout_protocol::digest::Digest,
        /// Its format.
        #[source]
        source: NewerFormat,
    },
    /// The record is another execution's.
    #[error("the record {0} belongs to another execution")]
    RecordMismatch(rollout_protocol::digest::Digest),
    /// A name that cannot be a path component.
    #[error("the name `{name}` {bad}")]
    Name {
        /// The name.
        name: String,
        /// Reason.
        bad: InvalidPathComponent,
    },
    /// A file with an invalid path.
    #[error("the record has a file with the invalid path `{0}`")]
    InvalidFile(String),
}

impl TrialFilesError {
    /// Whether a blob is missing in the store.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Store { source: StoreError::Missing { .. }, .. })
    }

    /// Whether content is permanently damaged or missing, so that a retry cannot help.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Store { source, .. } => {
                matches!(source, StoreError::Missing { .. } | StoreError::Corrupt { .. })
            }
            Self::Unpack { source, .. } => matches!(source, ArchiveError::Invalid { .. }),
            Self::ArchiveTruncated { cut, .. } => {
                matches!(
                    cut,
                    archive::ArchiveTruncation::Malformed(_)
                        | archive::ArchiveTruncation::Incomplete
                )
            }
            Self::NoFile { .. } | Self::Record { .. } => true,
            Self::File(_)
            | Self::NewerRecord { .. }
            | Self::RecordMismatch(_)
            | Self::Name { .. }
            | Self::InvalidFile(_) => false,
        }
    }
}

/// Writes the directories of a run's trials.
#[derive(Debug)]
pub(crate) struct TrialDirWriter {
    run: RunId,
    run_dir: PathBuf,
    materialize: MaterializeMode,
    store: Arc<dyn BlobStore>,
    tasks: Arc<TaskFactsIndex>,
    /// Staging directory. Each session has its own: a former one may still be running.
    staging: PathBuf,
    /// Directories with new entries that are not durable yet.
    unsynced_dirs: Mutex<BTreeSet<PathBuf>>,
}

impl TrialDirWriter {
    /// Prepares a run directory: removes the staging files of an interrupted session.
    pub(crate) fn open(
        run: RunId,
        run_dir: &Path,
        materialize: MaterializeMode,
        store: Arc<dyn BlobStore>,
        tasks: Arc<TaskFactsIndex>,
    ) -> Result<Self, FileError> {
        let base = run_dir.join(STAGING);
        durable::remove(&base)?;
        fs::create_dir(&base).map_err(FileError::with_context("create", &base))?;
        let own = tempfile::tempdir_in(&base)
            .map_err(FileError::with_context("create a directory in", &base));
        let (staging, run_dir) = (own?.keep(), run_dir.to_owned());
        Ok(Self {
            run,
            run_dir,
            materialize,
            store,
            tasks,
            staging,
            unsynced_dirs: Mutex::default(),
        })
    }

    /// Makes all new entries durable and removes the staging directory.
    pub(crate) fn close(&self) -> Result<(), FileError> {
        let touched =
            std::mem::take(&mut *self.unsynced_dirs.lock().unwrap_or_else(PoisonError::into_inner));
        for dir in &touched {
            durable::sync_dir(dir)?;
        }
        durable::remove(&self.staging)?;
        // Another session may be using it.
        let _in_use = fs::remove_dir(self.run_dir.join(STAGING));
        Ok(())
    }

    /// Writes the directory of a settled trial, unless it already exists. Other items have none.
    /// Returns errors of files whose content is damaged or missing; the result is written anyway.
    pub(crate) async fn write(
        self: &Arc<Self>,
        settlement: Arc<Settlement>,
    ) -> Result<Vec<TrialFilesError>, TrialFilesError> {
        let Some(trial) = settlement.trial() else { return Ok(Vec::new()) };
        check_names(trial)?;
        if !self.materialize.has_trial_dirs() {
            let removed = self.blocking(move |writer| writer.remove_former(&settlement)).await;
            return removed.map(|()| Vec::new());
        }
        let trial = trial.clone();
        let by = settlement.by.as_ref();
        let Some(blob) = by.and_then(|by| by.record.as_ref()) else {
            return self
                .blocking(move |writer| {
                    if !writer.is_written(&settlement) {
                        let staging = writer.stage(&trial)?;
                        writer.finish(staging, &trial, &settlement, None, &[])?;
                    }
                    Ok(Vec::new())
                })
                .await;
        };
        let (settled, trees) = (Arc::clone(&settlement), Arc::clone(self));
        let staged = trial.clone();
        let staging = self.blocking(move |trees| {
            if trees.is_written(&settled) { Ok(None) } else { trees.stage(&staged).map(Some) }
        });
        let Some(staging) = staging.await? else { return Ok(Vec::new()) };
        let (record, lost) = match content::read_record(&*self.store, blob, &settlement).await {
            Ok(record) => {
                let lost =
                    content::write(&*self.store, &record, staging.path(), self.materialize).await?;
                (Some(record), lost)
            }
            // If the record is missing, this may be the wrong store.
            Err(error) if error.is_lost() && !error.is_missing() => {
                let (settled, trees) = (Arc::clone(&settlement), Arc::clone(self));
                let mode = MaterializeMode::None;
                let kept = supervise::blocking(move || trees.holds(&settled, mode)).await;
                if kept {
                    // Written in a smaller mode while the record was whole: it has more.
                    return Ok(vec![error]);
                }
                (None, vec![error])
            }
            Err(error) => return Err(error),
        };
        supervise::blocking(move || {
            trees.finish(staging, &trial, &settlement, record.as_ref(), &lost)?;
            Ok(lost)
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, TrialFilesError> + Send + 'static,
    ) -> Result<T, TrialFilesError> {
        let trees = Arc::clone(self);
        supervise::blocking(move || work(&trees)).await
    }

    /// Whether the files of exactly this settlement exist, at least those of this mode, with an
    /// unchanged result.
    pub(crate) fn is_written(&self, settlement: &Settlement) -> bool {
        self.holds(settlement, self.materialize)
    }

    /// Whether there can be something to write for a trial that settles in this session.
    pub(crate) fn concerns(&self, settlement: &Settlement) -> bool {
        // Without directories, only those of former settlements are of interest.
        self.materialize.has_trial_dirs() || !settlement.superseded.is_empty()
    }

    /// Whether the files of exactly this settlement exist, at least those of a mode, with an
    /// unchanged result.
    fn holds(&self, settlement: &Settlement, mode: MaterializeMode) -> bool {
        let Some(trial) = settlement.trial() else { return false };
        let directory = layout::trial_dir(&self.run_dir, trial);
        let owner = read_owner(&directory);
        owner.is_some_and(|owner| owner.is_of(self.run, settlement, mode))
    }

    /// Removes the directory of a trial if it has the result of an earlier settlement: the trial ran
    /// again, and this session writes no directories.
    fn remove_former(&self, settlement: &Settlement) -> Result<(), TrialFilesError> {
        let Some(trial) = settlement.trial() else { return Ok(()) };
        let directory = layout::trial_dir(&self.run_dir, trial);
        let is_former = read_owner(&directory).is_some_and(|owner| {
            owner.is_of_item(self.run, settlement.item)
                && !owner.is_of(self.run, settlement, MaterializeMode::None)
        });
        if !is_former {
            return Ok(());
        }
        // Moved first: a directory that is removed in part would look like one of something else.
        let aside = self.stage(trial)?.keep();
        fs::rename(&directory, &aside).map_err(FileError::with_context("move away", &directory))?;
        durable::remove(&aside)?;
        for parent in directory.ancestors().skip(1).take_while(|dir| *dir != self.run_dir) {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn stage(&self, trial: &TrialName) -> Result<TempDir, TrialFilesError> {
        let within = &self.staging;
        let dir = tempfile::Builder::new()
            .prefix(&format!("{}-", trial.item().short()))
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(within)
            .map_err(FileError::with_context("create a directory in", within))?;
        Ok(dir)
    }

    /// Adds the result, makes everything durable, and moves the directory to its final path.
    fn finish(
        &self,
        staging: TempDir,
        trial: &TrialName,
        settlement: &Settlement,
        record: Option<&TrialRecord>,
        lost: &[TrialFilesError],
    ) -> Result<(), TrialFilesError> {
        if let Some(record) = record {
            empty_files::remove(record, staging.path())?;
        }
        let result = staging.path().join(layout::RESULT);
        durable::remove(&result)?;
        let task = self.tasks.find(&trial.dataset, &trial.task);
        let content = TrialResult::new(self.run, trial, settlement, record, task, self.materialize);
        json_digest::to_vec(&content)
            .map_err(io::Error::from)
            .and_then(|text| File::create_new(&result)?.write_all(&text))
            .map_err(FileError::with_context("write", &result))?;
        let error = staging.path().join(layout::ERROR);
        durable::remove(&error)?;
        if let Some(text) = error_text::render(settlement, record) {
            fs::write(&error, text).map_err(FileError::with_context("write", &error))?;
        }
        let target = layout::trial_dir(&self.run_dir, trial);
        if !lost.is_empty() && self.holds(settlement, MaterializeMode::None) {
            former_files::keep(&target, staging.path())?;
        }
        write_missing(staging.path(), lost)?;
        durable::sync_tree(staging.path())?;
        self.make_parents(&target)?;
        // Files of another execution are moved away first. After a crash between the two renames
        // the directory is missing, and the next session writes it again.
        let old = staging.path().with_extension("former");
        if target.exists() {
            fs::rename(&target, &old).map_err(FileError::with_context("move away", &target))?;
        }
        let staging = staging.keep();
        fs::rename(&staging, &target)
            .map_err(FileError::with_context("move a directory to", &target))?;
        durable::remove(&old)?;
        Ok(())
    }

    fn make_parents(&self, target: &Path) -> Result<(), FileError> {
        let parent = target.parent().expect("trials are below their run's directory");
        let known = |dir: &Path| {
            self.unsynced_dirs.lock().unwrap_or_else(PoisonError::into_inner).contains(dir)
        };
        if known(parent) {
            return Ok(());
        }
        make_below(&self.run_dir, parent).map_err(FileError::with_context("create", parent))?;
        let up_to_run = parent.ancestors().take_while(|dir| dir.starts_with(&self.run_dir));
        let mut touched = self.unsynced_dirs.lock().unwrap_or_else(PoisonError::into_inner);
        touched.extend(up_to_run.map(Path::to_owned));
        Ok(())
    }
}

/// The settlement whose result is in a trial directory, unless the result was changed.
fn read_owner(directory: &Path) -> Option<ResultOwner> {
    let bytes = fs::read(directory.join(layout::RESULT)).ok()?;
    let owner = serde_json::from_slice(&bytes).ok()?;
    json_digest::is_unchanged(&bytes).then_some(owner)
}

/// Writes the list of lost files, without those that a former session had written.
fn write_missing(directory: &Path, lost: &[TrialFilesError]) -> Result<(), FileError> {
    let missing = directory.join(layout::MISSING);
    let is_there = |error: &&TrialFilesError| match error {
        TrialFilesError::Store { what, .. } => {
            fs::symlink_metadata(directory.join(what)).is_ok_and(|found| found.is_file())
        }
        _ => false,
    };
    let lines: Vec<_> = (lost.iter().filter(|error| !is_there(error)))
        .map(|error| format!("* {}\n", error_chain(error)))
        .collect();
    if lines.is_empty() {
        return Ok(());
    }
    durable::remove(&missing)?;
    let text = "Some files of this trial are missing; its result is still valid:\n".to_owned();
    fs::write(&missing, text + &lines.concat()).map_err(FileError::with_context("write", &missing))
}

fn check_names(trial: &TrialName) -> Result<(), TrialFilesError> {
    let invalid = |name: &str| {
        let name = name.to_owned();
        move |bad| TrialFilesError::Name { name, bad }
    };
    for name in [&trial.agent, &trial.dataset] {
        name::check(name).map_err(invalid(name))?;
    }
    name::check_task(&trial.task).map_err(invalid(&trial.task))
}

/// Creates the parent directories of `relative` below `root`, and removes other files at their
/// paths and anything at `target`.
pub(super) fn prepare_target(root: &Path, relative: &Path, target: &Path) -> Result<(), FileError> {
    make_directories(root, relative.parent().unwrap_or(Path::new("")))?;
    durable::remove(target)
}

/// Creates the directory `relative` below `root` with its parents, and removes other files at their
/// paths. Removes symbolic links, never follows them.
pub(super) fn make_directories(root: &Path, relative: &Path) -> Result<(), FileError> {
    let mut dir = root.to_owned();
    for component in relative {
        dir.push(component);
        if fs::symlink_metadata(&dir).is_ok_and(|found| found.is_dir()) {
            continue;
        }
        durable::remove(&dir)?;
        fs::create_dir(&dir).map_err(FileError::with_context("create", &dir))?;
    }
    Ok(())
}
