//! Outputs of a search.

use std::io;
use std::sync::Arc;

use rollout_base::supervise::{self, Task};
use rollout_protocol::event::RunEvent;
use tokio::sync::mpsc;

use super::fan_out::FanOut;
use super::{ReportError, RunResult, SinkStarter, WAITING_BATCHES};

/// Reports a search to its sinks.
#[derive(Debug)]
pub struct SearchReporter {
    task: Task<FanOut>,
}

impl SearchReporter {
    /// Starts the outputs. Send events to the sender as for a job. The reporter ends when every
    /// sender is dropped.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(sinks: Vec<SinkStarter>) -> io::Result<(mpsc::Sender<Vec<RunEvent>>, Self)> {
        let (batches, mut receiver) = mpsc::channel(WAITING_BATCHES);
        let mut fan_out = FanOut::for_search(sinks)?;
        let task = supervise::spawn("reporter", async move {
            while let Some(batch) = receiver.recv().await {
                fan_out.accept(batch).await;
            }
            fan_out.drain().await;
            fan_out
        });
        Ok((batches, Self { task }))
    }

    /// Waits until every sender is dropped and everything is reported; `overview` is the search's,
    /// if it ended.
    ///
    /// # Errors
    /// The first output that failed.
    pub async fn finish(self, overview: Option<serde_json::Value>) -> Result<(), ReportError> {
        let fan_out = self.task.await?;
        let result = overview.map(|overview| RunResult::Search(Arc::new(overview)));
        fan_out.finish(result).await.map(drop)
    }
}
