//! Heartbeats of other workers, for claims that no coordinator answers.
//!
//! They are read on request: if all workers followed each other's heartbeats, messages would grow
//! with the square of the workers. Ages are by the server's clock.

use std::time::Duration;

use rollout_protocol::wire::claim::Claim;
use rollout_protocol::wire::heartbeat::Heartbeat;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::nats::client::NatsClient;
use crate::nats::error::NatsError;
use crate::nats::snapshot;

/// Claims within this time share one read.
const CACHE_LIFETIME: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct PeerHeartbeats {
    live: Mutex<Option<(Instant, Vec<Heartbeat>)>>,
}

impl PeerHeartbeats {
    /// Whether a live worker contests the claim.
    pub(super) async fn is_contested(
        &self,
        client: &NatsClient,
        claim: &Claim,
    ) -> Result<bool, NatsError> {
        let mut live = self.live.lock().await;
        let known = live.take().filter(|(at, _)| at.elapsed() < CACHE_LIFETIME);
        let (at, heartbeats) = match known {
            Some(known) => known,
            None => (Instant::now(), read_live(client).await?),
        };
        let contested = heartbeats.iter().any(|heartbeat| claim.is_contested_by(heartbeat));
        *live = Some((at, heartbeats));
        Ok(contested)
    }
}

async fn read_live(client: &NatsClient) -> Result<Vec<Heartbeat>, NatsError> {
    let found = snapshot::read_bucket(client, &client.names.workers).await?;
    let live = found.iter().filter(|aged| aged.age < client.options.lease);
    Ok(live.filter_map(|aged| serde_json::from_slice(&aged.stored.payload).ok()).collect())
}
