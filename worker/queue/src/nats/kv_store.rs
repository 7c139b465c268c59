//! The key-value store of locks and states of runs, in a bucket.

use async_trait::async_trait;
use bytes::Bytes;

use super::client::NatsClient;
use super::connect::Nats;
use super::error::NatsError;
use super::names;
use super::replies::NatsRequest;
use super::snapshot::{self, AgedMessage};
use super::stored_message::StoredMessage;
use crate::traits::{KvEntry, KvStore, ListedKvEntry, QueueError};

/// Prefix of the bucket's keys that bind pools: they are not keys of a [`KvStore`].
pub(super) const POOL_KEY_PREFIX: &str = "pool.";

/// The bucket `<namespace>_RUNS` as a [`KvStore`]. Every read goes to the leader.
#[derive(Debug, Clone)]
pub struct NatsKvStore {
    nats: Nats,
}

impl NatsKvStore {
    pub(super) fn new(nats: Nats) -> Self {
        Self { nats }
    }

    fn client(&self) -> &NatsClient {
        self.nats.client()
    }
}

/// The entry of a key of a bucket.
pub(super) async fn read_key(
    client: &NatsClient,
    bucket: &str,
    key: &str,
) -> Result<Option<StoredMessage>, NatsError> {
    let subject = names::key_subject(bucket, key);
    let last = client.last_message(&names::bucket_stream(bucket), &subject).await?;
    Ok(last.filter(|stored| stored.subject == subject))
}

/// Writes a key of a bucket if its entry has this revision, or if it has no entry when the revision
/// is absent.
pub(super) async fn write_key(
    client: &NatsClient,
    bucket: &str,
    key: &str,
    value: Bytes,
    revision: Option<u64>,
) -> Result<Option<u64>, NatsError> {
    let subject = names::key_subject(bucket, key);
    let put = async |sequence| {
        let message = NatsRequest::new(subject.clone(), value.clone());
        match client.publish_after(message, sequence, false).await {
            Ok(sequence) => Ok(Some(sequence)),
            Err(NatsError::Api(error)) if error.is_conflict() => Ok(None),
            Err(fault) => Err(fault),
        }
    };
    let written = put(revision.unwrap_or(0)).await?;
    if written.is_some() || revision.is_some() {
        return Ok(written);
    }
    // A removed key leaves a message behind.
    let left = match read_key(client, bucket, key).await? {
        Some(stored) if !stored.deletion => return Ok(None),
        left => left.map_or(0, |stored| stored.sequence),
    };
    match put(left).await? {
        // That message was purged meanwhile.
        None if left > 0 => put(0).await,
        written => Ok(written),
    }
}

fn check_key(key: &str) -> Result<(), QueueError> {
    let good = !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    let reason = || format!("`{key}` is not a valid key: expected characters of [A-Za-z0-9_-]");
    if good { Ok(()) } else { Err(QueueError::Denied { reason: reason() }) }
}

#[async_trait]
impl KvStore for NatsKvStore {
    async fn read(&self, key: &str) -> Result<Option<KvEntry>, QueueError> {
        check_key(key)?;
        let stored = read_key(self.client(), &self.client().names.runs, key).await?;
        Ok(stored.filter(|stored| !stored.deletion).map(into_entry))
    }

    async fn write(
        &self,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>, QueueError> {
        check_key(key)?;
        Ok(write_key(self.client(), &self.client().names.runs, key, value, revision).await?)
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<bool, QueueError> {
        check_key(key)?;
        let message =
            NatsRequest::new(names::key_subject(&self.client().names.runs, key), Bytes::new());
        match self.client().publish_after(message, revision, true).await {
            Ok(_) => Ok(true),
            Err(NatsError::Api(error)) if error.is_conflict() => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }

    async fn entries(&self) -> Result<Vec<ListedKvEntry>, QueueError> {
        let bucket = &self.client().names.runs;
        let prefix = names::key_subject(bucket, "");
        let found = snapshot::read_bucket(self.client(), bucket).await?;
        let listed = found.into_iter().filter_map(|AgedMessage { stored, age }| {
            let key = stored.subject.strip_prefix(&prefix)?.to_owned();
            let is_pool = key.starts_with(POOL_KEY_PREFIX);
            (!is_pool).then(|| ListedKvEntry { key, entry: into_entry(stored), age })
        });
        Ok(listed.collect())
    }
}

fn into_entry(stored: StoredMessage) -> KvEntry {
    KvEntry { revision: stored.sequence, value: stored.payload }
}
