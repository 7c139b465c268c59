//! The pool's size classes and the blob store it is bound to, refreshed every two seconds.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::wire::offer::SizeClass;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::pull_buffer::PullBuffer;
use crate::queue::nats::client::NatsClient;
use crate::queue::nats::error::NatsError;
use crate::queue::nats::names::{self, NatsName};
use crate::queue::nats::pool_binding::{PoolBinding, read_binding};
use crate::queue::traits::QueueError;

/// Time between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two refreshes while the pool has no classes: it is being set up.
const EMPTY_REFRESH_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct PoolClasses {
    pool: NatsName,
    store: String,
    state: Mutex<PoolClassesState>,
}

#[derive(Debug)]
struct PoolClassesState {
    due: Instant,
    /// The pool's binding, if it is to another store than this worker's.
    elsewhere: Option<PoolBinding>,
}

#[derive(Deserialize)]
struct ConsumerPage {
    #[serde(default)]
    total: usize,
    #[serde(default)]
    consumers: Option<Vec<ConsumerSummary>>,
}

#[derive(Deserialize)]
struct ConsumerSummary {
    name: String,
    #[serde(default)]
    num_pending: u64,
}

impl PoolClasses {
    pub(super) fn new(pool: NatsName, store: String) -> Self {
        let state = Mutex::new(PoolClassesState { due: Instant::now(), elsewhere: None });
        Self { pool, store, state }
    }

    /// When the next refresh is due.
    pub(super) fn refresh_due(&self) -> Instant {
        self.state().due
    }

    /// Refreshes if it is due.
    pub(super) async fn refresh_if_due(
        &self,
        link: &NatsClient,
        arrivals: &PullBuffer,
    ) -> Result<(), QueueError> {
        if self.refresh_due() > Instant::now() {
            return Ok(());
        }
        self.refresh(link, arrivals).await
    }

    pub(super) async fn refresh(
        &self,
        link: &NatsClient,
        arrivals: &PullBuffer,
    ) -> Result<(), QueueError> {
        let (bound, classes) =
            tokio::join!(read_binding(link, &self.pool), list_classes(link, &self.pool));
        let elsewhere = bound?.filter(|bound| bound.store != self.store);
        let classes = classes?;
        let pause = if classes.is_empty() { EMPTY_REFRESH_INTERVAL } else { REFRESH_INTERVAL };
        arrivals.set_classes(classes);
        *self.state() = PoolClassesState { due: Instant::now() + pause, elsewhere };
        Ok(())
    }

    pub(super) fn check_binding(&self) -> Result<(), QueueError> {
        match &self.state().elsewhere {
            None => Ok(()),
            Some(bound) => Err(QueueError::Denied {
                reason: format!(
                    "pool {} uses the blob store {}, this worker uses {}: it could not read the \
                     inputs of trials, and coordinators could not find their results",
                    self.pool, bound.store, self.store
                ),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolClassesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The classes of a pool with the number of waiting offers in each. A pool that was not set up has
/// none.
async fn list_classes(
    link: &NatsClient,
    pool: &NatsName,
) -> Result<Vec<(SizeClass, u64)>, NatsError> {
    let verb = format!("CONSUMER.LIST.{}", link.names.work);
    let (mut classes, mut seen) = (Vec::new(), 0);
    loop {
        let page: ConsumerPage = match link.api_call(&verb, &json!({ "offset": seen })).await {
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
