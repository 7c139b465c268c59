//! The server's version, limits, streams and consumers.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::NatsClient;
use super::error::NatsError;
use super::incarnation::{StreamInfo, StreamState};
use super::setup::{self, RequiredResource, ResourceInfo};

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
    /// Settings that differ from the required ones, as `setting: found, required`.
    pub differences: Vec<String>,
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
}

#[derive(Deserialize)]
struct JetStreamAccount {
    #[serde(default)]
    memory: u64,
    #[serde(default)]
    storage: u64,
    #[serde(default)]
    limits: Map<String, Value>,
    #[serde(default)]
    api: Map<String, Value>,
}

#[derive(Deserialize)]
struct ConsumerList {
    #[serde(default)]
    consumers: Option<Vec<ConsumerStatus>>,
}

pub(super) async fn read_server_info(link: &NatsClient) -> Result<NatsServerInfo, NatsError> {
    let account: JetStreamAccount = link.api_call("INFO", &json!({})).await?;
    let limit = |name: &str| account.limits.get(name).and_then(Value::as_u64);
    let limits = AccountLimits {
        memory: account.memory,
        max_memory: limit("max_memory"),
        storage: account.storage,
        max_storage: limit("max_storage"),
    };
    let mut streams = Vec::new();
    for wanted in setup::required_streams(link) {
        streams.push(stream_status(link, &wanted).await?);
    }
    let list = format!("CONSUMER.LIST.{}", link.names.work);
    let consumers = match link.api_call::<ConsumerList>(&list, &json!({})).await {
        Ok(found) => found.consumers.unwrap_or_default(),
        Err(fault) if fault.is_missing() => Vec::new(),
        Err(fault) => return Err(fault),
    };
    let server = link.client.server_info();
    Ok(NatsServerInfo {
        address: link.options.address(),
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
    link: &NatsClient,
    wanted: &RequiredResource,
) -> Result<StreamStatus, NatsError> {
    #[derive(Deserialize)]
    struct StreamAnswer {
        #[serde(flatten)]
        info: StreamInfo,
        #[serde(flatten)]
        configured: ResourceInfo,
    }
    let name = wanted.name.clone();
    let found = link.api_call::<StreamAnswer>(&format!("STREAM.INFO.{name}"), &json!({})).await;
    let (created, state, differences) = match found {
        Err(fault) if fault.is_missing() => (None, StreamState::default(), Vec::new()),
        Err(fault) => return Err(fault),
        Ok(StreamAnswer { info, configured }) => {
            let differences = wanted.differences(&configured.config).into_iter();
            let text =
                |d: setup::SettingDifference| format!("{}: {}, {}", d.setting, d.found, d.wanted);
            (Some(info.created), info.state, differences.map(text).collect())
        }
    };
    let StreamState { messages, bytes, last_seq: last_sequence, .. } = state;
    let present = created.is_some();
    Ok(StreamStatus { name, present, created, messages, bytes, last_sequence, differences })
}
