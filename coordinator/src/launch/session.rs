//! The parts of a job's session that do not depend on the place where its trials run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_protocol::digest::Digest;
use rollout_protocol::event::RunEvent;
use rollout_protocol::id::RunId;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::offer::RunRateLimits;
use rollout_worker::backoff::OutageLog;
use rollout_worker::queue::traits::RunControl;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::on_demand::OnDemandTrials;
use crate::config::{self, Job};
use crate::engine::catalog::{Catalog, CatalogError, CatalogMirror};
use crate::engine::core::RemoteTimeouts;
use crate::engine::journal::{JournalError, JournalMirror, RunLayout};
use crate::engine::{
    KvLockOptions, LockOptions, LockWaitPolicy, OpenRun, ReopenSelection, RunError, RunOpenOptions,
    atomic_file,
};
use crate::events::MaterializeMode;
use crate::plan::{JobPlan, PlanDocument};
use crate::results::files::layout;
use crate::results::report::DatasetFacts;
use crate::workloads::job::JobPlanner;

/// Newest format of `resume.json`.
const FORMAT: u32 = 1;

/// How long files of a run wait for the store of its catalog.
const STORE_RETRY_PERIOD: Duration = Duration::from_secs(120);

/// Where a run is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum RunSink {
    /// In its run directory
    #[default]
    Local,
    /// In the catalog of its blob store; trials have only metadata files in the run directory
    Catalog,
    /// In the catalog and, with all files of its trials, in the run directory
    Hybrid,
}

impl RunSink {
    /// Whether the run is in the catalog of its store.
    pub const fn has_catalog(self) -> bool {
        matches!(self, Self::Catalog | Self::Hybrid)
    }

    /// The files of trials that are written unless the user says otherwise.
    pub const fn default_materialize(self) -> MaterializeMode {
        match self {
            Self::Local | Self::Hybrid => MaterializeMode::Full,
            Self::Catalog => MaterializeMode::MetadataOnly,
        }
    }
}

/// `resume.json`: the settings of a job that a session without the job file needs beside the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobParameters {
    /// Format of the document.
    pub format: u32,
    /// Name of the job.
    pub job: String,
    /// Where the run is kept.
    pub sink: RunSink,
    /// Result files to write.
    pub materialize: MaterializeMode,
    /// Concurrent trials.
    pub n_concurrent_trials: u32,
    /// Retry of infrastructure failures.
    pub retry: RetryPolicy,
    /// Rate limits of each worker.
    #[serde(default)]
    pub rate_limits: RunRateLimits,
    /// Metrics of the result.
    pub metrics: Vec<MetricKind>,
    /// Pool of the workers; `None` if trials ran in the coordinator's process.
    pub pool: Option<String>,
    /// Datasets, in the job's order.
    pub datasets: Vec<DatasetFacts>,
    /// The job's configuration: the content of `config.json`.
    pub config: serde_json::Value,
}

impl JobParameters {
    /// The parameters of a job.
    pub(super) fn new(
        job: &Job,
        datasets: Vec<DatasetFacts>,
        sink: RunSink,
        materialize: MaterializeMode,
        pool: Option<String>,
    ) -> Self {
        Self {
            format: FORMAT,
            job: job.name.clone(),
            sink,
            materialize,
            n_concurrent_trials: job.n_concurrent_trials,
            retry: job.retry,
            rate_limits: job.rate_limits(),
            metrics: job.metrics.clone(),
            pool,
            datasets,
            config: config::job_document(job),
        }
    }

    /// Reads the parameters of the last session in a run directory; `None` if there are none.
    ///
    /// # Errors
    /// [`RunError`] when they cannot be read, are damaged, or are of a newer format.
    pub fn read(layout: &RunLayout) -> Result<Option<Self>, RunError> {
        let path = layout.resume();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RunError::File { action: "read", path, source }),
        };
        let parameters: Self = serde_json::from_slice(&bytes)
            .map_err(|error| RunError::Damaged { path: path.clone(), reason: error.to_string() })?;
        match parameters.format {
            found if found > FORMAT => Err(RunError::Newer { path, found, known: FORMAT }),
            _ => Ok(Some(parameters)),
        }
    }
}

/// The catalog of a run, and the copy of its journal in it.
#[derive(Debug, Clone)]
pub struct SessionCatalog {
    catalog: Catalog,
    mirror: Arc<CatalogMirror>,
}

impl SessionCatalog {
    /// The catalog of the run in a directory.
    pub(super) fn new(store: Arc<dyn BlobStore>, layout: RunLayout, job: &str) -> Self {
        let catalog = Catalog::new(store);
        let mirror = Arc::new(CatalogMirror::new(catalog.clone(), layout, job.to_owned()));
        Self { catalog, mirror }
    }

    /// The second place of the journal.
    pub(super) fn mirror(&self) -> Arc<dyn JournalMirror> {
        Arc::clone(&self.mirror) as Arc<dyn JournalMirror>
    }

    /// Stores the files of a run directory that its session has written. Waits for the store for a
    /// while.
    pub(super) async fn store_files(
        &self,
        run: RunId,
        epoch: u32,
        layout: &RunLayout,
        files: SessionFiles,
    ) -> Result<(), CatalogError> {
        let outage = OutageLog::new("writing to the catalog");
        let (mut backoff, started) = (outage.backoff(), Instant::now());
        loop {
            let stored = match files {
                SessionFiles::Start => {
                    let paths = ["plan.json", "resume.json"].map(str::to_owned);
                    self.catalog.add_files(run, epoch, layout, &paths).await
                }
                SessionFiles::End => {
                    let of = layout.clone();
                    let paths = supervise::blocking(move || files_of_end(&of)).await;
                    self.catalog.replace_files(run, epoch, layout, &paths).await
                }
            };
            match stored {
                Err(error) if error.is_transient() && started.elapsed() < STORE_RETRY_PERIOD => {
                    backoff.wait_after_failure(&error).await;
                }
                stored => {
                    backoff.succeeded();
                    return stored;
                }
            }
        }
    }
}

/// Files of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionFiles {
    /// Those that it needs to be resumed.
    Start,
    /// All that are no copies of blobs.
    End,
}

/// Paths of the files of a run directory that are no copies of blobs, below it.
fn files_of_end(layout: &RunLayout) -> Vec<String> {
    let documents = [
        "plan.json",
        "resume.json",
        "manifest.json",
        layout::CONFIG,
        layout::INVOCATION,
        layout::RESULT,
    ];
    let mut paths: Vec<String> = documents.map(str::to_owned).to_vec();
    for directory in ["records", layout::TABLES] {
        let entries = std::fs::read_dir(layout.root().join(directory));
        let names = entries.into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let complete = names.filter(|name| !name.starts_with('.') && !name.ends_with(".partial"));
        paths.extend(complete.map(|name| format!("{directory}/{name}")));
    }
    paths
}

/// Documents of a session, written when it owns the run and before anything is offered.
#[derive(Debug)]
pub struct SessionDocuments {
    plan: PlanDocument,
    parameters: JobParameters,
    catalog: Option<SessionCatalog>,
}

impl SessionDocuments {
    /// Writes them.
    pub(super) async fn write(
        self,
        run: RunId,
        epoch: u32,
        layout: RunLayout,
    ) -> Result<(), RunError> {
        let Self { plan, parameters, catalog } = self;
        let of = layout.clone();
        supervise::blocking(move || {
            atomic_file::write_json(&of.plan(), &plan)?;
            atomic_file::write_json(&of.resume(), &parameters)
        })
        .await?;
        let Some(catalog) = catalog else { return Ok(()) };
        let stored = catalog.store_files(run, epoch, &layout, SessionFiles::Start).await;
        Ok(stored.map_err(JournalError::from)?)
    }

    /// Writes those of a run that was opened.
    pub(super) fn write_for(
        self,
        run: &OpenRun,
    ) -> impl Future<Output = Result<(), RunError>> + Send + use<> {
        self.write(run.id(), run.epoch(), run.layout().clone())
    }
}

/// A job with started outputs, ready to run.
pub(super) struct JobSession {
    pub(super) parameters: JobParameters,
    pub(super) run_dir: PathBuf,
    /// Directory of all jobs' state.
    pub(super) state: PathBuf,
    pub(super) plan: JobPlan,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) catalog: Option<SessionCatalog>,
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
    pub(super) stops: mpsc::Receiver<StopLevel>,
    pub(super) wait_policy: LockWaitPolicy,
    pub(super) reopen: Option<ReopenSelection>,
    pub(super) on_demand: Option<OnDemandTrials>,
}

impl JobSession {
    /// The documents to write for a plan.
    pub(super) fn documents(&self, plan: &JobPlan) -> SessionDocuments {
        SessionDocuments {
            plan: PlanDocument::from(plan),
            parameters: self.parameters.clone(),
            catalog: self.catalog.clone(),
        }
    }

    /// How its run is opened.
    pub(super) fn open_options(
        &self,
        plan: Digest,
        kv: Option<KvLockOptions>,
        timeouts: RemoteTimeouts,
    ) -> RunOpenOptions {
        let mirror = self.catalog.as_ref().map(SessionCatalog::mirror);
        // Workers continue while their coordinator is stopped or hangs; another may take over.
        let hung = kv.is_some() || self.wait_policy.hung;
        let wait_policy = LockWaitPolicy { hung, ..self.wait_policy };
        RunOpenOptions {
            layout: RunLayout::new(&self.run_dir),
            job: self.parameters.job.clone(),
            plan,
            permits: self.parameters.n_concurrent_trials as usize,
            retry: self.parameters.retry,
            lock: LockOptions { wait_policy, kv, mirror },
            timeouts,
            reopen: self.reopen.clone(),
        }
    }

    /// The planner of its trials; `control` is for the user of trials on demand.
    pub(super) fn planner(
        &mut self,
        plan: &Arc<JobPlan>,
        control: Arc<dyn RunControl>,
    ) -> JobPlanner {
        let planner =
            JobPlanner::new(Arc::clone(plan)).with_rate_limit(self.parameters.rate_limits);
        match self.on_demand.take() {
            Some(on_demand) => on_demand.attach(planner, plan, Arc::clone(&self.store), control),
            None => planner,
        }
    }
}
