//! Harbor export: a job directory that Harbor's viewer, models and tools accept as their own.
//!
//! ```text
//! <jobs>/<job>/config.json lock.json result.json job.log
//! <jobs>/<job>/<task>__<7 characters>/
//!     config.json lock.json result.json trial.log exception.txt
//!     agent/ verifier/ artifacts/ steps/<name>/{agent,verifier,artifacts}/
//! ```
//! * Ids are derived from those of the run and its trials: the same run always exports the same
//!   ids.
//! * Unknown values are absent, not invented: models, agent versions, tokens and cost of agents whose
//!   calls no gateway recorded. Data without a field in Harbor's documents is in
//!   `agent_result.metadata.rollout`.
//! * `agent/trajectory.json` is the agent's own, or the one that the worker made of its model calls.
//! * Errors have the names of Harbor's exceptions, see [`errors`]. Harbor has no exception for a
//!   teardown error: it is in `exception.txt` only.
//! * `stats` has the figures that Harbor 0.26 computes of the exported trials: a trial without a valid
//!   reward is in no mean, count of trials or pass@k. Only its cost is null if that of a trial is not known:
//!   Harbor's sum would be without this trial, and would not say so.
//! * Environment variables of agents and environments are left out: their values may be secrets.

mod agent_use;
mod documents;
mod errors;
mod files;
mod names;
mod stats;

#[cfg(test)]
pub(super) use errors::exception_type;

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::ExportError;
use super::source::{ExportSource, SettledTrial};
use crate::results::files::durable::{sync_dir, sync_tree, write_json};
use crate::results::files::{FileError, MaterializeMode, TrialFilesError, content, error_text};
use crate::results::rows::parent;
use documents::HarborJob;
use stats::HarborStats;

/// Writes the job's directory into `jobs`; its documents name `shown_in` instead, if given. Returns its
/// path.
pub(super) async fn write(
    source: &ExportSource,
    jobs: &Path,
    shown_in: Option<&Path>,
) -> Result<PathBuf, ExportError> {
    fs::create_dir_all(jobs).map_err(FileError::with_context("create", jobs))?;
    let jobs = jobs.canonicalize().map_err(FileError::with_context("open", jobs))?;
    let job = HarborJob::new(source, shown_in.unwrap_or(&jobs));
    let job_dir = jobs.join(job.name());
    if job_dir.symlink_metadata().is_ok() {
        return Err(ExportError::OutputExists(job_dir));
    }
    let staging = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir_in(&jobs)
        .map_err(FileError::with_context("create a directory in", &jobs))?;
    let at = staging.path().to_owned();
    document(&at.join("config.json"), &job.config())?;
    let mut stats = HarborStats::default();
    let mut locks = JobLockWriter::create(at.join("lock.json"), &job)?;
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        let name = names::free_trial_name(&trial.name, &at);
        write_trial(source, &job, &trial, &name, &at.join(&name)).await?;
        locks.add(&job.lock(&trial))?;
        stats.add(&trial, &name);
    }
    locks.finish()?;
    document(&at.join("result.json"), &job.result(source, &stats))?;
    text(&at.join("job.log"), &job.log(source))?;
    move_to(staging, &job_dir)?;
    Ok(job_dir)
}

async fn write_trial(
    source: &ExportSource,
    job: &HarborJob,
    trial: &SettledTrial,
    name: &str,
    trial_dir: &Path,
) -> Result<(), ExportError> {
    fs::create_dir(trial_dir).map_err(FileError::with_context("create", trial_dir))?;
    let failed = |error: TrialFilesError| ExportError::Trial {
        trial: trial.name.to_string(),
        source: Box::new(error),
    };
    if let Some(record) = &trial.record {
        let lost = content::write(&*source.store, record, trial_dir, MaterializeMode::Full)
            .await
            .map_err(failed)?;
        if let Some(lost) = lost.into_iter().next() {
            return Err(failed(lost));
        }
        files::arrange(trial_dir, record)?;
    }
    document(&trial_dir.join("config.json"), &job.trial_config(trial, name))?;
    document(&trial_dir.join("lock.json"), &job.lock(trial))?;
    let details = error_text::render(&trial.settlement, trial.record.as_ref());
    document(&trial_dir.join("result.json"), &job.trial_result(trial, name, details.as_deref()))?;
    text(&trial_dir.join("trial.log"), &documents::trial_log(trial))?;
    if let Some(details) = details {
        text(&trial_dir.join("exception.txt"), &details)?;
    }
    sync_tree(trial_dir)?;
    Ok(())
}

/// Moves the finished directory to its final path.
fn move_to(staging: TempDir, target: &Path) -> Result<(), ExportError> {
    sync_dir(staging.path())?;
    let staging = staging.keep();
    fs::rename(&staging, target).map_err(FileError::with_context("move a directory to", target))?;
    sync_dir(parent(target))?;
    Ok(())
}

/// Writes a document. A file of that name that an agent left is moved aside.
fn document(path: &Path, value: &Value) -> Result<(), FileError> {
    files::move_aside(path)?;
    File::create_new(path)
        .and_then(|file| write_json(file, value))
        .map_err(FileError::with_context("write", path))
}

fn text(path: &Path, text: &str) -> Result<(), FileError> {
    files::move_aside(path)?;
    fs::write(path, text).map_err(FileError::with_context("write", path))
}

/// `lock.json` of the job, written trial by trial.
struct JobLockWriter {
    path: PathBuf,
    file: BufWriter<File>,
    has_trials: bool,
}

impl JobLockWriter {
    fn create(path: PathBuf, job: &HarborJob) -> Result<Self, FileError> {
        let file = File::create_new(&path).map_err(FileError::with_context("create", &path))?;
        let mut locks = Self { file: BufWriter::new(file), path, has_trials: false };
        let head = job.lock_header().to_string();
        // The list of trials is the last member of the object.
        let open = head.strip_suffix('}').expect("an object");
        locks.put(&format!("{open},\"trials\":["))?;
        Ok(locks)
    }

    fn add(&mut self, lock: &Value) -> Result<(), FileError> {
        let comma = if self.has_trials { "," } else { "" };
        self.has_trials = true;
        self.put(&format!("{comma}\n{lock}"))
    }

    fn finish(mut self) -> Result<(), FileError> {
        self.put("]}\n")?;
        self.file.flush().map_err(FileError::with_context("write", &self.path))?;
        self.file.get_ref().sync_all().map_err(FileError::with_context("sync", &self.path))
    }

    fn put(&mut self, text: &str) -> Result<(), FileError> {
        self.file.write_all(text.as_bytes()).map_err(FileError::with_context("write", &self.path))
    }
}
