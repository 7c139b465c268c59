//! The last heartbeat of every worker, followed as they are sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Subscriber;
use futures_util::StreamExt as _;
use rollout_protocol::id::WorkerId;
use rollout_protocol::wire::heartbeat::{Heartbeat, ReceivedHeartbeat};

use crate::queue::nats::client::NatsClient;
use crate::queue::nats::error::NatsError;
use crate::queue::nats::warning_limiter::WarningLimiter;
use crate::queue::nats::{names, snapshot};
use crate::supervise::{self, Task};

/// A worker without a heartbeat for this long is forgotten, like on the server.
const RETENTION: Duration = Duration::from_secs(3600);
/// Larger heartbeats are ignored. Thousands of executions fit.
const MAX_HEARTBEAT_BYTES: usize = 4 * 1024 * 1024;
/// Time between two attempts to read the bucket.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Heartbeats with their arrival times, by a clock that stops without the server.
#[derive(Debug)]
pub(super) struct HeartbeatWatch {
    link: Arc<NatsClient>,
    known: Arc<KnownHeartbeats>,
    /// When this watch began, and the age of the bucket at that time.
    since: Duration,
    kept: Duration,
    _task: Task<()>,
}

#[derive(Debug, Default)]
struct KnownHeartbeats {
    hellos: Mutex<HashMap<WorkerId, TimedHeartbeat>>,
    passed_over: WarningLimiter,
}

/// A heartbeat, when it arrived, and its age at that time.
type TimedHeartbeat = (Heartbeat, Duration, Duration);

impl KnownHeartbeats {
    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, TimedHeartbeat>> {
        self.hellos.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, payload: &[u8], at: Duration, old: Option<Duration>) {
        if payload.is_empty() || payload.len() > MAX_HEARTBEAT_BYTES {
            return;
        }
        match serde_json::from_slice::<Heartbeat>(payload) {
            Ok(hello) => match old {
                None => {
                    self.lock().insert(hello.worker.clone(), (hello, at, Duration::ZERO));
                }
                Some(old) => {
                    self.lock().entry(hello.worker.clone()).or_insert((hello, at, old));
                }
            },
            Err(error) => {
                if let Some(more) = self.passed_over.record() {
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
    pub(super) async fn watch(link: Arc<NatsClient>) -> Result<Self, NatsError> {
        let subject = names::key_subject(&link.names.workers, "*");
        let subscriber = (link.client.subscribe(subject).await)
            .map_err(|error| NatsError::Unreachable(error.to_string()))?;
        let known = Arc::<KnownHeartbeats>::default();
        let since = link.life.online_time();
        let kept = snapshot::stream_age(&link, &names::bucket_stream(&link.names.workers)).await?;
        read_bucket(&link, &known).await?;
        let follow = follow_heartbeats(link.clone(), known.clone(), subscriber);
        Ok(Self { link, known, since, kept, _task: supervise::spawn("heartbeats", follow) })
    }

    /// For how long, until now, every heartbeat was kept.
    pub(super) fn retention(&self) -> Duration {
        self.kept + self.link.life.online_time().saturating_sub(self.since)
    }

    pub(super) fn heartbeats(&self) -> Vec<ReceivedHeartbeat> {
        let now = self.link.life.online_time();
        let mut known = self.known.lock();
        known.retain(|_, (_, at, _)| now.saturating_sub(*at) < RETENTION);
        let age = |at: Duration, old| now.saturating_sub(at) + old;
        let mut seen: Vec<ReceivedHeartbeat> = (known.values())
            .map(|(hello, at, old)| ReceivedHeartbeat { hello: hello.clone(), age: age(*at, *old) })
            .collect();
        seen.sort_unstable_by(|a, b| a.hello.worker.cmp(&b.hello.worker));
        seen
    }
}

/// Reads the heartbeats in the bucket that are not known yet. Their ages are by the server's clock.
async fn read_bucket(link: &NatsClient, known: &KnownHeartbeats) -> Result<(), NatsError> {
    let found = snapshot::read_bucket(link, &link.names.workers).await?;
    let now = link.life.online_time();
    for aged in found {
        known.insert(&aged.stored.payload, now, Some(aged.age));
    }
    Ok(())
}

async fn follow_heartbeats(
    link: Arc<NatsClient>,
    known: Arc<KnownHeartbeats>,
    mut subscriber: Subscriber,
) {
    let mut contact = link.connection_status();
    let mut read = true;
    loop {
        tokio::select! {
            message = subscriber.next() => match message {
                Some(message) => known.insert(&message.payload, link.life.online_time(), None),
                None => return,
            },
            // Reads again: heartbeats may have been missed meanwhile.
            _ = contact.changed() => read = false,
            () = tokio::time::sleep(RETRY_PAUSE), if !read => {
                read = link.connection().is_ok() && read_bucket(&link, &known).await.is_ok();
            }
        }
    }
}
