//! Delivery to sinks that must not hold a run back.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::supervise::{self, Task};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::ReportError;
use super::sink::{EventBatch, EventSink, RunResult, SinkReport};

/// Batches that wait for the sink before further ones are dropped.
const WAITING_BATCHES: usize = 1024;

/// How long the end of a run waits for the sink.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A message to the task of the sink.
enum LossyMessage {
    /// A batch, and the number of events that were dropped before it.
    Events { batch: EventBatch, dropped: u64 },
    /// Warnings of the sinks themselves.
    Warnings(EventBatch),
    /// The end of the run, and the number of events that were dropped before it.
    Result { result: Option<RunResult>, dropped: u64 },
}

/// Runs a sink in a task of its own, and drops events that the sink has no time for.
#[derive(Debug)]
pub(super) struct LossyDelivery {
    messages: mpsc::Sender<LossyMessage>,
    dropped: u64,
    task: Task<Result<SinkReport, ReportError>>,
}

impl LossyDelivery {
    /// Starts the task of a sink.
    pub(super) fn start(sink: Box<dyn EventSink>) -> Self {
        let (messages, receiver) = mpsc::channel(WAITING_BATCHES);
        Self { messages, dropped: 0, task: supervise::spawn("lossy sink", feed(sink, receiver)) }
    }
}

async fn feed(
    mut sink: Box<dyn EventSink>,
    mut messages: mpsc::Receiver<LossyMessage>,
) -> Result<SinkReport, ReportError> {
    while let Some(message) = messages.recv().await {
        if let LossyMessage::Events { dropped: events @ 1.., .. }
        | LossyMessage::Result { dropped: events @ 1.., .. } = message
        {
            sink.dropped(events).await;
        }
        match message {
            LossyMessage::Events { batch, .. } => sink.accept(&batch).await,
            LossyMessage::Warnings(warnings) => sink.warn(&warnings).await,
            LossyMessage::Result { result, .. } => return sink.finish(result).await,
        }
    }
    Ok(SinkReport::default())
}

#[async_trait]
impl EventSink for LossyDelivery {
    async fn accept(&mut self, batch: &EventBatch) {
        let (batch, events) = (Arc::clone(batch), batch.len() as u64);
        let message = LossyMessage::Events { batch, dropped: self.dropped };
        match self.messages.try_send(message) {
            Ok(()) => self.dropped = 0,
            Err(_) => self.dropped += events,
        }
    }

    async fn warn(&mut self, warnings: &EventBatch) {
        let message = LossyMessage::Warnings(Arc::clone(warnings));
        if self.messages.try_send(message).is_err() {
            self.dropped += warnings.len() as u64;
        }
    }

    async fn finish(self: Box<Self>, result: Option<RunResult>) -> Result<SinkReport, ReportError> {
        let Self { messages, task, dropped } = *self;
        let finishing = async {
            // A sink that panicked takes no message; its task returns the panic.
            let _ended = messages.send(LossyMessage::Result { result, dropped }).await;
            task.await
        };
        match timeout(FINISH_TIMEOUT, finishing).await {
            Ok(report) => report?,
            Err(_) => {
                tracing::warn!("an output did not end in time and was abandoned");
                Ok(SinkReport::default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rollout_protocol::event::EventKind;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::results::testing::event;

    /// Processes an event for each permit.
    #[derive(Debug, Clone)]
    struct SlowSink {
        permits: Arc<Semaphore>,
        /// Events that were processed, and those that it learned were dropped.
        seen: Arc<Mutex<(u64, u64)>>,
    }

    #[async_trait]
    impl EventSink for SlowSink {
        async fn accept(&mut self, batch: &EventBatch) {
            for _ in batch.iter() {
                self.permits.acquire().await.expect("open").forget();
                self.seen.lock().expect("not poisoned").0 += 1;
            }
        }

        async fn dropped(&mut self, events: u64) {
            self.seen.lock().expect("not poisoned").1 += events;
        }

        async fn finish(
            self: Box<Self>,
            _result: Option<RunResult>,
        ) -> Result<SinkReport, ReportError> {
            Ok(SinkReport::default())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_sink_loses_events_and_learns_how_many() {
        let sink = SlowSink { permits: Arc::new(Semaphore::new(0)), seen: Arc::default() };
        let (permits, seen) = (Arc::clone(&sink.permits), Arc::clone(&sink.seen));
        let mut delivery = Box::new(LossyDelivery::start(Box::new(sink)));
        let batch = Arc::new(vec![event(0, EventKind::RunOpened), event(1, EventKind::RunOpened)]);
        for _ in 0..WAITING_BATCHES + 50 {
            delivery.accept(&batch).await;
        }
        permits.add_permits(10 * WAITING_BATCHES);
        delivery.finish(None).await.expect("finished");
        let (processed, dropped) = *seen.lock().expect("not poisoned");
        assert_eq!((processed + dropped, dropped), (2 * (WAITING_BATCHES as u64 + 50), 100));
    }

    #[tokio::test(start_paused = true)]
    async fn run_ends_without_a_sink_that_hangs() {
        let sink = SlowSink { permits: Arc::new(Semaphore::new(0)), seen: Arc::default() };
        let seen = Arc::clone(&sink.seen);
        let mut delivery = Box::new(LossyDelivery::start(Box::new(sink)));
        delivery.accept(&Arc::new(vec![event(0, EventKind::RunOpened)])).await;
        delivery.finish(None).await.expect("abandoned");
        assert_eq!(*seen.lock().expect("not poisoned"), (0, 0));
    }
}
