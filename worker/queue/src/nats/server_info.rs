//! The server's version, limits, streams and consumers.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::NatsClient;
use super::consumers::{ListedConsumer, list_consumers};
use super::error::NatsError;
use super::incarnation::{StreamInfo, StreamState};
use super::missing_disk::{DiskLeft, MissingDisk};
use super::names;
use super::setup::{self, RequiredResource, ResourceInfo, ServerSettings};

/// Information about a server.
#[derive(Debug, Clone)]
pub struct NatsServerInfo {
    /// The server, without credentials.
    pub address: String,
    /// Its version.
    pub version: String,
    /// Name of its cluster, if it is part of one.
    pub cluster: Option<String>,
    /// Largest message, bytes.
    pub max_message_bytes: usize,
    /// Level of the JetStream API; absent before 2.11.
    pub api_level: Option<u64>,
    /// Limits of the account.
    pub limits: AccountLimits,
    /// Streams of the namespace, those of buckets included, in the order of the documentation.
    pub streams: Vec<StreamStatus>,
    /// Consumers of the stream of offers.
    pub consumers: Vec<ConsumerStatus>,
}

/// Usage and limits of an account, bytes. Absent: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountLimits {
    /// Memory used.
    pub memory: u64,
    /// Memory limit.
    pub max_memory: Option<u64>,
    /// Disk used.
    pub storage: u64,
    /// Disk limit.
    pub max_storage: Option<u64>,
}

/// The state of a stream.
#[derive(Debug, Clone)]
pub struct StreamStatus {
    /// Name.
    pub name: String,
    /// Whether it exists.
    pub present: bool,
    /// When it was created.
    pub created: Option<String>,
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    /// Last sequence.
    pub last_sequence: u64,
    /// Its copies in a cluster; absent without one.
    pub copies: Option<StreamCopies>,
    /// Settings that differ from the required ones, one text each.
    pub differences: Vec<String>,
    /// The disk that the account lacks for it, if it does not exist and cannot be created.
    pub missing_disk: Option<MissingDisk>,
}

/// The copies of a stream on the servers of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct StreamCopies {
    /// Server that accepts messages for the stream; absent while the servers choose one.
    #[serde(default)]
    pub leader: Option<String>,
    /// The other copies.
    #[serde(rename = "replicas", default)]
    pub followers: Vec<StreamFollower>,
}

/// A copy of a stream that follows the leader.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StreamFollower {
    /// Server.
    pub name: String,
    /// Whether it has all that the leader has.
    #[serde(default)]
    pub current: bool,
    /// Whether the leader cannot reach it.
    #[serde(default)]
    pub offline: bool,
}

/// The state of a consumer.
#[derive(Debug, Clone, Deserialize)]
pub struct ConsumerStatus {
    /// Name: pool and size class.
    pub name: String,
    /// Offers that were never delivered.
    #[serde(rename = "num_pending", default)]
    pub waiting: u64,
    /// Offers that are delivered and not acknowledged.
    #[serde(rename = "num_ack_pending", default)]
    pub in_flight: u64,
    /// Of these, offers that were delivered more than once.
    #[serde(rename = "num_redelivered", default)]
    pub redelivered: u64,
    /// Requests for work that wait.
    #[serde(rename = "num_waiting", default)]
    pub waiting_pulls: u64,
    /// Settings that differ from the required ones, one text each.
    #[serde(skip)]
    pub differences: Vec<String>,
}

impl NatsServerInfo {
    /// Whether an existing stream or consumer has other settings than the required ones.
    pub fn has_differences(&self) -> bool {
        let streams = self.streams.iter().map(|stream| &stream.differences);
        let consumers = self.consumers.iter().map(|consumer| &consumer.differences);
        streams.chain(consumers).any(|differences| !differences.is_empty())
    }

    /// Whether the account has too little disk for a stream that does not exist yet.
    pub fn lacks_disk(&self) -> bool {
        self.streams.iter().any(|stream| stream.missing_disk.is_some())
    }
}

#[derive(Deserialize)]
struct JetStreamAccount {
    #[serde(default)]
    memory: u64,
    #[serde(default)]
    storage: u64,
    #[serde(default)]
    reserved_storage: u64,
    #[serde(default)]
    limits: Map<String, Value>,
    /// Limits by number of copies. With them the server leaves all of `limits` at 0.
    #[serde(default)]
    tiers: Map<String, Value>,
    #[serde(default)]
    api: Map<String, Value>,
}

impl JetStreamAccount {
    fn limits(&self) -> AccountLimits {
        // No limit is -1. Those of tiers are not known here.
        let limit = |name: &str| {
            let limit = self.limits.get(name).filter(|_| self.tiers.is_empty());
            limit.and_then(Value::as_u64)
        };
        AccountLimits {
            memory: counted(self.memory),
            max_memory: limit("max_memory"),
            storage: counted(self.storage),
            max_storage: limit("max_storage"),
        }
    }

    /// The same, where what its streams reserve counts as used.
    fn limits_with_reservations(&self) -> AccountLimits {
        let limits = self.limits();
        AccountLimits { storage: limits.storage.max(counted(self.reserved_storage)), ..limits }
    }

    /// Disk that it can still reserve. The server counts what streams reserve, not what they use.
    fn disk_left(&self) -> DiskLeft {
        DiskLeft::new(self.limits_with_reservations(), counted(self.reserved_storage))
    }
}

/// Bytes that a server states. It adds -1 for each stream without a limit and may end below zero, which it
/// prints as a huge number.
fn counted(bytes: u64) -> u64 {
    i64::try_from(bytes).map_or(0, |_| bytes)
}

/// Limits of the account of this connection; what its streams reserve counts as used.
pub(super) async fn account_limits(client: &NatsClient) -> Result<AccountLimits, NatsError> {
    let account: JetStreamAccount = client.api_call("INFO", &json!({})).await?;
    Ok(account.limits_with_reservations())
}

pub(super) async fn read_server_info(client: &NatsClient) -> Result<NatsServerInfo, NatsError> {
    let account: JetStreamAccount = client.api_call("INFO", &json!({})).await?;
    let (limits, mut disk) = (account.limits(), account.disk_left());
    let mut streams = Vec::new();
    for wanted in setup::required_streams(client) {
        let mut status = stream_status(client, &wanted).await?;
        if !status.present {
            status.missing_disk = disk.reserve(&wanted.name, wanted.reserved_bytes());
        }
        streams.push(status);
    }
    let listed = list_consumers(client).await?.into_iter();
    let consumers = listed.map(|listed| consumer_status(client, listed)).collect();
    let server = client.inner.server_info();
    Ok(NatsServerInfo {
        address: client.options.address(),
        version: server.version,
        cluster: server.cluster,
        max_message_bytes: server.max_payload,
        api_level: account.api.get("level").and_then(Value::as_u64),
        limits,
        streams,
        consumers,
    })
}

async fn stream_status(
    client: &NatsClient,
    wanted: &RequiredResource,
) -> Result<StreamStatus, NatsError> {
    #[derive(Deserialize)]
    struct StreamAnswer {
        #[serde(flatten)]
        info: StreamInfo,
        #[serde(flatten)]
        configured: ResourceInfo,
        #[serde(default)]
        cluster: Option<StreamCopies>,
    }
    let name = wanted.name.clone();
    let found = client.api_call::<StreamAnswer>(&format!("STREAM.INFO.{name}"), &json!({})).await;
    let (created, state, copies, differences) = match found {
        Err(fault) if fault.is_missing() => (None, StreamState::default(), None, Vec::new()),
        Err(fault) => return Err(fault),
        Ok(StreamAnswer { info, configured, cluster }) => {
            (Some(info.created), info.state, cluster, differences(wanted, &configured.config))
        }
    };
    let StreamState { messages, bytes, last_seq: last_sequence, .. } = state;
    let present = created.is_some();
    Ok(StreamStatus {
        name,
        present,
        created,
        messages,
        bytes,
        last_sequence,
        copies,
        differences,
        missing_disk: None,
    })
}

fn consumer_status(client: &NatsClient, listed: ListedConsumer) -> ConsumerStatus {
    let ListedConsumer { mut status, config } = listed;
    // Something else may have made consumers of other names.
    if let Some((pool, class)) = names::parse_consumer(&status.name) {
        status.differences = differences(&setup::required_consumer(client, &pool, class), &config);
    }
    status
}

fn differences(wanted: &RequiredResource, found: &ServerSettings) -> Vec<String> {
    wanted.differences(found).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_below_zero_is_none() {
        let storage = |reserved: u64| {
            let answer = json!({
                "storage": 70, "reserved_storage": reserved, "limits": { "max_storage": 1000 },
            });
            let account: JetStreamAccount = serde_json::from_value(answer).expect("an answer");
            account.limits_with_reservations().storage
        };
        assert_eq!([storage(0), storage(500), storage(u64::MAX)], [70, 500, 70]);
    }
}
