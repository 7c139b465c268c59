//! Maintenance of streams, consumers and buckets: missing ones are created again, over each new
//! connection and every few seconds. A server that lost its disk has none, and workers can pull
//! only when they can send heartbeats.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::wire::offer::SizeClass;
use tokio::sync::Mutex;

use crate::nats::connect::Nats;
use crate::nats::names::NatsName;
use crate::nats::setup::NatsSetupError;
use crate::traits::QueueError;

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time to the next check after a failed one.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct StreamMaintainer {
    nats: Nats,
    pool: NatsName,
    classes: Vec<SizeClass>,
    preparing: Mutex<()>,
}

impl StreamMaintainer {
    pub(super) fn new(nats: Nats, pool: NatsName, classes: Vec<SizeClass>) -> Self {
        Self { nats, pool, classes, preparing: Mutex::default() }
    }

    /// Creates what is missing.
    pub(super) async fn prepare(&self) -> Result<(), QueueError> {
        let _one_at_a_time = self.preparing.lock().await;
        self.nats.prepare(&self.pool, &self.classes).await.map_err(|error| match error {
            NatsSetupError::Queue(error) => error,
            NatsSetupError::Differs { .. }
            | NatsSetupError::Resources { .. }
            | NatsSetupError::Copies { .. } => QueueError::Denied { reason: error.to_string() },
        })
    }

    pub(super) async fn run(self: Arc<Self>) {
        let mut contact = self.nats.connection_status();
        let mut pause = CHECK_INTERVAL;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = contact.changed() => {}
            }
            if !contact.borrow_and_update().up {
                pause = CHECK_INTERVAL;
                continue;
            }
            pause = match self.prepare().await {
                Ok(()) => CHECK_INTERVAL,
                Err(QueueError::Denied { reason }) => {
                    tracing::error!("the server is not set up correctly: {reason}");
                    CHECK_INTERVAL
                }
                Err(error) => {
                    tracing::debug!("cannot check the streams on the server: {error}");
                    RETRY_PAUSE
                }
            };
        }
    }
}
