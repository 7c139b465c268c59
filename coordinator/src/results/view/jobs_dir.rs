//! The runs in a directory of jobs or searches.

use std::path::{Path, PathBuf};

use rollout_engine::QueueOutage;
use rollout_protocol::Timestamp;
use rollout_protocol::id::RunId;

use super::RunViewError;
use super::directory::RunDirectory;
use super::run::{RunKind, RunView, RunViewState};
use crate::results::report::ScoreFigures;

/// One run in a directory of jobs.
#[derive(Debug)]
pub struct RunSummary {
    /// Name of its directory.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// The facts of a run that can be read.
    pub run: Result<RunFacts, RunViewError>,
}

/// Facts about a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFacts {
    /// The run.
    pub run: Option<RunId>,
    /// Kind of the run.
    pub kind: RunKind,
    /// State of the run.
    pub state: RunViewState,
    /// Items of the plan.
    pub total: u64,
    /// Items with a terminal record.
    pub settled: u64,
    /// Share of completed trials that passed; `None` when none completed, and for a search.
    pub pass_rate: Option<f64>,
    /// The headline score; `None` for a search.
    pub scored: Option<ScoreFigures>,
    /// Last change of the run's state.
    pub updated_at: Option<Timestamp>,
    /// The outage of the queue, while there is one and an owner may be alive.
    pub queue_outage: Option<QueueOutage>,
}

impl RunFacts {
    /// The facts of a copy of a run that another host may own. Blocks.
    ///
    /// # Errors
    /// [`RunViewError`].
    pub fn of_copy(directory: &Path) -> Result<Self, RunViewError> {
        let view = RunDirectory::open(directory)?.without_owner().view(None, None)?;
        Ok(Self::new(&view))
    }

    fn new(view: &RunView) -> Self {
        let header = &view.header;
        let is_job = header.kind == RunKind::Job;
        Self {
            run: header.run,
            kind: header.kind,
            state: header.state,
            total: view.counts.total,
            settled: view.counts.settled,
            pass_rate: view.tally.pass_rate().filter(|_| is_job),
            scored: is_job.then(|| view.tally.score().into()),
            updated_at: header.updated_at,
            queue_outage: view.queue_outage.clone(),
        }
    }
}

/// Passes every run in a directory to `see`, by name. One that cannot be read has its error. Only
/// one run at a time is in memory. Blocks.
///
/// # Errors
/// [`RunViewError::List`] when the directory cannot be listed.
pub fn list_runs(jobs_dir: &Path, mut see: impl FnMut(RunSummary)) -> Result<(), RunViewError> {
    let failed = |source| RunViewError::List { path: jobs_dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(jobs_dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        // The state of all runs: blobs, caches.
        if !name.to_string_lossy().starts_with('.') && entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort_unstable();
    for name in names {
        let path = jobs_dir.join(&name);
        let opened = match RunDirectory::open(&path) {
            Err(RunViewError::NotRunDirectory { .. }) => continue,
            opened => opened,
        };
        let view = opened.and_then(|directory| directory.view(None, None));
        let run = view.map(|view| RunFacts::new(&view));
        see(RunSummary { name: name.to_string_lossy().into_owned(), path, run });
    }
    Ok(())
}
