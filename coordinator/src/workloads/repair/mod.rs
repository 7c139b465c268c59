//! Repair of a run directory whose journal, manifest or plan is damaged, or, of a search, its
//! repository, a checkout or an output.
//!
//! A part of the journal in which one bit changed is restored exactly: the checksum of its record
//! identifies the bit. Otherwise a new segment replaces the journal. It holds every intact record,
//! followed by the results that the blob store or a file of `records/` proves. Nothing is invented:
//! a trial without a proven result is pending again, and so is one whose result may be from before
//! a retry whose record is lost. Files are copied before they are changed, or moved, into a
//! separate directory.

mod evidence;
mod history;
mod possible_reopenings;
mod replay;
mod search;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_engine::core::SessionStart;
use rollout_engine::journal::{JournalDamage, JournalError, JournalSalvage, RunLayout};
use rollout_engine::{LockError, LockWaitPolicy, RunError, RunLock, RunManifest, host_name};
use rollout_protocol::Timestamp;
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::version::RUN_FORMAT;
use rollout_store::{BlobStore, StoreError};
use tokio::sync::mpsc;

use self::evidence::RepairEvidence;
use self::history::{HistorySummary, RunHistory};
pub use self::search::SearchRepair;
use super::job::read_previous_plan;
use crate::plan::JobPlan;
use crate::workloads::search::backend::ResultsError;
use crate::workloads::search::driver::SearchError;
use crate::workloads::search::repository::RepositoryError;

/// A run directory to repair.
#[derive(Debug)]
pub struct RepairRequest {
    /// The run directory.
    pub layout: RunLayout,
    /// The blob store of the run, if there is one.
    pub store: Option<Arc<dyn BlobStore>>,
    /// Whether to change nothing.
    pub dry_run: bool,
}

/// Everything that a repair did or would do.
#[derive(Debug, Default)]
pub struct RepairReport {
    /// Unreadable parts of the journal.
    pub damages: Vec<JournalDamage>,
    /// Missing segments of the journal.
    pub missing: Vec<PathBuf>,
    /// Segments that differ from those that the next owner of the run saw.
    pub changed: Vec<PathBuf>,
    /// Unreadable documents; the next run of the job writes them again.
    pub documents: Vec<PathBuf>,
    /// Whether the journal is restored exactly.
    pub exact: bool,
    /// Trials whose results were restored, with the sources of the proof.
    pub restored: Vec<(String, &'static str)>,
    /// Trials with a result.
    pub settled: usize,
    /// Trials that the journal names and that have no result: they are pending.
    pub pending: Vec<String>,
    /// Trials whose result may be from before a retry whose record is lost: they run again.
    pub doubtful: Vec<String>,
    /// Directory with the copies of changed files.
    pub copies: Option<PathBuf>,
    /// The damaged parts of a search beside its journal.
    pub search: SearchRepair,
    /// Why these parts were not checked or not made again, if so. The journal was repaired regardless.
    pub search_failure: Option<RepairError>,
}

/// Failure to repair a run directory.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// Another process owns the run.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The blob store cannot be read.
    #[error("cannot read the blob store")]
    Store(#[from] StoreError),
    /// A file cannot be changed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The manifest of a search cannot be read.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The repository of a search cannot be made again.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The outputs of a search cannot be compared or written.
    #[error(transparent)]
    Outputs(#[from] ResultsError),
    /// Neither journal nor manifest names the run.
    #[error("cannot repair {}: neither journal nor manifest names its run", shown(root))]
    Unknown {
        /// The run directory.
        root: PathBuf,
    },
    /// The directory does not exist or is not that of a run.
    #[error("{} is not a run directory: {missing} is missing", shown(root))]
    NoRun {
        /// The directory.
        root: PathBuf,
        /// The missing file or directory.
        missing: &'static str,
    },
}

impl RepairReport {
    /// Whether there was nothing to repair.
    pub fn is_clean(&self) -> bool {
        let is_search_clean = self.search.damaged.is_empty() && self.search_failure.is_none();
        self.is_journal_clean() && is_search_clean
    }

    /// Whether journal, manifest and plan are not damaged.
    pub fn is_journal_clean(&self) -> bool {
        let Self { damages, missing, changed, documents, .. } = self;
        damages.is_empty() && missing.is_empty() && changed.is_empty() && documents.is_empty()
    }
}

/// Repairs a run directory.
///
/// # Errors
/// [`RepairError`]. Journal, manifest and plan were not changed then, unless a write failed; the copies
/// are complete in that case.
pub async fn repair(request: RepairRequest) -> Result<RepairReport, RepairError> {
    let RepairRequest { layout, store, dry_run } = request;
    if !layout.journal().is_dir() {
        let root = layout.root().to_owned();
        let is_run = layout.manifest().exists() || RunLayout::is_search(&root);
        let missing = if is_run { "journal" } else { "manifest.json" };
        return Err(RepairError::NoRun { root, missing });
    }
    let (_running, mut stops) = mpsc::channel(1);
    let wait_policy = LockWaitPolicy { wait: false, ..LockWaitPolicy::default() };
    let lock = RunLock::acquire_directory_only(&layout, wait_policy, &mut stops).await?;
    let of = layout.clone();
    let found = supervise::blocking(move || RunDirectoryContents::read(of)).await?;
    let mut repaired = found.summary();
    match Box::pin(search::repair(&layout, store.as_ref(), dry_run)).await {
        Ok(search) => repaired.search = search,
        Err(error) => repaired.search_failure = Some(error),
    }
    if repaired.is_journal_clean() {
        return Ok(repaired);
    }
    let run = found.run()?;
    let evidence = match repaired.exact {
        true => RepairEvidence::empty(run),
        false => {
            let (store, manifest) = (store.as_deref(), found.manifest.as_ref());
            RepairEvidence::gather(run, &layout, store, manifest).await?
        }
    };
    supervise::blocking(move || {
        let (at, epoch) = (Timestamp::now(), lock.epoch());
        let history = RunHistory { contents: &found, evidence: &evidence, at, epoch };
        let summary = history.write_records(&mut |_, _| {})?;
        repaired.add_history(&summary, &found.names());
        if !dry_run {
            repaired.copies = Some(match repaired.exact {
                true => write::repair_in_place(&found)?,
                false => {
                    let opening = found.opening(epoch, run, summary.reopenings.clone())?;
                    write::rebuild(&history, opening, &summary)?
                }
            });
        }
        Ok(repaired)
    })
    .await
}

impl RepairReport {
    /// Adds the summary of the run's history.
    fn add_history(&mut self, summary: &HistorySummary, names: &HashMap<ItemId, String>) {
        let name = |item: &ItemId| names.get(item).cloned().unwrap_or_else(|| item.to_string());
        self.restored = summary.restored.iter().map(|(item, proof)| (name(item), *proof)).collect();
        self.settled = summary.settled;
        self.doubtful = summary.doubtful.iter().map(name).collect();
        self.doubtful.sort_unstable();
        let pending =
            summary.pending.iter().filter(|item| summary.doubtful.binary_search(item).is_err());
        self.pending = pending.map(name).collect();
        self.pending.sort_unstable();
    }
}

/// The readable parts of a run directory.
struct RunDirectoryContents {
    layout: RunLayout,
    salvage: JournalSalvage,
    manifest: Option<RunManifest>,
    plan: Option<JobPlan>,
    documents: Vec<PathBuf>,
}

impl RunDirectoryContents {
    fn read(layout: RunLayout) -> Result<Self, RepairError> {
        let mut documents = Vec::new();
        let manifest = RunManifest::read(&layout).or_else(|error| match error {
            RunError::Damaged { path, .. } => {
                documents.push(path);
                Ok(None)
            }
            error => Err(error),
        })?;
        let plan = read_previous_plan(&layout).or_else(|error| match error {
            RunError::Damaged { path, .. } => {
                documents.push(path);
                Ok(None)
            }
            error => Err(error),
        })?;
        let noted = manifest.as_ref().map(|m| (m.journal.epoch, m.journal.durable_bytes));
        let salvage = JournalSalvage::read(&layout, noted.as_slice())?;
        Ok(Self { layout, salvage, manifest, plan, documents })
    }

    fn summary(&self) -> RepairReport {
        RepairReport {
            damages: self.salvage.damages().cloned().collect(),
            missing: self.salvage.missing().to_vec(),
            changed: self.salvage.changed().cloned().collect(),
            documents: self.documents.clone(),
            exact: self.salvage.is_repairable(),
            ..RepairReport::default()
        }
    }

    fn run(&self) -> Result<RunId, RepairError> {
        let journalled = self.salvage.openings().map(|(_, last)| last.run);
        let root = || self.layout.root().to_owned();
        (journalled.or(self.manifest.as_ref().map(|manifest| manifest.run)))
            .ok_or_else(|| RepairError::Unknown { root: root() })
    }

    fn names(&self) -> HashMap<ItemId, String> {
        let trials = self.plan.iter().flat_map(JobPlan::trials);
        trials.map(|trial| (trial.item, trial.name.to_string())).collect()
    }

    /// The first record of a journal that replaces this one, and its time.
    fn opening(
        &self,
        epoch: u32,
        run: RunId,
        reopened_within: Vec<ItemId>,
    ) -> Result<(Timestamp, SessionStart), RepairError> {
        let replaces = self.salvage.replaces();
        let owner = format!("{} pid {}", host_name(), std::process::id());
        if let Some(((at, _), last)) = self.salvage.openings() {
            let opened = SessionStart {
                epoch,
                owner,
                former: None,
                takeover: None,
                replaces,
                reopened: Vec::new(),
                reopened_within,
                ..last.clone()
            };
            return Ok((at, opened));
        }
        let root = || self.layout.root().to_owned();
        let manifest =
            self.manifest.as_ref().ok_or_else(|| RepairError::Unknown { root: root() })?;
        let opened = SessionStart {
            format: RUN_FORMAT,
            run,
            epoch,
            plan: manifest.plan,
            retry: rollout_protocol::retry::RetryPolicy::default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            owner,
            former: None,
            pool: None,
            holder: None,
            takeover: None,
            replaces,
            reopened: Vec::new(),
            reopened_within,
        };
        Ok((manifest.created_at, opened))
    }
}
