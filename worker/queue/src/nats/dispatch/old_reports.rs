//! Migration of reports that an earlier version stored under subjects without a pool.

use serde_json::{Value, json};

use crate::nats::client::NatsClient;
use crate::nats::error::NatsError;
use crate::nats::replies::NatsRequest;

/// Stores them again under the subjects that runs are read from now, and removes the old ones. If
/// interrupted, it leaves duplicates, which are harmless to readers.
pub(super) async fn move_old_reports(client: &NatsClient) -> Result<(), NatsError> {
    let (stream, [old, _]) = (&client.names.reports, client.names.report_subjects());
    let mut next = 1;
    while let Some(stored) = client.next_message(stream, &old, next).await? {
        next = stored.sequence + 1;
        for published in
            client.publish(vec![NatsRequest::new(stored.subject, stored.payload)]).await?
        {
            published?;
        }
    }
    if next > 1 {
        let verb = format!("STREAM.PURGE.{stream}");
        client.api_call::<Value>(&verb, &json!({ "filter": old, "seq": next })).await?;
    }
    Ok(())
}
