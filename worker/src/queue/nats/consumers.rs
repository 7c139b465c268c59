//! The consumers of the stream of offers, as the server lists them.

use std::time::Duration;

use rollout_protocol::wire::offer::SizeClass;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::NatsClient;
use super::connect::Nats;
use super::error::NatsError;
use super::names::{self, NatsName};
use super::server_info::ConsumerStatus;
use super::setup::ServerSettings;
use crate::queue::traits::QueueError;

/// A consumer with its settings.
#[derive(Debug, Deserialize)]
pub(super) struct ListedConsumer {
    #[serde(flatten)]
    pub(super) status: ConsumerStatus,
    #[serde(default)]
    pub(super) config: ServerSettings,
}

#[derive(Deserialize)]
struct ConsumerPage {
    #[serde(default)]
    total: usize,
    #[serde(default)]
    consumers: Option<Vec<ListedConsumer>>,
}

/// The consumers of one pool. A pool that was not set up has none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PoolConsumers {
    /// Their size classes, with the number of waiting offers in each.
    pub(super) classes: Vec<(SizeClass, u64)>,
    /// Lease of the first consumer whose lease is not that of this process.
    pub(super) other_lease: Option<Duration>,
}

impl ListedConsumer {
    fn lease(&self) -> Option<Duration> {
        self.config.get("ack_wait").and_then(Value::as_u64).map(Duration::from_nanos)
    }
}

impl PoolConsumers {
    /// Reads them from the server.
    pub(super) async fn read(link: &NatsClient, pool: &NatsName) -> Result<Self, NatsError> {
        Ok(Self::from_list(&list_consumers(link).await?, pool, link.options.lease))
    }

    fn from_list(listed: &[ListedConsumer], pool: &NatsName, lease: Duration) -> Self {
        let mut found = Self::default();
        for consumer in listed {
            let name = &consumer.status.name;
            let Some(class) = names::class_of_consumer(pool, name) else { continue };
            found.classes.push((class, consumer.status.waiting));
            let other = consumer.lease().filter(|other| *other != lease);
            found.other_lease = found.other_lease.or(other);
        }
        found
    }
}

impl Nats {
    /// The lease of the pool's consumers, if it is not the lease in the options of this connection.
    ///
    /// # Errors
    /// [`QueueError`].
    pub async fn other_lease(&self, pool: &NatsName) -> Result<Option<Duration>, QueueError> {
        Ok(PoolConsumers::read(self.client(), pool).await?.other_lease)
    }
}

/// The consumers of all pools.
pub(super) async fn list_consumers(link: &NatsClient) -> Result<Vec<ListedConsumer>, NatsError> {
    let verb = format!("CONSUMER.LIST.{}", link.names.work);
    let mut listed = Vec::new();
    loop {
        let request = json!({ "offset": listed.len() });
        let page: ConsumerPage = match link.api_call(&verb, &request).await {
            Ok(page) => page,
            Err(fault) if fault.is_missing() => return Ok(listed),
            Err(fault) => return Err(fault),
        };
        let found = page.consumers.unwrap_or_default();
        let is_last = found.is_empty();
        listed.extend(found);
        if is_last || listed.len() >= page.total {
            return Ok(listed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_consumers_with_other_lease_are_noticed() {
        let consumer = |name: &str, seconds: u64| {
            json!({
                "stream_name": "ROLLOUT_WORK", "name": name, "num_pending": 7,
                "config": { "durable_name": name, "ack_wait": seconds * 1_000_000_000 },
            })
        };
        let listed = json!([consumer("a-c0", 60), consumer("a-solo", 60), consumer("b-c0", 30)]);
        let listed: Vec<ListedConsumer> = serde_json::from_value(listed).expect("consumers");
        let found = |pool: &str, seconds| {
            let pool = pool.parse().expect("a valid name");
            PoolConsumers::from_list(&listed, &pool, Duration::from_secs(seconds))
        };
        let classes = vec![(SizeClass(0), 7), (SizeClass::SOLO, 7)];
        assert_eq!(found("a", 60), PoolConsumers { classes: classes.clone(), other_lease: None });
        let other_lease = Some(Duration::from_secs(60));
        assert_eq!(found("a", 30), PoolConsumers { classes, other_lease });
        assert_eq!(found("c", 30), PoolConsumers::default());
    }
}
