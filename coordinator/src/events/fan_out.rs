//! Distribution of events to the sinks.

use std::fmt;
use std::io;
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_store::BlobStore;

use super::lossy::LossyDelivery;
use super::sink::{Delivery, EventSink, RunResult, SinkReport, SinkStarter, Workload};
use super::sink_warnings::SinkWarnings;
use super::sinks::files::RunFiles;
use super::{JobFacts, ReportError};

/// The sinks of a run.
pub(super) struct FanOut {
    sinks: Vec<Box<dyn EventSink>>,
    warnings: SinkWarnings,
}

impl fmt::Debug for FanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanOut").field("sinks", &self.sinks.len()).finish_non_exhaustive()
    }
}

/// Gives a sink the delivery that it wants.
fn deliver(sink: Box<dyn EventSink>) -> Box<dyn EventSink> {
    match sink.delivery() {
        Delivery::Durable => sink,
        Delivery::Lossy => Box::new(LossyDelivery::start(sink)),
    }
}

impl FanOut {
    /// Starts the sinks of a job: the files of its run directory, with records, outputs and logs
    /// from `store`, then `sinks`.
    pub(super) fn for_job(
        facts: &JobFacts,
        store: Arc<dyn BlobStore>,
        sinks: Vec<SinkStarter>,
    ) -> io::Result<Self> {
        let warnings = SinkWarnings::default();
        let files: Box<dyn EventSink> =
            Box::new(RunFiles::new(facts.clone(), store, warnings.clone()));
        let mut all = vec![files];
        for start in sinks {
            all.push(deliver(start(Workload::Job(facts))?));
        }
        Ok(Self { sinks: all, warnings })
    }

    /// Starts the sinks of a job whose files are elsewhere.
    pub(super) fn for_hosted_job(facts: &JobFacts, sinks: Vec<SinkStarter>) -> io::Result<Self> {
        let sinks = sinks.into_iter().map(|start| start(Workload::Job(facts)).map(deliver));
        Ok(Self { sinks: sinks.collect::<Result<_, _>>()?, warnings: SinkWarnings::default() })
    }

    /// Starts the sinks of a search.
    pub(super) fn for_search(sinks: Vec<SinkStarter>) -> io::Result<Self> {
        let sinks = sinks.into_iter().map(|start| start(Workload::Search).map(deliver));
        Ok(Self { sinks: sinks.collect::<Result<_, _>>()?, warnings: SinkWarnings::default() })
    }

    /// Passes events to all sinks.
    pub(super) async fn accept(&mut self, batch: Vec<RunEvent>) {
        let batch = Arc::new(batch);
        for sink in &mut self.sinks {
            sink.accept(&batch).await;
        }
        self.forward_warnings().await;
    }

    async fn forward_warnings(&mut self) {
        let warnings: Vec<RunEvent> = (self.warnings.take().into_iter())
            .map(|message| RunEvent { at: Timestamp::now(), kind: EventKind::Warning { message } })
            .collect();
        if warnings.is_empty() {
            return;
        }
        let warnings = Arc::new(warnings);
        for sink in &mut self.sinks {
            sink.warn(&warnings).await;
        }
    }

    /// Waits for pending work of the sinks that may still produce warnings.
    pub(super) async fn drain(&mut self) {
        for sink in &mut self.sinks {
            sink.drain().await;
        }
        self.forward_warnings().await;
    }

    /// Passes the result, if the run ended, to every sink and closes it. Closes all sinks before
    /// returning the first error.
    pub(super) async fn finish(
        self,
        result: Option<RunResult>,
    ) -> Result<Vec<SinkReport>, ReportError> {
        let mut reports = Vec::new();
        for sink in self.sinks {
            reports.push(sink.finish(result.clone()).await);
        }
        reports.into_iter().collect()
    }
}
