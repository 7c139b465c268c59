//! Outputs of a run: files, a terminal, lines of JSON. All of them consume one stream of events and
//! never ask the engine.
//!
//! The engine hands over batches; the [`Reporter`]'s task keeps the ledger of results and passes the
//! batches on to the [`EventSink`]s that were registered, shared, not copied. Files and JSON lines
//! hold the run back when they cannot follow; the terminal never does.

mod fan_out;
mod job;
mod search;
mod sink;
mod sink_warnings;
pub mod sinks;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rollout_protocol::event::RunEvent;
use rollout_protocol::spec::metric::MetricKind;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise::{self, Task, TaskPanic};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::fan_out::FanOut;
use self::job::JobFold;
pub use self::search::SearchReporter;
pub use self::sink::{EventBatch, EventSink, RunResult, SinkReport, SinkStarter, Workload};
pub use self::sinks::files::UnwrittenTrials;
use crate::results::files::FileError;
use crate::results::metrics::{AgentTotal, Tally};
use crate::results::report::{DatasetFacts, FailureGroup, JobResult, TaskFactsIndex};

/// Batches that wait for the reporter; more hold the engine back.
const WAITING_BATCHES: usize = 16;

/// What of a run becomes files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum MaterializeMode {
    /// `config.json` and `result.json` of the job; records and blobs hold the rest.
    None,
    /// A directory for every trial, too.
    #[default]
    Full,
}

/// What is known of a run before it starts and no event says.
#[derive(Debug, Clone)]
pub struct JobFacts {
    /// The run's directory. Nothing is written to it before the event that the run started.
    pub run_dir: PathBuf,
    /// Agents in the order of the plan, with the number of their trials.
    pub agents: Vec<AgentTotal>,
    /// Metrics that the job asks for.
    pub metrics: Vec<MetricKind>,
    /// What becomes files.
    pub materialize: MaterializeMode,
    /// The job's configuration, for `config.json`.
    pub config: serde_json::Value,
    /// The directory of the blob store, for `store.json`; nothing where none is written.
    pub blobs: Option<PathBuf>,
    /// Its datasets, in the job's order.
    pub datasets: Vec<DatasetFacts>,
    /// Its tasks.
    pub tasks: Arc<TaskFactsIndex>,
    /// How the run was started, for `invocation.json`; what is there stays when absent.
    pub invocation: Option<serde_json::Value>,
}

/// What the reporter knows when the run is over.
#[derive(Debug)]
pub struct RunReport {
    /// The result; nothing when the run did not start or did not end.
    pub result: Option<Arc<JobResult>>,
    /// Totals of what was settled.
    pub tally: Tally,
    /// Failed trials by the type of their error.
    pub failures: Vec<FailureGroup>,
    /// Whether trials have directories.
    pub has_trial_files: bool,
    /// Trials whose files could not be written. Their results are kept; the next session writes
    /// the files.
    pub unwritten: UnwrittenTrials,
}

/// Why an output failed. The run's records are not touched by that.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file of the run directory.
    #[error(transparent)]
    File(#[from] FileError),
    /// Standard output.
    #[error("cannot write the lines of JSON")]
    Json(#[source] io::Error),
    /// A defect.
    #[error(transparent)]
    Panicked(#[from] TaskPanic),
}

/// Tells a job to its sinks.
#[derive(Debug)]
pub struct Reporter {
    task: Task<Result<RunReport, ReportError>>,
}

impl Reporter {
    /// Starts the task and threads of the outputs: the files of the run directory, with records,
    /// outputs and logs from `store`, and `sinks`. Events go to the sender, in their order, in
    /// batches; a send waits while the outputs cannot follow. The reporter ends when every sender
    /// is gone. A send that fails means that the reporter is gone: the run's records do not depend
    /// on it, and [`finish`](Self::finish) says what happened.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(
        facts: JobFacts,
        store: Arc<dyn BlobStore>,
        sinks: Vec<SinkStarter>,
    ) -> io::Result<(mpsc::Sender<Vec<RunEvent>>, Self)> {
        let (batches, mut receiver) = mpsc::channel(WAITING_BATCHES);
        let fan_out = FanOut::for_job(&facts, store, sinks)?;
        let mut job = JobFold::new(facts, fan_out);
        let task = supervise::spawn("reporter", async move {
            while let Some(batch) = receiver.recv().await {
                job.accept(batch).await;
            }
            job.finish().await
        });
        Ok((batches, Self { task }))
    }

    /// Waits until every sender is gone and everything is told.
    ///
    /// # Errors
    /// The first output that failed.
    pub async fn finish(self) -> Result<RunReport, ReportError> {
        self.task.await?
    }
}
