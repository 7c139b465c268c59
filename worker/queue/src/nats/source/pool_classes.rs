//! The pool's size classes, its lease, and the blob store it is bound to, refreshed every two
//! seconds, more often while the pool is set up, and rarely while the stream of offers is empty and has
//! the same consumers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::common_times::next_time;
use tokio::time::Instant;

use super::pull_buffer::PullBuffer;
use crate::nats::client::NatsClient;
use crate::nats::consumers::PoolConsumers;
use crate::nats::incarnation::OfferStream;
use crate::nats::names::NatsName;
use crate::nats::pool_binding::{PoolBinding, read_binding};
use crate::traits::QueueError;

/// Time between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// The same while no offers wait, and consumers and incarnation are those of the last refresh.
const IDLE_REFRESH_INTERVAL: Duration = Duration::from_secs(10);
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
    /// When the next refresh is due if the stream of offers stays as it was at the last one, and empty.
    idle_due: Instant,
    /// The stream of offers at the last refresh.
    offers: OfferStream,
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
            idle_due: now,
            offers: OfferStream::default(),
            classes: (0, now),
            other_binding: None,
            other_lease: None,
        };
        Self { pool, store, lease, state: Mutex::new(state) }
    }

    /// When the next refresh is due with this stream of offers.
    pub(super) fn refresh_due(&self, offers: OfferStream) -> Instant {
        let state = self.state();
        match offers.has_offers || offers != state.offers {
            true => state.due,
            false => state.idle_due,
        }
    }

    /// Refreshes if it is due.
    pub(super) async fn refresh_if_due(
        &self,
        client: &NatsClient,
        arrivals: &PullBuffer,
    ) -> Result<(), QueueError> {
        let offers = *client.incarnation.offers().borrow();
        // Offers that have arrived may be of a pool that another store was bound to meanwhile.
        let due = match arrivals.has_arrived() {
            true => self.state().due,
            false => self.refresh_due(offers),
        };
        if due > Instant::now() {
            return Ok(());
        }
        self.refresh(client, arrivals).await
    }

    pub(super) async fn refresh(
        &self,
        client: &NatsClient,
        arrivals: &PullBuffer,
    ) -> Result<(), QueueError> {
        // A change after this look is refreshed again.
        let offers = *client.incarnation.offers().borrow();
        let (bound, consumers) =
            tokio::join!(read_binding(client, &self.pool), PoolConsumers::read(client, &self.pool));
        let other_binding = bound?.filter(|bound| bound.store != self.store);
        let PoolConsumers { classes, other_lease } = consumers?;
        let count = classes.len();
        arrivals.set_classes(classes);
        self.record(count, offers, other_binding, other_lease);
        Ok(())
    }

    fn record(
        &self,
        count: usize,
        offers: OfferStream,
        other_binding: Option<PoolBinding>,
        other_lease: Option<Duration>,
    ) {
        let now = Instant::now();
        let mut state = self.state();
        let since = if state.classes.0 == count { state.classes.1 } else { now };
        let is_set_up = count > 0 && since.elapsed() >= SETUP_WINDOW;
        let due = match is_set_up {
            true => next_time(REFRESH_INTERVAL),
            false => now + SETUP_REFRESH_INTERVAL,
        };
        let is_usable = other_binding.is_none() && other_lease.is_none();
        let idle_due = match is_set_up && is_usable {
            true => next_time(IDLE_REFRESH_INTERVAL).max(due),
            false => due,
        };
        let classes = (count, since);
        *state = PoolClassesState { due, idle_due, offers, classes, other_binding, other_lease };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn classes_are_refreshed_rarely_only_while_no_offers_wait() {
        let pool: NatsName = "p".parse().expect("a name");
        let classes = PoolClasses::new(pool, "s".to_owned(), Duration::from_secs(60));
        let idle = OfferStream { consumers: 1, ..OfferStream::default() };
        let wait = |offers| classes.refresh_due(offers).saturating_duration_since(Instant::now());
        assert_eq!(wait(OfferStream::default()), Duration::ZERO, "the first one");
        let record = || classes.record(1, idle, None, None);
        record();
        assert_eq!(wait(idle), SETUP_REFRESH_INTERVAL, "it is being set up");
        tokio::time::advance(SETUP_WINDOW).await;
        let mut longest = Duration::ZERO;
        for _ in 0..8 {
            record();
            longest = longest.max(wait(idle));
            for seen in
                [OfferStream { consumers: 2, ..idle }, OfferStream { has_offers: true, ..idle }]
            {
                assert!(wait(seen) <= REFRESH_INTERVAL, "{seen:?}");
            }
            tokio::time::advance(SETUP_REFRESH_INTERVAL * 7).await;
        }
        assert!(longest > 2 * REFRESH_INTERVAL && longest <= IDLE_REFRESH_INTERVAL, "{longest:?}");
        classes.record(1, idle, Some(PoolBinding { store: "other".to_owned() }), None);
        assert!(wait(idle) <= REFRESH_INTERVAL, "it can be put right at any time");
        assert!(classes.check().is_err());
    }
}
