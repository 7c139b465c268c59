//! Reports that an earlier version stored by subjects that name no pool.

use serde_json::{Value, json};

use crate::queue::nats::fault::Fault;
use crate::queue::nats::link::Link;
use crate::queue::nats::replies::Request;

/// Stores them again, by the subjects that runs are read from now, and removes them. Ended in
/// between, it leaves some twice, which readers do not mind.
pub(super) async fn move_old_reports(link: &Link) -> Result<(), Fault> {
    let (stream, [old, _]) = (&link.names.reports, link.names.report_subjects());
    let mut next = 1;
    while let Some(stored) = link.next(stream, &old, next).await? {
        next = stored.sequence + 1;
        for published in link.publish(vec![Request::new(stored.subject, stored.payload)]).await? {
            published?;
        }
    }
    if next > 1 {
        let verb = format!("STREAM.PURGE.{stream}");
        link.api::<Value>(&verb, &json!({ "filter": old, "seq": next })).await?;
    }
    Ok(())
}
