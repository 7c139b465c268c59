//! Outputs of a run: files, terminal, JSON lines. All of them consume one stream of events and
//! never query the engine.
//!
//! The engine sends batches; the [`Reporter`]'s task keeps the ledger of results and passes the
//! batches, shared without copies, to the registered [`EventSink`]s. The run waits for durable ones
//! (files, JSON lines), never for lossy ones (the terminal).

mod fan_out;
mod job;
mod lossy;
mod running;
mod search;
mod sink;
mod sink_warnings;
pub mod sinks;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use rollout_base::supervise::{self, Task, TaskPanic};
use rollout_protocol::event::RunEvent;
use rollout_protocol::spec::guardrail::Guardrail;
use rollout_protocol::spec::metric::MetricKind;
use rollout_store::{BlobStore, StoreUrl};
use tokio::sync::mpsc;

use self::fan_out::FanOut;
use self::job::JobFold;
pub use self::search::SearchReporter;
pub use self::sink::{
    Delivery, EventBatch, EventSink, RunResult, SinkReport, SinkStarter, Workload,
};
pub use self::sinks::files::UnwrittenTrials;
pub use crate::results::files::MaterializeMode;
use crate::results::files::{FileError, RegistrationError};
use crate::results::metrics::{AgentTotal, Tally};
use crate::results::report::{DatasetFacts, FailureGroup, JobResult, TaskFactsIndex};
use crate::results::tables::TablesError;

/// Batches queued for the reporter before the engine blocks.
const WAITING_BATCHES: usize = 16;

/// Facts about a run that are known before it starts and are not in its events.
#[derive(Debug, Clone)]
pub struct JobFacts {
    /// The run's directory. Sinks write to it only after the `RunStarted` event.
    pub run_dir: PathBuf,
    /// Agents in the order of the plan, with the number of their trials.
    pub agents: Vec<AgentTotal>,
    /// Metrics that the job requests.
    pub metrics: Vec<MetricKind>,
    /// Bounds on metrics that the job states; metadata.
    pub guardrails: Vec<Guardrail>,
    /// Result files to write.
    pub materialize: MaterializeMode,
    /// The job's configuration, for `config.json`.
    pub config: serde_json::Value,
    /// The blob store, for `store.json`; `None` to write no `store.json`.
    pub store: Option<StoreUrl>,
    /// Datasets, in the job's order.
    pub datasets: Vec<DatasetFacts>,
    /// Tasks.
    pub tasks: Arc<TaskFactsIndex>,
    /// Command line of the run, for `invocation.json`; `None` keeps an existing file.
    pub invocation: Option<serde_json::Value>,
    /// When the user wants the session to end at once: outputs stop waiting for services then.
    pub stopped_at_once: StopAtOnce,
}

/// Resolves when the user wants the session to end at once; pending until then.
pub type StopAtOnce = Shared<BoxFuture<'static, ()>>;

/// Of a session that no user stops.
pub fn never_stopped() -> StopAtOnce {
    std::future::pending().boxed().shared()
}

/// Final report of a run.
#[derive(Debug)]
pub struct RunReport {
    /// The result; `None` when the run did not start or did not end.
    pub result: Option<Arc<JobResult>>,
    /// Totals of the settled trials.
    pub tally: Tally,
    /// Failed trials by the type of their error.
    pub failures: Vec<FailureGroup>,
    /// Whether trials have directories.
    pub has_trial_files: bool,
    /// Trials whose files could not be written. Their results are kept; the next session writes
    /// the files.
    pub unwritten: UnwrittenTrials,
}

/// Failures of an output. They do not affect the run's records.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file of the run directory cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The run is not registered in its blob store.
    #[error(transparent)]
    Unregistered(#[from] RegistrationError),
    /// The analysis tables cannot be written.
    #[error("cannot write the analysis tables")]
    Tables(#[from] TablesError),
    /// Standard output cannot be written.
    #[error("cannot write the JSON lines")]
    Json(#[source] io::Error),
    /// A task panicked: a bug.
    #[error(transparent)]
    Panicked(#[from] TaskPanic),
}

/// Reports a job to its sinks.
#[derive(Debug)]
pub struct Reporter {
    task: Task<Result<RunReport, ReportError>>,
}

impl Reporter {
    /// Starts the task and threads of the outputs: the files of the run directory, with records,
    /// outputs and logs from `store`, and `sinks`. Send events to the sender in order, in batches;
    /// a send waits while the outputs are behind. The reporter ends when every sender is dropped.
    /// A failed send means that the reporter has ended: the run's records do not depend on it, and
    /// [`finish`](Self::finish) returns the cause.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(
        facts: JobFacts,
        store: Arc<dyn BlobStore>,
        sinks: Vec<SinkStarter>,
    ) -> io::Result<(mpsc::Sender<Vec<RunEvent>>, Self)> {
        let fan_out = FanOut::for_job(&facts, store, sinks)?;
        Ok(Self::with_outputs(facts, fan_out))
    }

    /// The same for a job on a server, which keeps the files of the run.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start_hosted(
        facts: JobFacts,
        sinks: Vec<SinkStarter>,
    ) -> io::Result<(mpsc::Sender<Vec<RunEvent>>, Self)> {
        let fan_out = FanOut::for_hosted_job(&facts, sinks)?;
        Ok(Self::with_outputs(facts, fan_out))
    }

    fn with_outputs(facts: JobFacts, fan_out: FanOut) -> (mpsc::Sender<Vec<RunEvent>>, Self) {
        let (batches, mut receiver) = mpsc::channel(WAITING_BATCHES);
        let mut job = JobFold::new(facts, fan_out);
        let task = supervise::spawn("reporter", async move {
            while let Some(batch) = receiver.recv().await {
                job.accept(batch).await;
            }
            job.finish().await
        });
        (batches, Self { task })
    }

    /// Waits until every sender is dropped and everything is reported.
    ///
    /// # Errors
    /// The first output that failed.
    pub async fn finish(self) -> Result<RunReport, ReportError> {
        self.task.await?
    }
}
