//! The interface of outputs, and their registration with the fan-out.

use std::fmt;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_protocol::event::RunEvent;
use rollout_worker::store::BlobStore;

use super::problem::Problems;
use super::sinks::files::{RunFiles, Unwritten};
use super::{ReportError, RunFacts};
use crate::results::report::JobResult;

/// A batch of events, shared by all sinks.
pub type Batch = Arc<Vec<RunEvent>>;

/// An output of a run's events.
///
/// # Obligations of every implementation
/// * Batches are told in the order in which they come.
/// * [`take`](Self::take) may wait, which holds the run back. A sink that must not do so drops or
///   merges events instead.
/// * A sink that fails takes the remaining batches in silence, and says why in
///   [`finish`](Self::finish).
#[async_trait]
pub trait EventSink: Send {
    /// Takes a batch.
    async fn take(&mut self, batch: &Batch);

    /// Takes warnings of the sinks themselves. They are no part of the run's stream.
    async fn warn(&mut self, warnings: &Batch) {
        self.take(warnings).await;
    }

    /// Waits for work on earlier batches that may still warn. No batch of the run follows.
    async fn drain(&mut self) {}

    /// Tells the result, if the run ended, and closes the output.
    async fn finish(self: Box<Self>, result: Option<Arc<JobResult>>) -> Result<Told, ReportError>;
}

/// Facts of a sink for the report of the run.
#[derive(Debug, Default)]
pub struct Told {
    /// Trials whose files could not be written, when trials have directories.
    pub trial_files: Option<Unwritten>,
}

/// The run that a sink is started for.
#[derive(Debug)]
pub struct SinkContext<'a> {
    /// Facts of the run.
    pub facts: &'a RunFacts,
    /// Where records, outputs and logs are read from.
    pub store: &'a Arc<dyn BlobStore>,
    pub(super) problems: &'a Problems,
}

/// Starts a sink for a run.
pub type StartSink = Box<dyn FnOnce(&SinkContext<'_>) -> io::Result<Box<dyn EventSink>> + Send>;

/// The sinks of a run, in the order in which they hear of events.
pub struct Sinks {
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) registered: Vec<StartSink>,
}

impl Sinks {
    /// The files of the run directory, which every run has, with records, outputs and logs from
    /// `store`.
    pub fn new(store: Arc<dyn BlobStore>) -> Self {
        let files: StartSink = Box::new(|context| Ok(Box::new(RunFiles::new(context))));
        Self { store, registered: vec![files] }
    }

    /// The same with another sink after them.
    #[must_use]
    pub fn with(mut self, sink: StartSink) -> Self {
        self.registered.push(sink);
        self
    }
}

impl fmt::Debug for Sinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sinks").field("store", &self.store).finish_non_exhaustive()
    }
}
