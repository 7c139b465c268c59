//! Parameters of a job's sessions, as `resume.json` keeps them.

use rollout_engine::RunError;
use rollout_engine::journal::RunLayout;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::wire::offer::RunRateLimits;
use serde::{Deserialize, Serialize};

use crate::config::{self, Job};
use crate::events::MaterializeMode;
use crate::results::report::DatasetFacts;

/// Newest format of `resume.json`.
const FORMAT: u32 = 1;

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
    /// Budgets of model calls.
    #[serde(default)]
    pub budget: RunBudget,
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
            budget: job.budget,
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
