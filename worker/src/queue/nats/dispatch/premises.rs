//! Streams, consumers and buckets stay where they are: what is missing is made again, over each new
//! connection and every few seconds. A server that lost its disk has nothing, and workers can only
//! ask for work when they can say what they run.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::wire::offer::SizeClass;
use tokio::sync::Mutex;

use crate::queue::nats::connect::Nats;
use crate::queue::nats::names::Name;
use crate::queue::nats::setup::SetupError;
use crate::queue::traits::QueueError;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(10);
/// Time to the next look after one in vain.
const AGAIN: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Premises {
    nats: Nats,
    pool: Name,
    classes: Vec<SizeClass>,
    preparing: Mutex<()>,
}

impl Premises {
    pub(super) fn new(nats: Nats, pool: Name, classes: Vec<SizeClass>) -> Self {
        Self { nats, pool, classes, preparing: Mutex::default() }
    }

    /// Makes what is missing.
    pub(super) async fn prepare(&self) -> Result<(), QueueError> {
        let _one_at_a_time = self.preparing.lock().await;
        self.nats.prepare(&self.pool, &self.classes).await.map_err(|error| match error {
            SetupError::Queue(error) => error,
            SetupError::Differs { .. } => QueueError::Denied { reason: error.to_string() },
        })
    }

    pub(super) async fn keep(self: Arc<Self>) {
        let mut contact = self.nats.contact();
        let mut pause = LOOK;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = contact.changed() => {}
            }
            if !contact.borrow_and_update().up {
                pause = LOOK;
                continue;
            }
            pause = match self.prepare().await {
                Ok(()) => LOOK,
                Err(QueueError::Denied { reason }) => {
                    tracing::error!("the server is not set up as it must be: {reason}");
                    LOOK
                }
                Err(error) => {
                    tracing::debug!("nothing is made on the server: {error}");
                    AGAIN
                }
            };
        }
    }
}
