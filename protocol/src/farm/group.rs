//! Requests for groups of samples.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::limits;
use crate::sample_key::GroupId;
use crate::spec::trial::TrialRef;
use crate::wire::offer::SizeClass;

/// A request for a group: `n` samples of one task. Sending the same request again has no further
/// effect; another request under the same id is a conflict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRequest {
    /// The caller's id.
    pub group: GroupId,
    /// The task.
    pub task: TaskChoice,
    /// Number of samples.
    pub n: u32,
    /// Version of the policy that the samples are made with, as the trainer says.
    #[serde(default)]
    pub policy_version: u64,
    /// The model that agents call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelEndpoint>,
    /// Sampling parameters, passed to agents as they are.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub sampling: Map<String, Value>,
    /// Samples of a higher priority begin first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// Seconds after admission at which samples that have not ended are cancelled. Time of a pause
    /// does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_sec: Option<u64>,
    /// How samples that the infrastructure lost are treated.
    #[serde(default)]
    pub group_policy: GroupPolicy,
    /// Maximum number of samples that are replaced, over the whole group; `n` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_refills: Option<u32>,
    /// Number of usable samples that is enough: the others are cancelled then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_usable: Option<u32>,
    /// The consumer that reads the completions; the farm's first one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// Returned with every completion of the group, which share it in memory.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub metadata: Arc<Map<String, Value>>,
}

pub(super) fn is_empty(map: &Arc<Map<String, Value>>) -> bool {
    map.is_empty()
}

/// Memory of a sample and of its completion beside the metadata, about.
const SAMPLE_BYTES: u64 = 1024;

/// Memory of a JSON value beside its text, about: a list has room for twice its values.
const VALUE_BYTES: u64 = 64;

/// The same of a field of an object.
const FIELD_BYTES: u64 = 128;

/// Memory that a value takes beside itself, about: its text, and the values in it.
fn memory_bytes(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len() as u64,
        Value::Array(values) => values.iter().map(|value| VALUE_BYTES + memory_bytes(value)).sum(),
        Value::Object(fields) => fields_bytes(fields),
    }
}

/// Memory that the fields of an object take, about.
fn fields_bytes(fields: &Map<String, Value>) -> u64 {
    let field =
        |(name, value): (&String, &Value)| FIELD_BYTES + name.len() as u64 + memory_bytes(value);
    fields.iter().map(field).sum()
}

/// Counts what is written.
struct ByteCount(u64);

impl io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Length of the fields of an object as JSON; 0 without any.
pub(super) fn json_bytes(fields: &Map<String, Value>) -> u64 {
    let mut count = ByteCount(0);
    if !fields.is_empty() {
        serde_json::to_writer(&mut count, fields).expect("text keys, and counting does not fail");
    }
    count.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// The task of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskChoice {
    /// A task of the farm's datasets, as `dataset/task`; the dataset may be left out if only one has
    /// a task of this name.
    Named(String),
    /// A task that the request itself describes.
    Inline(InlineTask),
}

/// A task of the farm with another instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InlineTask {
    /// The task whose environment, tests and time limits are used, as in [`TaskChoice::Named`].
    pub base: String,
    /// The instruction.
    pub instruction: String,
}

/// A model and its address, exported to agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEndpoint {
    /// Name of the model.
    pub name: String,
    /// Base URL of an API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
}

/// How a group treats samples that the infrastructure lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupPolicy {
    /// A new generation of the sample begins, up to `max_refills`.
    #[default]
    Refill,
    /// The group is dropped as soon as it cannot be whole, or cannot reach `min_usable`.
    Drop,
    /// The group ends with the samples that it has.
    AsIs,
}

/// The documents that the samples of a group run under, and their requirements on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutSpec {
    /// Digest of the settings document.
    pub settings: Digest,
    /// Digest of the agent document.
    pub agent: Digest,
    /// Digest of the task document.
    pub task: Digest,
    /// Size class of the environment.
    pub class: SizeClass,
    /// Lane: requirements on a worker.
    pub lane: u16,
}

impl RolloutSpec {
    /// The spec of the sample with this index, from 0.
    pub fn trial_ref(&self, index: u32) -> TrialRef {
        let Self { settings, agent, task, .. } = *self;
        TrialRef { settings, agent, task, attempt: index.saturating_add(1) }
    }
}

/// A request whose task was found and whose documents are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdmittedGroup {
    /// The request.
    pub request: GroupRequest,
    /// Digest of the request: another one under the same id is a conflict.
    pub content: Digest,
    /// Its documents.
    pub spec: RolloutSpec,
}

/// Why a request is invalid, whatever the state of the farm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum InvalidGroup {
    /// No sample.
    #[error("`n` is 0: a group has at least one sample")]
    Empty,
    /// More samples than the farm may hold.
    #[error("`n` is {n}: the farm holds at most {limit} samples")]
    TooLarge {
        /// Samples of the group.
        n: u32,
        /// The limit.
        limit: u32,
    },
    /// `min_usable` is 0 or above `n`.
    #[error("`min_usable` is {min_usable}: use 1 to `n`, {n}")]
    MinUsable {
        /// Its value.
        min_usable: u32,
        /// Samples of the group.
        n: u32,
    },
    /// The farm has no such consumer.
    #[error("the farm has no consumer `{consumer}`")]
    Consumer {
        /// Its name.
        consumer: String,
    },
    /// The metadata and parameters are too large.
    #[error("the request has {bytes} bytes: at most {} are allowed", limits::GROUP_REQUEST_BYTES)]
    TooLong {
        /// Their size as JSON.
        bytes: usize,
    },
    /// The metadata and parameters are too large for this number of samples.
    #[error(
        "the request has {bytes} bytes for each of {n} samples: at most {} in all are allowed",
        limits::GROUP_SAMPLES_BYTES
    )]
    TooLongInAll {
        /// Their size as JSON.
        bytes: usize,
        /// Samples of the group.
        n: u32,
    },
}

impl GroupRequest {
    /// A request with all defaults.
    pub fn new(group: GroupId, task: impl Into<String>, n: u32) -> Self {
        Self {
            group,
            task: TaskChoice::Named(task.into()),
            n,
            policy_version: 0,
            model: None,
            sampling: Map::new(),
            priority: 0,
            deadline_sec: None,
            group_policy: GroupPolicy::default(),
            max_refills: None,
            min_usable: None,
            consumer: None,
            metadata: Arc::default(),
        }
    }

    /// Samples that may be replaced.
    pub fn refill_limit(&self) -> u32 {
        match self.group_policy {
            GroupPolicy::Refill => self.max_refills.unwrap_or(self.n),
            GroupPolicy::Drop | GroupPolicy::AsIs => 0,
        }
    }

    /// Bytes that a farm needs for it, about: in memory for the request and its samples, and in answers
    /// to its consumers, where each completion repeats the metadata.
    pub fn held_bytes(&self) -> u64 {
        let task = match &self.task {
            TaskChoice::Named(name) => name.len(),
            TaskChoice::Inline(task) => task.base.len() + task.instruction.len(),
        };
        let model = self
            .model
            .iter()
            .map(|model| model.name.len() + model.base_url.as_ref().map_or(0, String::len));
        let texts = task + model.sum::<usize>() + self.group.as_str().len();
        let sample = SAMPLE_BYTES.saturating_add(json_bytes(&self.metadata));
        let values = fields_bytes(&self.metadata).saturating_add(fields_bytes(&self.sampling));
        values.saturating_add(texts as u64).saturating_add(sample.saturating_mul(self.n.into()))
    }

    /// The digest of the request.
    ///
    /// # Errors
    /// An error of the serialization, which has only text keys.
    pub fn content(&self) -> Result<Digest, serde_json::Error> {
        Digest::sha256_json(self)
    }

    /// Checks the request against the farm's limit on samples and its consumers.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(&self, most_samples: u32, consumers: &[String]) -> Result<(), InvalidGroup> {
        let n = self.n;
        match self.min_usable {
            _ if n == 0 => return Err(InvalidGroup::Empty),
            _ if n > most_samples => return Err(InvalidGroup::TooLarge { n, limit: most_samples }),
            Some(min_usable) if min_usable == 0 || min_usable > n => {
                return Err(InvalidGroup::MinUsable { min_usable, n });
            }
            _ => {}
        }
        if let Some(consumer) = self.consumer.as_ref().filter(|name| !consumers.contains(name)) {
            let consumer = limits::shorten(consumer.clone(), limits::NAME_BYTES);
            return Err(InvalidGroup::Consumer { consumer });
        }
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |text| text.len());
        if bytes > limits::GROUP_REQUEST_BYTES {
            return Err(InvalidGroup::TooLong { bytes });
        }
        if bytes.saturating_mul(n as usize) > limits::GROUP_SAMPLES_BYTES {
            return Err(InvalidGroup::TooLongInAll { bytes, n });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(n: u32) -> GroupRequest {
        GroupRequest::new("g".parse().expect("an id"), "d/t", n)
    }

    fn metadata(value: Value) -> Arc<Map<String, Value>> {
        Arc::new([("k".to_owned(), value)].into_iter().collect())
    }

    #[test]
    fn request_needs_what_its_values_take_and_the_metadata_of_each_sample() {
        assert_eq!(request(4).held_bytes(), 4 + 4 * SAMPLE_BYTES, "its id and its task");
        let bare = request(2).held_bytes();
        let with = |value| GroupRequest { metadata: metadata(value), ..request(2) }.held_bytes();
        // {"k":"12345"}, and a text whose JSON is six times as long.
        assert_eq!(with("12345".into()), bare + 6 + FIELD_BYTES + 2 * 13);
        assert_eq!(with("\u{1}".into()), bare + 2 + FIELD_BYTES + 2 * 14);
        // {"k":[0,0,0,0]}
        assert_eq!(with(vec![0; 4].into()), bare + 1 + FIELD_BYTES + 4 * VALUE_BYTES + 2 * 15);
        let sampling = [("k".to_owned(), vec![0; 9].into())].into_iter().collect();
        let sampled = GroupRequest { sampling, ..request(2) };
        assert_eq!(sampled.held_bytes(), bare + 1 + FIELD_BYTES + 9 * VALUE_BYTES);
        let instruction = "x".repeat(1000);
        let inline = InlineTask { base: "d/t".to_owned(), instruction };
        let inline = GroupRequest { task: TaskChoice::Inline(inline), ..request(2) };
        assert_eq!(inline.held_bytes(), bare + 1000);
    }

    #[test]
    fn group_request_has_short_form_and_defaults() {
        let text = r#"{"group":"g","task":{"named":"d/t"},"n":8,"policy_version":0,"group_policy":"refill"}"#;
        assert_eq!(serde_json::to_string(&request(8)).expect("JSON"), text);
        let short = r#"{"group":"g","task":{"named":"d/t"},"n":8}"#;
        let read: GroupRequest = serde_json::from_str(short).expect("a request");
        assert_eq!(read, request(8));
        assert_eq!(read.content().expect("a digest"), request(8).content().expect("a digest"));
        assert!(serde_json::from_str::<GroupRequest>(r#"{"group":"g","n":8}"#).is_err());
    }

    #[test]
    fn refill_limit_is_of_refilled_groups_only() {
        assert_eq!(request(3).refill_limit(), 3);
        let limited = GroupRequest { max_refills: Some(1), ..request(3) };
        assert_eq!(limited.refill_limit(), 1);
        let dropped = GroupRequest { group_policy: GroupPolicy::Drop, ..limited };
        assert_eq!(dropped.refill_limit(), 0);
    }

    #[test]
    fn group_that_no_farm_could_hold_is_invalid() {
        let consumers = ["train".to_owned()];
        let check = |request: GroupRequest| request.check(4, &consumers);
        assert_eq!(check(request(4)), Ok(()));
        assert_eq!(check(request(0)), Err(InvalidGroup::Empty));
        assert_eq!(check(request(5)), Err(InvalidGroup::TooLarge { n: 5, limit: 4 }));
        let usable = GroupRequest { min_usable: Some(5), ..request(4) };
        assert_eq!(check(usable), Err(InvalidGroup::MinUsable { min_usable: 5, n: 4 }));
        let other = GroupRequest { consumer: Some("eval".to_owned()), ..request(1) };
        assert_eq!(check(other), Err(InvalidGroup::Consumer { consumer: "eval".to_owned() }));
        let text = Value::String("x".repeat(limits::GROUP_REQUEST_BYTES));
        let long = GroupRequest { metadata: metadata(text), ..request(1) };
        assert!(matches!(check(long), Err(InvalidGroup::TooLong { .. })));
        let text = Value::String("x".repeat(limits::GROUP_REQUEST_BYTES / 2));
        for (n, is_allowed) in [(64, true), (4000, false)] {
            let large = GroupRequest { metadata: metadata(text.clone()), ..request(n) };
            assert_eq!(large.check(4000, &[]).is_ok(), is_allowed, "{n}");
        }
    }
}
