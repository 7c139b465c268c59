//! What the server is, has and lets one do.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::fault::Fault;
use super::life::{StreamInfo, StreamState};
use super::link::Link;
use super::setup::{self, Configured, Wanted};

/// What a server was found to be.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The server, without credentials.
    pub address: String,
    /// Its version.
    pub version: String,
    /// Whether it is one of a cluster.
    pub cluster: Option<String>,
    /// Largest message, bytes.
    pub max_message_bytes: usize,
    /// Level of the JetStream API; absent before 2.11.
    pub api_level: Option<u64>,
    /// What the account may use.
    pub limits: Limits,
    /// Streams of the namespace, those of buckets included, in the order of the documentation.
    pub streams: Vec<StreamFound>,
    /// Consumers of the stream of offers.
    pub consumers: Vec<ConsumerState>,
}

/// What an account may use, bytes. Absent: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory used.
    pub memory: u64,
    /// Most memory.
    pub max_memory: Option<u64>,
    /// Disk used.
    pub storage: u64,
    /// Most disk.
    pub max_storage: Option<u64>,
}

/// A stream as it was found.
#[derive(Debug, Clone)]
pub struct StreamFound {
    /// Name.
    pub name: String,
    /// Whether it is there.
    pub present: bool,
    /// When it was made.
    pub created: Option<String>,
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    /// Last sequence.
    pub last_sequence: u64,
    /// Settings that are not what is wanted, as `setting: found, wanted`.
    pub differences: Vec<String>,
}

/// A consumer as it was found.
#[derive(Debug, Clone, Deserialize)]
pub struct ConsumerState {
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
struct Account {
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
struct Consumers {
    #[serde(default)]
    consumers: Option<Vec<ConsumerState>>,
}

pub(super) async fn survey(link: &Link) -> Result<Survey, Fault> {
    let account: Account = link.api("INFO", &json!({})).await?;
    let limit = |name: &str| account.limits.get(name).and_then(Value::as_u64);
    let limits = Limits {
        memory: account.memory,
        max_memory: limit("max_memory"),
        storage: account.storage,
        max_storage: limit("max_storage"),
    };
    let mut streams = Vec::new();
    for wanted in setup::streams(link) {
        streams.push(look(link, &wanted).await?);
    }
    let list = format!("CONSUMER.LIST.{}", link.names.work);
    let consumers = match link.api::<Consumers>(&list, &json!({})).await {
        Ok(found) => found.consumers.unwrap_or_default(),
        Err(fault) if fault.is_missing() => Vec::new(),
        Err(fault) => return Err(fault),
    };
    let server = link.client.server_info();
    Ok(Survey {
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

async fn look(link: &Link, wanted: &Wanted) -> Result<StreamFound, Fault> {
    #[derive(Deserialize)]
    struct Found {
        #[serde(flatten)]
        info: StreamInfo,
        #[serde(flatten)]
        configured: Configured,
    }
    let name = wanted.name.clone();
    let found = link.api::<Found>(&format!("STREAM.INFO.{name}"), &json!({})).await;
    let (created, state, differences) = match found {
        Err(fault) if fault.is_missing() => (None, StreamState::default(), Vec::new()),
        Err(fault) => return Err(fault),
        Ok(Found { info, configured }) => {
            let differences = wanted.differences(&configured.config).into_iter();
            let text = |d: setup::Difference| format!("{}: {}, {}", d.setting, d.found, d.wanted);
            (Some(info.created), info.state, differences.map(text).collect())
        }
    };
    let StreamState { messages, bytes, last_seq: last_sequence, .. } = state;
    let present = created.is_some();
    Ok(StreamFound { name, present, created, messages, bytes, last_sequence, differences })
}
