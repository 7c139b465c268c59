//! Locks and states of runs, in a bucket.

use async_trait::async_trait;
use bytes::Bytes;

use super::connect::Nats;
use super::fault::Fault;
use super::kv::Stored;
use super::link::Link;
use super::names;
use super::replies::Request;
use super::snapshot::{self, Aged};
use crate::queue::traits::{Board, Entry, QueueError};

/// In front of keys of the bucket that bind pools: no keys of a board.
pub(super) const POOLS: &str = "pool.";

/// The bucket `<namespace>_RUNS` as a [`Board`]. Every answer is the leader's.
#[derive(Debug, Clone)]
pub struct NatsBoard {
    nats: Nats,
}

impl NatsBoard {
    pub(super) fn new(nats: Nats) -> Self {
        Self { nats }
    }

    fn link(&self) -> &Link {
        self.nats.link()
    }
}

/// What stands under a key of a bucket.
pub(super) async fn read(link: &Link, bucket: &str, key: &str) -> Result<Option<Stored>, Fault> {
    let subject = names::key(bucket, key);
    let last = link.last(&names::stream_of(bucket), &subject).await?;
    Ok(last.filter(|stored| stored.subject == subject))
}

/// Writes a key of a bucket if what stands there has this revision, or if nothing does.
pub(super) async fn write(
    link: &Link,
    bucket: &str,
    key: &str,
    value: Bytes,
    revision: Option<u64>,
) -> Result<Option<u64>, Fault> {
    let subject = names::key(bucket, key);
    let put = async |sequence| {
        let message = Request::new(subject.clone(), value.clone());
        match link.publish_after(message, sequence, false).await {
            Ok(sequence) => Ok(Some(sequence)),
            Err(Fault::Api(error)) if error.is_conflict() => Ok(None),
            Err(fault) => Err(fault),
        }
    };
    let written = put(revision.unwrap_or(0)).await?;
    if written.is_some() || revision.is_some() {
        return Ok(written);
    }
    // A removed key leaves a message behind.
    match read(link, bucket, key).await? {
        Some(stored) if stored.deletion => put(stored.sequence).await,
        _ => Ok(None),
    }
}

fn checked(key: &str) -> Result<(), QueueError> {
    let good = !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    let reason = || format!("`{key}` is no key: expected characters of [A-Za-z0-9_-]");
    if good { Ok(()) } else { Err(QueueError::Denied { reason: reason() }) }
}

#[async_trait]
impl Board for NatsBoard {
    async fn read(&self, key: &str) -> Result<Option<Entry>, QueueError> {
        checked(key)?;
        let stored = read(self.link(), &self.link().names.runs, key).await?;
        Ok(stored.filter(|stored| !stored.deletion).map(entry))
    }

    async fn write(
        &self,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>, QueueError> {
        checked(key)?;
        Ok(write(self.link(), &self.link().names.runs, key, value, revision).await?)
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<bool, QueueError> {
        checked(key)?;
        let message = Request::new(names::key(&self.link().names.runs, key), Bytes::new());
        match self.link().publish_after(message, revision, true).await {
            Ok(_) => Ok(true),
            Err(Fault::Api(error)) if error.is_conflict() => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }

    async fn all(&self) -> Result<Vec<(String, Entry)>, QueueError> {
        let bucket = &self.link().names.runs;
        let prefix = names::key(bucket, "");
        let found = snapshot::bucket(self.link(), bucket).await?;
        let keys = found.into_iter().filter_map(|Aged { stored, .. }| {
            let key = stored.subject.strip_prefix(&prefix)?.to_owned();
            (!key.starts_with(POOLS)).then(|| (key, entry(stored)))
        });
        Ok(keys.collect())
    }
}

fn entry(stored: Stored) -> Entry {
    Entry { revision: stored.sequence, value: stored.payload }
}
