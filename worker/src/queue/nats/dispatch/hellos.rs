//! The last hello of every worker, followed as they are said.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Subscriber;
use futures_util::StreamExt as _;
use rollout_protocol::id::WorkerId;
use rollout_protocol::wire::heartbeat::{Heartbeat, ReceivedHeartbeat};

use crate::queue::nats::fault::Fault;
use crate::queue::nats::flood::Flood;
use crate::queue::nats::link::Link;
use crate::queue::nats::{names, snapshot};
use crate::supervise::{self, Task};

/// A worker that was silent for so long is forgotten, as the server forgets it.
const KEPT: Duration = Duration::from_secs(3600);
/// Larger hellos are not read. Thousands of executions fit.
const HELLO_BYTES: usize = 4 * 1024 * 1024;
/// Time between two attempts to read what is there.
const AGAIN: Duration = Duration::from_secs(1);

/// Hellos with the times they came, by a clock that stands still without the server.
#[derive(Debug)]
pub(super) struct Hellos {
    link: Arc<Link>,
    known: Arc<Known>,
    /// When this began to listen, and for how long the bucket had been there then.
    since: Duration,
    kept: Duration,
    _task: Task<()>,
}

#[derive(Debug, Default)]
struct Known {
    hellos: Mutex<HashMap<WorkerId, Heard>>,
    passed_over: Flood,
}

/// A hello, when it came, and how old it was then.
type Heard = (Heartbeat, Duration, Duration);

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, Heard>> {
        self.hellos.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, payload: &[u8], at: Duration, old: Option<Duration>) {
        if payload.is_empty() || payload.len() > HELLO_BYTES {
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
                if let Some(more) = self.passed_over.due() {
                    tracing::warn!(
                        "a hello is not understood: {error} ({more} more like it since the last \
                         warning)"
                    );
                }
            }
        }
    }
}

impl Hellos {
    pub(super) async fn watch(link: Arc<Link>) -> Result<Self, Fault> {
        let subject = names::key(&link.names.workers, "*");
        let subscriber = (link.client.subscribe(subject).await)
            .map_err(|error| Fault::Unreachable(error.to_string()))?;
        let known = Arc::<Known>::default();
        let since = link.life.online();
        let kept = snapshot::age(&link, &names::stream_of(&link.names.workers)).await?;
        read_all(&link, &known).await?;
        let follow = follow(link.clone(), known.clone(), subscriber);
        Ok(Self { link, known, since, kept, _task: supervise::spawn("hellos", follow) })
    }

    /// For how long every hello was kept.
    pub(super) fn kept(&self) -> Duration {
        self.kept + self.link.life.online().saturating_sub(self.since)
    }

    pub(super) fn seen(&self) -> Vec<ReceivedHeartbeat> {
        let now = self.link.life.online();
        let mut known = self.known.lock();
        known.retain(|_, (_, at, _)| now.saturating_sub(*at) < KEPT);
        let age = |at: Duration, old| now.saturating_sub(at) + old;
        let mut seen: Vec<ReceivedHeartbeat> = (known.values())
            .map(|(hello, at, old)| ReceivedHeartbeat { hello: hello.clone(), age: age(*at, *old) })
            .collect();
        seen.sort_unstable_by(|a, b| a.hello.worker.cmp(&b.hello.worker));
        seen
    }
}

/// What is in the bucket and not known yet. Both times of its age are the server's.
async fn read_all(link: &Link, known: &Known) -> Result<(), Fault> {
    let found = snapshot::bucket(link, &link.names.workers).await?;
    let now = link.life.online();
    for aged in found {
        known.put(&aged.stored.payload, now, Some(aged.age));
    }
    Ok(())
}

async fn follow(link: Arc<Link>, known: Arc<Known>, mut subscriber: Subscriber) {
    let mut contact = link.contact();
    let mut read = true;
    loop {
        tokio::select! {
            message = subscriber.next() => match message {
                Some(message) => known.put(&message.payload, link.life.online(), None),
                None => return,
            },
            // Hellos of workers that said their last one meanwhile.
            _ = contact.changed() => read = false,
            () = tokio::time::sleep(AGAIN), if !read => {
                read = link.connection().is_ok() && read_all(&link, &known).await.is_ok();
            }
        }
    }
}
