//! The last heartbeat of every worker, followed as they are sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Subscriber;
use futures_util::StreamExt as _;
use rollout_base::supervise::{self, Task};
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::id::WorkerId;
use rollout_protocol::wire::heartbeat::{Heartbeat, ReceivedHeartbeat};

use crate::nats::client::NatsClient;
use crate::nats::error::NatsError;
use crate::nats::{names, snapshot};

/// A worker without a heartbeat for this long is forgotten, like on the server.
const RETENTION: Duration = Duration::from_secs(3600);
/// Larger heartbeats are ignored. Thousands of executions fit.
const MAX_HEARTBEAT_BYTES: usize = 4 * 1024 * 1024;
/// Time between two attempts to read the bucket.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Heartbeats with their arrival times, by a clock that stops without the server.
#[derive(Debug)]
pub(super) struct HeartbeatWatch {
    client: Arc<NatsClient>,
    known: Arc<KnownHeartbeats>,
    /// When this watch began, and the age of the bucket at that time.
    since: Duration,
    bucket_age: Duration,
    _task: Task<()>,
}

#[derive(Debug, Default)]
struct KnownHeartbeats {
    heartbeats: Mutex<HashMap<WorkerId, TimedHeartbeat>>,
    malformed: WarningLimiter,
}

/// A heartbeat, when it arrived, and its age at that time.
type TimedHeartbeat = (Heartbeat, Duration, Duration);

impl KnownHeartbeats {
    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, TimedHeartbeat>> {
        self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, payload: &[u8], at: Duration, old: Option<Duration>) {
        if payload.is_empty() || payload.len() > MAX_HEARTBEAT_BYTES {
            return;
        }
        match serde_json::from_slice::<Heartbeat>(payload) {
            Ok(heartbeat) => match old {
                None => {
                    self.lock().insert(heartbeat.worker.clone(), (heartbeat, at, Duration::ZERO));
                }
                Some(old) => {
                    self.lock().entry(heartbeat.worker.clone()).or_insert((heartbeat, at, old));
                }
            },
            Err(error) => {
                if let Some(more) = self.malformed.record() {
                    tracing::warn!(
                        "cannot parse a heartbeat: {error} ({more} more like it since the last \
                         warning)"
                    );
                }
            }
        }
    }
}

impl HeartbeatWatch {
    pub(super) async fn watch(client: Arc<NatsClient>) -> Result<Self, NatsError> {
        let subject = names::key_subject(&client.names.workers, "*");
        let subscriber = (client.inner.subscribe(subject).await)
            .map_err(|error| NatsError::Unreachable(error.to_string()))?;
        let known = Arc::<KnownHeartbeats>::default();
        let since = client.incarnation.online_time();
        let bucket_age =
            snapshot::stream_age(&client, &names::bucket_stream(&client.names.workers)).await?;
        read_bucket(&client, &known).await?;
        let follow = follow_heartbeats(client.clone(), known.clone(), subscriber);
        Ok(Self { client, known, since, bucket_age, _task: supervise::spawn("heartbeats", follow) })
    }

    /// For how long, until now, every heartbeat was kept.
    pub(super) fn retention(&self) -> Duration {
        self.bucket_age + self.client.incarnation.online_time().saturating_sub(self.since)
    }

    pub(super) fn heartbeats(&self) -> Vec<ReceivedHeartbeat> {
        let now = self.client.incarnation.online_time();
        let mut known = self.known.lock();
        known.retain(|_, (_, at, _)| now.saturating_sub(*at) < RETENTION);
        let age = |at: Duration, old| now.saturating_sub(at) + old;
        let mut seen: Vec<ReceivedHeartbeat> = (known.values())
            .map(|(heartbeat, at, old)| ReceivedHeartbeat {
                heartbeat: heartbeat.clone(),
                age: age(*at, *old),
            })
            .collect();
        seen.sort_unstable_by(|a, b| a.heartbeat.worker.cmp(&b.heartbeat.worker));
        seen
    }
}

/// Reads the heartbeats in the bucket that are not known yet. Their ages are by the server's clock.
async fn read_bucket(client: &NatsClient, known: &KnownHeartbeats) -> Result<(), NatsError> {
    let found = snapshot::read_bucket(client, &client.names.workers).await?;
    let now = client.incarnation.online_time();
    for aged in found {
        known.insert(&aged.stored.payload, now, Some(aged.age));
    }
    Ok(())
}

async fn follow_heartbeats(
    client: Arc<NatsClient>,
    known: Arc<KnownHeartbeats>,
    mut subscriber: Subscriber,
) {
    let mut contact = client.connection_status();
    let mut read = true;
    loop {
        tokio::select! {
            message = subscriber.next() => match message {
                Some(message) => known.insert(&message.payload, client.incarnation.online_time(), None),
                None => return,
            },
            // Reads again: heartbeats may have been missed meanwhile.
            _ = contact.changed() => read = false,
            () = tokio::time::sleep(RETRY_PAUSE), if !read => {
                read = client.connection().is_ok() && read_bucket(&client, &known).await.is_ok();
            }
        }
    }
}
