//! The pool's size classes, its lease, and the blob store it is bound to, refreshed every two
//! seconds, and more often while the pool is set up.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::pull_buffer::PullBuffer;
use crate::common_times::next_time;
use crate::queue::nats::client::NatsClient;
use crate::queue::nats::consumers::PoolConsumers;
use crate::queue::nats::names::NatsName;
use crate::queue::nats::pool_binding::{PoolBinding, read_binding};
use crate::queue::traits::QueueError;

/// Time between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two refreshes while the pool has no classes or got another one: it is being set up,
/// one class after another.
const SETUP_REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// How long the refreshes stay frequent after a change.
const SETUP_WINDOW: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct PoolClasses {
    pool: NatsName,
    store: String,
    lease: Duration,
    state: Mutex<PoolClassesState>,
}

#[derive(Debug)]
struct PoolClassesState {
    due: Instant,
    /// Number of classes, and since when.
    classes: (usize, Instant),
    /// The pool's binding, if it is to another store than this worker's.
    other_binding: Option<PoolBinding>,
    /// The lease of the pool's consumers, if it is not this worker's.
    other_lease: Option<Duration>,
}

impl PoolClasses {
    pub(super) fn new(pool: NatsName, store: String, lease: Duration) -> Self {
        let now = Instant::now();
        let state = PoolClassesState {
            due: now,
            classes: (0, now),
            other_binding: None,
            other_lease: None,
        };
        Self { pool, store, lease, state: Mutex::new(state) }
    }

    /// When the next refresh is due.
    pub(super) fn refresh_due(&self) -> Instant {
        self.state().due
    }

    /// Refreshes if it is due.
    pub(super) async fn refresh_if_due(
        &self,
        client: &NatsClient,
        arrivals: &PullBuffer,
    ) -> Result<(), QueueError> {
        if self.refresh_due() > Instant::now() {
            return Ok(());
        }
        self.refresh(client, arrivals).await
    }

    pub(super) async fn refresh(
        &self,
        client: &NatsClient,
        arrivals: &PullBuffer,
    ) -> Result<(), QueueError> {
        let (bound, consumers) =
            tokio::join!(read_binding(client, &self.pool), PoolConsumers::read(client, &self.pool));
        let other_binding = bound?.filter(|bound| bound.store != self.store);
        let PoolConsumers { classes, other_lease } = consumers?;
        let (count, now) = (classes.len(), Instant::now());
        arrivals.set_classes(classes);
        let mut state = self.state();
        let since = if state.classes.0 == count { state.classes.1 } else { now };
        let is_set_up = count > 0 && since.elapsed() >= SETUP_WINDOW;
        let due = match is_set_up {
            true => next_time(REFRESH_INTERVAL),
            false => now + SETUP_REFRESH_INTERVAL,
        };
        let classes = (count, since);
        *state = PoolClassesState { due, classes, other_binding, other_lease };
        Ok(())
    }

    /// Fails if this worker must not take work of the pool.
    pub(super) fn check(&self) -> Result<(), QueueError> {
        let state = self.state();
        let (pool, own) = (&self.pool, self.lease);
        let reason = match (&state.other_binding, state.other_lease) {
            (Some(bound), _) => format!(
                "pool {pool} uses the blob store {}, this worker uses {}: it could not read the \
                 inputs of trials, and coordinators could not find their results",
                bound.store, self.store
            ),
            (None, Some(found)) => format!(
                "the consumers of pool {pool} have the lease {found:?}, this worker has {own:?}: \
                 all processes of a namespace need the same `--lease`"
            ),
            (None, None) => return Ok(()),
        };
        Err(QueueError::Denied { reason })
    }

    fn state(&self) -> MutexGuard<'_, PoolClassesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
