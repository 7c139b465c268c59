//! Stop requests, forwarded to search and engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollout_base::supervise::{self, Task};
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::mpsc;

/// Forwards stop requests to the parts of a search.
#[derive(Debug, Clone)]
pub(crate) struct SearchStops {
    /// Read by the search between two blocks.
    pub(crate) flag: Arc<AtomicBool>,
    /// Read by the engine.
    engine: mpsc::Sender<StopLevel>,
}

impl SearchStops {
    /// Forwards the stop requests of a user. Returns the receiver for the engine.
    pub(crate) fn fork(
        mut requests: mpsc::Receiver<StopLevel>,
    ) -> (Self, mpsc::Receiver<StopLevel>, Task<()>) {
        let (engine, stops) = mpsc::channel(4);
        let this = Self { flag: Arc::default(), engine };
        let passing = this.clone();
        let task = supervise::spawn("stops of the search", async move {
            while let Some(level) = requests.recv().await {
                passing.stop_search();
                passing.stop_engine(level).await;
            }
        });
        (this, stops, task)
    }

    /// Stops the search.
    pub(crate) fn stop_search(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Stops the engine.
    pub(crate) async fn stop_engine(&self, level: StopLevel) {
        // An engine that has ended needs no stop.
        let _gone = self.engine.send(level).await;
    }
}
