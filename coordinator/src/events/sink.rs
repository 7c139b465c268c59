//! The interface of outputs, and how they are started.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_protocol::event::RunEvent;

use super::sinks::files::UnwrittenTrials;
use super::{JobFacts, ReportError};
use crate::results::report::JobResult;

/// A batch of events, shared by all sinks.
pub type EventBatch = Arc<Vec<RunEvent>>;

/// An output of a run's events.
///
/// # Obligations of every implementation
/// * Batches are told in the order in which they come.
/// * [`accept`](Self::accept) may wait, which holds the run back. A sink that must not do so drops or
///   merges events instead.
/// * A sink that fails takes the remaining batches in silence, and says why in
///   [`finish`](Self::finish).
#[async_trait]
pub trait EventSink: Send {
    /// Takes a batch.
    async fn accept(&mut self, batch: &EventBatch);

    /// Takes warnings of the sinks themselves. They are no part of the run's stream.
    async fn warn(&mut self, warnings: &EventBatch) {
        self.accept(warnings).await;
    }

    /// Waits for work on earlier batches that may still warn. No batch of the run follows.
    async fn drain(&mut self) {}

    /// Tells the result, if the run ended, and closes the output.
    async fn finish(self: Box<Self>, result: Option<RunResult>) -> Result<SinkReport, ReportError>;
}

/// The result of a run.
#[derive(Debug, Clone)]
pub enum RunResult {
    /// Of a job.
    Job(Arc<JobResult>),
    /// Of a search: its overview as a JSON object.
    Search(Arc<serde_json::Value>),
}

/// The workload of a run.
#[derive(Debug, Clone, Copy)]
pub enum Workload<'a> {
    /// A job, and facts about it.
    Job(&'a JobFacts),
    /// A search. Its events say everything about it.
    Search,
}

/// Facts of a sink for the report of the run.
#[derive(Debug, Default)]
pub struct SinkReport {
    /// Trials whose files could not be written, when trials have directories.
    pub trial_files: Option<UnwrittenTrials>,
}

/// Starts a sink for a run of a workload.
pub type SinkStarter = Box<dyn FnOnce(Workload<'_>) -> io::Result<Box<dyn EventSink>> + Send>;
