//! Messages that removed entries of runs leave in their bucket, one for each: the old ones are purged.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{api_request, parse_api};
use super::connect::Nats;
use super::error::NatsError;
use super::names;
use super::snapshot::{self, REQUESTS_AT_ONCE};
use crate::traits::QueueError;

impl Nats {
    /// Purges what entries have left that were removed `age` ago or earlier. A user that may not do that
    /// leaves it.
    ///
    /// Markers of recent removals must stay: a server that is killed within minutes of a purge forgets the
    /// purge together with what came shortly before it, and would have the entry again.
    ///
    /// # Errors
    /// [`QueueError`]; some may have been purged.
    pub async fn purge_removed_entries(&self, age: Duration) -> Result<(), QueueError> {
        let client = self.client();
        let verb = format!("STREAM.PURGE.{}", names::bucket_stream(&client.names.runs));
        let mut old = Vec::new();
        snapshot::visit_keys(client, &client.names.runs, |found| {
            if found.stored.deletion && found.age >= age {
                old.push((found.stored.subject, found.stored.sequence));
            }
        })
        .await?;
        for some in old.chunks(REQUESTS_AT_ONCE) {
            // Messages that were written later stay.
            let purge = |(subject, sequence): &(String, u64)| {
                let which = json!({ "filter": subject, "seq": sequence.saturating_add(1) });
                api_request(&verb, &which)
            };
            for answer in client.request_all(some.iter().map(purge).collect()).await? {
                match answer.and_then(|answer| parse_api::<Value>(&answer.payload)) {
                    // The permissions are those of an earlier version. The client has warned.
                    Err(NatsError::Denied(_)) => return Ok(()),
                    purged => purged?,
                };
            }
        }
        Ok(())
    }
}
