//! Required streams, buckets and consumers on the server, and their creation.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use rollout_protocol::wire::offer::SizeClass;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::NatsClient;
use super::error::{ApiError, CONSUMER_NOT_FOUND, NatsError, STREAM_NOT_FOUND};
use super::missing_disk::MissingDisk;
use super::names::{self, NatsName};
use super::options::NatsOptions;
use super::replicas;
use super::server_info;
use crate::traits::QueueError;

/// Limit on unacknowledged deliveries of one class in the whole pool. The server delivers no more
/// beyond it, so it is far more than workers run.
const MAX_UNACKNOWLEDGED: u64 = 100_000;
/// Limit on waiting requests for work: a few per worker.
const MAX_WAITING_PULLS: u64 = 16_384;
/// How long unread reports are kept: the spools of their workers are given up long before.
const REPORTS_KEPT_SECONDS: u64 = 30 * 24 * 3600;
/// How long a heartbeat is kept: a worker without one for this long is long gone.
const HELLO_KEPT_SECONDS: u64 = 3600;
/// Larger offers do not exist.
pub(super) const MAX_OFFER_BYTES: usize = 64 * 1024;

/// Bytes of unpurged reports of all runs: enough for a full run of the largest ones.
const REPORT_STREAM_BYTES: u64 = 1024 * 1024 * 1024;

/// The server's reason while it knows too few servers of its cluster that run.
const NO_PEERS: &str = "no suitable peers";

const NANOSECONDS: u64 = 1_000_000_000;

/// Why the server could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum NatsSetupError {
    /// The request to the server failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A stream or consumer of that name exists with another setting.
    #[error(
        "{name} has {setting} {found}, {wanted} is required: something else created or changed \
         it; use another namespace, or remove it while nothing runs"
    )]
    Differs {
        /// Stream or consumer.
        name: String,
        /// Setting.
        setting: String,
        /// Required value.
        wanted: String,
        /// Actual value.
        found: String,
    },
    /// The account, or the server, has less disk than a stream reserves.
    #[error("{missing} ({reason})")]
    Resources {
        /// The stream and the disk.
        missing: MissingDisk,
        /// The server's reason.
        reason: String,
    },
    /// The servers cannot hold as many copies of a stream.
    #[error("cannot keep {wanted} copies of {name}: {reason}")]
    Copies {
        /// Stream.
        name: String,
        /// Number of copies.
        wanted: u8,
        /// The server's reason.
        reason: String,
    },
}

impl NatsSetupError {
    /// Whether another attempt may succeed soon: the server is away, or does not know all servers of
    /// its cluster yet, as right after its start.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Queue(error) => matches!(error, QueueError::Unreachable { .. }),
            Self::Copies { reason, .. } => reason.starts_with(NO_PEERS),
            Self::Differs { .. } | Self::Resources { .. } => false,
        }
    }
}

impl From<NatsError> for NatsSetupError {
    fn from(fault: NatsError) -> Self {
        Self::Queue(fault.into())
    }
}

/// The settings of a stream or consumer.
pub(super) type ServerSettings = Map<String, Value>;

/// A required stream or consumer.
#[derive(Debug, Clone)]
pub(super) struct RequiredResource {
    pub(super) name: String,
    pub(super) settings: ServerSettings,
    /// Settings that it is created with and that may be changed later.
    pub(super) defaults: ServerSettings,
}

/// A setting that differs from the required one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SettingDifference {
    pub(super) setting: String,
    pub(super) wanted: String,
    pub(super) found: String,
}

impl RequiredResource {
    fn new(name: &str, settings: Value) -> Self {
        let Value::Object(settings) = settings else { unreachable!("settings are an object") };
        Self { name: name.to_owned(), settings, defaults: ServerSettings::new() }
    }

    /// Adds a setting that is required if `wanted` is given, and otherwise only a default.
    fn with_setting(mut self, setting: &str, wanted: Option<u64>, default: u64) -> Self {
        match wanted {
            Some(value) => self.settings.insert(setting.to_owned(), value.into()),
            None => self.defaults.insert(setting.to_owned(), default.into()),
        };
        self
    }

    /// Bytes of disk that it reserves, all copies together.
    pub(super) fn reserved_bytes(&self) -> u64 {
        let setting = |name: &str| self.settings.get(name).or_else(|| self.defaults.get(name));
        // No limit is -1.
        let number = |name: &str| setting(name).and_then(Value::as_u64);
        let copies = number(replicas::SETTING).unwrap_or(1);
        number("max_bytes").unwrap_or(0).saturating_mul(copies)
    }

    /// The differences of a configuration from the server. Settings that it omits are zero values:
    /// false, 0, empty.
    pub(super) fn differences(&self, found: &ServerSettings) -> Vec<SettingDifference> {
        let nothing = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Number(number) => number.as_i64() == Some(0),
            Value::String(text) => text.is_empty(),
            _ => false,
        };
        let differs = |(setting, wanted): (&String, &Value)| {
            let found = found.get(setting).unwrap_or(&Value::Null);
            let same = found == wanted || nothing(found) && nothing(wanted);
            (!same).then(|| SettingDifference {
                setting: setting.clone(),
                wanted: value_text(setting, wanted),
                found: value_text(setting, found),
            })
        };
        self.settings.iter().filter_map(differs).collect()
    }

    /// Whether the stream is one of an earlier version: it has some of the required subjects, and
    /// no others.
    fn lacks_subjects(&self, found: &ServerSettings) -> bool {
        let subjects = |settings: &ServerSettings| -> Option<BTreeSet<String>> {
            let subjects = settings.get("subjects")?.as_array()?;
            subjects.iter().map(|subject| subject.as_str().map(str::to_owned)).collect()
        };
        match (subjects(&self.settings), subjects(found)) {
            (Some(wanted), Some(found)) => found.len() < wanted.len() && found.is_subset(&wanted),
            _ => false,
        }
    }

    fn check(&self, found: &ServerSettings) -> Result<(), NatsSetupError> {
        match self.differences(found).into_iter().next() {
            None => Ok(()),
            Some(SettingDifference { setting, wanted, found }) => {
                Err(NatsSetupError::Differs { name: self.name.clone(), setting, wanted, found })
            }
        }
    }
}

impl fmt::Display for SettingDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, {} is required", self.setting, self.found, self.wanted)
    }
}

/// The value of a setting as JSON, or as a duration.
fn value_text(setting: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(nanoseconds) if matches!(setting, "ack_wait" | "max_age") => {
            format!("{:?}", Duration::from_nanos(nanoseconds))
        }
        _ => value.to_string(),
    }
}

/// The required streams, including those of the buckets.
pub(super) fn required_streams(client: &NatsClient) -> Vec<RequiredResource> {
    let (names, options) = (&client.names, &client.options);
    let streams = [
        RequiredResource::new(
            &names.work,
            json!({
                "subjects": [names.all_offers()], "retention": "workqueue", "storage": "file",
                "max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": true,
                "max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msg_size": MAX_OFFER_BYTES,
                "allow_direct": true, "deny_delete": false, "deny_purge": false, "sealed": false,
            }),
        ),
        RequiredResource::new(
            &names.reports,
            json!({
                "subjects": names.report_subjects(),
                "subject_transform": names.reports_without_pool(), "retention": "limits", "storage": "file",
                "max_msgs_per_subject": options.reports_per_run, "discard": "new",
                "discard_new_per_subject": true, "max_msgs": -1,
                "max_age": REPORTS_KEPT_SECONDS * NANOSECONDS,
                "deny_delete": false, "deny_purge": false, "sealed": false,
            }),
        )
        .with_setting("max_bytes", options.report_stream_bytes, REPORT_STREAM_BYTES),
        required_bucket(&names.runs, 0),
        // On disk, so that heartbeats survive the server: a coordinator that takes over from one
        // that died with it knows at once which workers may run executions.
        required_bucket(&names.workers, HELLO_KEPT_SECONDS),
    ];
    let replicas = replicas::of_new_streams(client);
    streams.map(|stream| stream.with_setting(replicas::SETTING, None, replicas.into())).into()
}

fn required_bucket(name: &str, kept_seconds: u64) -> RequiredResource {
    RequiredResource::new(
        &names::bucket_stream(name),
        json!({
            "subjects": [names::key_subject(name, ">")], "retention": "limits", "storage": "file",
            "max_msgs_per_subject": 1, "discard": "new", "max_age": kept_seconds * NANOSECONDS,
            "max_msgs": -1, "max_bytes": -1, "allow_rollup_hdrs": true, "deny_delete": true,
            "allow_direct": true, "sealed": false,
        }),
    )
}

/// The required consumer of a class of a pool.
pub(super) fn required_consumer(
    client: &NatsClient,
    pool: &NatsName,
    class: SizeClass,
) -> RequiredResource {
    let NatsOptions { lease, .. } = client.options;
    let name = names::consumer_name(pool, class);
    RequiredResource::new(
        &name,
        json!({
            "durable_name": name, "deliver_policy": "all", "replay_policy": "instant",
            "ack_policy": "explicit", "ack_wait": u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX),
            "max_deliver": -1, "max_ack_pending": MAX_UNACKNOWLEDGED, "max_waiting": MAX_WAITING_PULLS,
            "filter_subject": client.names.class_offers(pool, class),
        }),
    )
}

/// The server's response about a stream or consumer.
#[derive(Debug, Deserialize)]
pub(super) struct ResourceInfo {
    pub(super) config: ServerSettings,
}

/// Creates what is missing and compares the rest.
pub(super) async fn ensure_resources(
    client: &NatsClient,
    pool: &NatsName,
    classes: &[SizeClass],
) -> Result<(), NatsSetupError> {
    for stream in required_streams(client) {
        ensure_stream(client, &stream).await?;
    }
    // The consumer for single trials decides the lease of the pool. It comes first, so that a
    // process with another lease is refused before it creates any other consumer.
    let (solo, others): (Vec<SizeClass>, Vec<SizeClass>) =
        classes.iter().copied().partition(|class| *class == SizeClass::SOLO);
    for class in solo.into_iter().chain(others) {
        ensure_consumer(client, &required_consumer(client, pool, class)).await?;
    }
    Ok(())
}

async fn ensure_stream(
    client: &NatsClient,
    wanted: &RequiredResource,
) -> Result<(), NatsSetupError> {
    let name = &wanted.name;
    let mut found =
        match client.api_call::<ResourceInfo>(&format!("STREAM.INFO.{name}"), &json!({})).await {
            Err(NatsError::Api(error)) if error.err_code == STREAM_NOT_FOUND => {
                tracing::info!("creating stream {name}");
                let mut settings = wanted.settings.clone();
                settings.insert("name".to_owned(), name.as_str().into());
                settings.extend(wanted.defaults.clone());
                create_stream(client, wanted, &settings).await?
            }
            found => found?,
        };
    if wanted.lacks_subjects(&found.config) {
        tracing::info!("adding subjects to stream {name}");
        for setting in ["subjects", "subject_transform"] {
            if let Some(value) = wanted.settings.get(setting) {
                found.config.insert(setting.to_owned(), value.clone());
            }
        }
        found = client
            .api_call::<ResourceInfo>(&format!("STREAM.UPDATE.{name}"), &found.config)
            .await?;
    }
    wanted.check(&found.config)
}

async fn create_stream(
    client: &NatsClient,
    wanted: &RequiredResource,
    settings: &ServerSettings,
) -> Result<ResourceInfo, NatsSetupError> {
    match client.api_call(&format!("STREAM.CREATE.{}", wanted.name), settings).await {
        Err(NatsError::Api(error)) if error.is_out_of_storage() => {
            Err(out_of_storage(client, wanted, &error).await)
        }
        Err(NatsError::Api(error)) => {
            let refusal = replicas::refusal(wanted, replicas::of_new_streams(client), &error);
            Err(refusal.unwrap_or(NatsError::Api(error).into()))
        }
        created => Ok(created?),
    }
}

/// The error of a stream for which there is not enough disk.
async fn out_of_storage(
    client: &NatsClient,
    wanted: &RequiredResource,
    error: &ApiError,
) -> NatsSetupError {
    let limits = server_info::account_limits(client).await;
    let missing = MissingDisk::of_refused(&wanted.name, wanted.reserved_bytes(), limits);
    NatsSetupError::Resources { missing, reason: error.description.clone() }
}

/// Gives every stream `copies` copies. Returns the names of those that had another number.
pub(super) async fn change_replicas(
    client: &NatsClient,
    copies: u8,
) -> Result<Vec<String>, NatsSetupError> {
    let mut changed = Vec::new();
    for stream in required_streams(client) {
        if replicas::change(client, &stream, copies).await? {
            changed.push(stream.name);
        }
    }
    Ok(changed)
}

async fn ensure_consumer(
    client: &NatsClient,
    wanted: &RequiredResource,
) -> Result<(), NatsSetupError> {
    let (stream, name) = (&client.names.work, &wanted.name);
    let info = format!("CONSUMER.INFO.{stream}.{name}");
    let found = match client.api_call::<ResourceInfo>(&info, &json!({})).await {
        Err(NatsError::Api(error)) if error.err_code == CONSUMER_NOT_FOUND => {
            tracing::info!("creating consumer {name} of {stream}");
            let mut settings = wanted.settings.clone();
            settings.insert("name".to_owned(), name.as_str().into());
            let filter = settings["filter_subject"].as_str().unwrap_or(">");
            let create = format!("CONSUMER.CREATE.{stream}.{name}.{filter}");
            let body = json!({ "stream_name": stream, "config": settings, "action": "create" });
            client.api_call::<ResourceInfo>(&create, &body).await?
        }
        found => found?,
    };
    wanted.check(&found.config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_setting_omitted_by_server_equals_zero_value() {
        let wanted = RequiredResource::new("S", json!({ "a": 0, "b": false, "c": 7, "d": ["x"] }));
        let found = |value: Value| value.as_object().expect("an object").clone();
        assert_eq!(wanted.differences(&found(json!({ "c": 7, "d": ["x"], "e": 1 }))), []);
        let differences = wanted.differences(&found(json!({ "a": 1, "c": 7 })));
        let settings: Vec<_> = differences.iter().map(|d| d.setting.as_str()).collect();
        assert_eq!(settings, ["a", "d"]);
        assert_eq!((&*differences[1].wanted, &*differences[1].found), (r#"["x"]"#, "null"));
    }

    #[test]
    fn every_copy_of_a_stream_reserves_its_disk() {
        let stream = |bytes: Value| RequiredResource::new("S", json!({ "max_bytes": bytes }));
        assert_eq!(stream(json!(-1)).reserved_bytes(), 0, "it has no limit");
        let copied = stream(json!(100)).with_setting(replicas::SETTING, None, 3);
        assert_eq!((stream(json!(100)).reserved_bytes(), copied.reserved_bytes()), (100, 300));
    }

    #[test]
    fn consumer_with_other_lease_differs_in_ack_wait() {
        let ack_wait = |seconds: u64| json!({ "ack_wait": seconds * NANOSECONDS });
        let wanted = RequiredResource::new("C", ack_wait(30));
        let found = ack_wait(60).as_object().expect("an object").clone();
        let differences: Vec<_> =
            wanted.differences(&found).iter().map(ToString::to_string).collect();
        assert_eq!(differences, ["ack_wait is 60s, 30s is required"]);
    }

    #[test]
    fn stream_of_an_earlier_version_lacks_subjects() {
        let wanted = RequiredResource::new("S", json!({ "subjects": ["a", "b"] }));
        let lacks = |found: Value| wanted.lacks_subjects(found.as_object().expect("an object"));
        assert!(lacks(json!({ "subjects": ["a"] })));
        for other in [json!({ "subjects": ["b", "a"] }), json!({ "subjects": ["c"] }), json!({})] {
            assert!(!lacks(other.clone()), "{other}");
        }
    }
}
