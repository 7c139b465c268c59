//! What the pool looks like: its size classes, and the blob store it is bound to. Looked at every
//! two seconds.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::wire::offer::SizeClass;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::arrivals::Arrivals;
use crate::queue::nats::binding::{Bound, binding};
use crate::queue::nats::fault::Fault;
use crate::queue::nats::link::Link;
use crate::queue::nats::names::{self, Name};
use crate::queue::traits::QueueError;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// Time between two looks while the pool has no classes: it is being set up.
const SOON: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Classes {
    pool: Name,
    store: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    due: Instant,
    /// Where the pool's store is not ours.
    elsewhere: Option<Bound>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    total: usize,
    #[serde(default)]
    consumers: Option<Vec<Found>>,
}

#[derive(Deserialize)]
struct Found {
    name: String,
    #[serde(default)]
    num_pending: u64,
}

impl Classes {
    pub(super) fn new(pool: Name, store: String) -> Self {
        let state = Mutex::new(State { due: Instant::now(), elsewhere: None });
        Self { pool, store, state }
    }

    /// When the next look is due.
    pub(super) fn due(&self) -> Instant {
        self.state().due
    }

    /// Looks if it is time to.
    pub(super) async fn look_if_due(
        &self,
        link: &Link,
        arrivals: &Arrivals,
    ) -> Result<(), QueueError> {
        if self.due() > Instant::now() {
            return Ok(());
        }
        self.look(link, arrivals).await
    }

    pub(super) async fn look(&self, link: &Link, arrivals: &Arrivals) -> Result<(), QueueError> {
        let (bound, classes) = tokio::join!(binding(link, &self.pool), list(link, &self.pool));
        let elsewhere = bound?.filter(|bound| bound.store != self.store);
        let classes = classes?;
        let pause = if classes.is_empty() { SOON } else { LOOK };
        arrivals.classes_are(classes);
        *self.state() = State { due: Instant::now() + pause, elsewhere };
        Ok(())
    }

    pub(super) fn check_binding(&self) -> Result<(), QueueError> {
        match &self.state().elsewhere {
            None => Ok(()),
            Some(bound) => Err(QueueError::Denied {
                reason: format!(
                    "pool {} uses the blob store {}, and this worker uses {}: it could not read \
                     what trials need, and nobody would find what they produce",
                    self.pool, bound.store, self.store
                ),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The classes of a pool with the offers that wait in each. A pool that nobody set up has none.
async fn list(link: &Link, pool: &Name) -> Result<Vec<(SizeClass, u64)>, Fault> {
    let verb = format!("CONSUMER.LIST.{}", link.names.work);
    let (mut classes, mut seen) = (Vec::new(), 0);
    loop {
        let page: Page = match link.api(&verb, &json!({ "offset": seen })).await {
            Ok(page) => page,
            Err(fault) if fault.is_missing() => return Ok(classes),
            Err(fault) => return Err(fault),
        };
        let found = page.consumers.unwrap_or_default();
        let last_page = found.is_empty();
        seen += found.len();
        classes.extend(found.into_iter().filter_map(|consumer| {
            let class = names::class_of_consumer(pool, &consumer.name)?;
            Some((class, consumer.num_pending))
        }));
        if last_page || seen >= page.total {
            return Ok(classes);
        }
    }
}
