//! Messages that removed entries of runs leave in their bucket, one for each: they are purged.

use rollout_protocol::id::RunId;
use serde_json::{Value, json};

use super::client::{NatsClient, api_request, parse_api};
use super::connect::Nats;
use super::error::NatsError;
use super::stored_message::StoredMessage;
use super::{kv_store, names, snapshot};
use crate::queue::traits::QueueError;

impl Nats {
    /// Purges what the entry of a run has left, if it was removed. A user that may not do that leaves it.
    ///
    /// # Errors
    /// [`QueueError`].
    pub async fn purge_removed_entry(&self, run: RunId) -> Result<(), QueueError> {
        let client = self.client();
        let left = kv_store::read_key(client, &client.names.runs, &run.to_string()).await?;
        Ok(purge_deletions(client, left).await?)
    }

    /// Purges what all removed entries have left. A user that may not do that leaves it.
    ///
    /// # Errors
    /// [`QueueError`]; some may have been purged.
    pub async fn purge_removed_entries(&self) -> Result<(), QueueError> {
        let client = self.client();
        let found = snapshot::read_keys(client, &client.names.runs).await?;
        Ok(purge_deletions(client, found.into_iter().map(|aged| aged.stored)).await?)
    }
}

/// Purges those of these messages that are deletions. What was written later stays.
async fn purge_deletions(
    client: &NatsClient,
    found: impl IntoIterator<Item = StoredMessage>,
) -> Result<(), NatsError> {
    let verb = format!("STREAM.PURGE.{}", names::bucket_stream(&client.names.runs));
    let purge = |stored: StoredMessage| {
        let which = json!({ "filter": stored.subject, "seq": stored.sequence.saturating_add(1) });
        api_request(&verb, &which)
    };
    let deletions = found.into_iter().filter(|stored| stored.deletion);
    for answer in client.request_all(deletions.map(purge).collect()).await? {
        match answer.and_then(|answer| parse_api::<Value>(&answer.payload)) {
            // The permissions are those of an earlier version. The client has warned.
            Err(NatsError::Denied(_)) => return Ok(()),
            purged => purged?,
        };
    }
    Ok(())
}
