//! The interface of event sinks and their starters.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_protocol::event::RunEvent;

use super::sinks::files::UnwrittenTrials;
use super::{JobFacts, ReportError};
use crate::results::report::JobResult;

/// A batch of events, shared by all sinks.
pub type EventBatch = Arc<Vec<RunEvent>>;

/// Delivery of events to a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Every event arrives. The run waits for the sink.
    Durable,
    /// The run never waits for the sink, which loses events that it has no time for.
    Lossy,
}

/// An output of a run's events.
///
/// # Obligations of every implementation
/// * Process batches in the order in which they arrive.
/// * With [`Delivery::Durable`], [`accept`](Self::accept) may wait, which blocks the run.
/// * Before `RunOpened` the run may be refused: a sink replaces files of earlier runs only after it.
///   The results of earlier sessions come before it, with `replayed`.
/// * A sink that fails ignores the remaining batches and returns the error from
///   [`finish`](Self::finish).
#[async_trait]
pub trait EventSink: Send {
    /// Whether the run waits for the sink.
    fn delivery(&self) -> Delivery {
        Delivery::Durable
    }

    /// Processes a batch.
    async fn accept(&mut self, batch: &EventBatch);

    /// Notes how many events were dropped since the last batch. Only for [`Delivery::Lossy`].
    async fn dropped(&mut self, _events: u64) {}

    /// Processes warnings of the sinks themselves, which are not part of the run's stream.
    async fn warn(&mut self, warnings: &EventBatch) {
        self.accept(warnings).await;
    }

    /// Waits for work on earlier batches that may still produce warnings. No batch of the run
    /// follows.
    async fn drain(&mut self) {}

    /// Writes the result, if the run ended, and closes the output.
    async fn finish(self: Box<Self>, result: Option<RunResult>) -> Result<SinkReport, ReportError>;
}

/// The result of a run.
#[derive(Debug, Clone)]
pub enum RunResult {
    /// Result of a job.
    Job(Arc<JobResult>),
    /// Overview of a search, as a JSON object.
    Search(Arc<serde_json::Value>),
}

/// The workload of a run.
#[derive(Debug, Clone, Copy)]
pub enum Workload<'a> {
    /// A job with facts about it.
    Job(&'a JobFacts),
    /// A search. Its events contain all facts about it.
    Search,
}

/// Contribution of a sink to the run's report.
#[derive(Debug, Default)]
pub struct SinkReport {
    /// Trials whose files could not be written, if trials have directories.
    pub trial_files: Option<UnwrittenTrials>,
}

/// Starts a sink for a run of a workload.
pub type SinkStarter = Box<dyn FnOnce(Workload<'_>) -> io::Result<Box<dyn EventSink>> + Send>;
