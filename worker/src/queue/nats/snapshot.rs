//! The last message of every subject, read through a consumer that is gone afterwards.

use std::time::Duration;

use async_nats::StatusCode;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::fault::Fault;
use super::kv::Stored;
use super::link::{Link, PATIENCE};
use super::meta::Meta;
use super::publish::OPERATION;

/// Messages of a snapshot asked for at once.
const BATCH: u64 = 1000;
/// A consumer that is not asked for this long removes itself.
const FORGOTTEN: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Made {
    num_pending: u64,
}

/// The last message of each subject that matches, in the order of the stream.
pub(super) async fn last_of_each(
    link: &Link,
    stream: &str,
    filter: &str,
) -> Result<Vec<Stored>, Fault> {
    let inbox = link.client.new_inbox();
    let unreachable = |error: &dyn std::fmt::Display| Fault::Unreachable(error.to_string());
    let mut arriving =
        link.client.subscribe(inbox.clone()).await.map_err(|error| unreachable(&error))?;
    let name = format!("snapshot-{:016x}", rand::random::<u64>());
    let config = json!({
        "name": name, "deliver_policy": "last_per_subject", "ack_policy": "none",
        "replay_policy": "instant", "filter_subject": filter, "mem_storage": true,
        "num_replicas": 1,
        "inactive_threshold": u64::try_from(FORGOTTEN.as_nanos()).unwrap_or(u64::MAX),
    });
    let create = format!("CONSUMER.CREATE.{stream}.{name}.{filter}");
    let made: Made = link
        .api(&create, &json!({ "stream_name": stream, "config": config, "action": "create" }))
        .await?;
    let mut found = Vec::new();
    let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
    let mut missing = made.num_pending;
    while missing > 0 {
        let batch = missing.min(BATCH);
        let ask = json!({ "batch": batch, "no_wait": true }).to_string();
        let sent = link.client.publish_with_reply(next.clone(), inbox.clone(), ask.into()).await;
        sent.map_err(|error| unreachable(&error))?;
        let deadline = Instant::now() + PATIENCE;
        let before = found.len();
        for _ in 0..batch {
            let Ok(Some(message)) = timeout_at(deadline, arriving.next()).await else {
                return Err(Fault::Unreachable("no answer in time".to_owned()));
            };
            match message.status {
                None => found.push(stored(message)),
                Some(StatusCode::NO_RESPONDERS) => return Err(Fault::NoResponders(next)),
                // What was pending has been replaced meanwhile, or comes no more.
                Some(_) => break,
            }
        }
        if found.len() == before {
            break;
        }
        missing = missing.saturating_sub((found.len() - before) as u64);
    }
    Ok(newest(found))
}

/// A subject that was written meanwhile is there twice.
fn newest(mut found: Vec<Stored>) -> Vec<Stored> {
    found.sort_by(|a, b| (&a.subject, b.sequence).cmp(&(&b.subject, a.sequence)));
    found.dedup_by(|later, first| later.subject == first.subject);
    found.sort_by_key(|stored| stored.sequence);
    found
}

fn stored(message: async_nats::Message) -> Stored {
    let deletion = message.headers.as_ref().is_some_and(|headers| headers.get(OPERATION).is_some());
    let sequence =
        message.reply.as_deref().and_then(|reply| Some(Meta::parse(reply)?.sequence)).unwrap_or(0);
    Stored { subject: message.subject.into_string(), sequence, payload: message.payload, deletion }
}
