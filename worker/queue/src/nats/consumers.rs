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
use crate::traits::QueueError;

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
    /// Size classes of those with the lease of this process, with the waiting offers in each.
    pub(super) classes: Vec<(SizeClass, u64)>,
    /// Lease of the pool, if it is not that of this process.
    pub(super) other_lease: Option<Duration>,
}

impl ListedConsumer {
    fn lease(&self) -> Option<Duration> {
        self.config.get("ack_wait").and_then(Value::as_u64).map(Duration::from_nanos)
    }
}

impl PoolConsumers {
    /// Reads them from the server.
    pub(super) async fn read(client: &NatsClient, pool: &NatsName) -> Result<Self, NatsError> {
        Ok(Self::from_list(&list_consumers(client).await?, pool, client.options.lease))
    }

    /// The consumer of the class for single trials decides the lease of the pool: every process
    /// that sets a pool up creates it first. A coordinator that was refused because of its lease
    /// may have left another class behind, which must not stop the workers of the pool.
    fn from_list(listed: &[ListedConsumer], pool: &NatsName, lease: Duration) -> Self {
        let of_pool = |consumer: &ListedConsumer| {
            let class = names::class_of_consumer(pool, &consumer.status.name)?;
            let other = consumer.lease().filter(|other| *other != lease);
            Some((class, consumer.status.waiting, other))
        };
        let found: Vec<_> = listed.iter().filter_map(of_pool).collect();
        let solo = found.iter().find(|(class, ..)| *class == SizeClass::SOLO);
        let other_lease = solo.or(found.first()).and_then(|(.., other)| *other);
        let usable = found.iter().filter(|(.., other)| other.is_none());
        Self {
            classes: usable.map(|(class, waiting, _)| (*class, *waiting)).collect(),
            other_lease,
        }
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
pub(super) async fn list_consumers(client: &NatsClient) -> Result<Vec<ListedConsumer>, NatsError> {
    let verb = format!("CONSUMER.LIST.{}", client.names.work);
    let mut listed = Vec::new();
    loop {
        let request = json!({ "offset": listed.len() });
        let page: ConsumerPage = match client.api_call(&verb, &request).await {
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
        let listed = json!([
            consumer("a-c0", 60),
            consumer("a-c1", 30),
            consumer("a-solo", 60),
            consumer("b-c0", 30),
        ]);
        let listed: Vec<ListedConsumer> = serde_json::from_value(listed).expect("consumers");
        let found = |pool: &str, seconds| {
            let pool = pool.parse().expect("a valid name");
            PoolConsumers::from_list(&listed, &pool, Duration::from_secs(seconds))
        };
        let classes = vec![(SizeClass(0), 7), (SizeClass::SOLO, 7)];
        assert_eq!(found("a", 60), PoolConsumers { classes, other_lease: None });
        let other_lease = Some(Duration::from_secs(60));
        assert_eq!(found("a", 30), PoolConsumers { classes: vec![(SizeClass(1), 7)], other_lease });
        assert_eq!(found("c", 30), PoolConsumers::default());
    }
}
