//! The last message of every subject, read through a consumer that is gone afterwards.

use std::time::Duration;

use async_nats::datetime::parse_rfc3339;
use async_nats::{Message, StatusCode};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::fault::Fault;
use super::kv::Stored;
use super::link::{Link, PATIENCE};
use super::meta::Meta;
use super::names;
use super::publish::OPERATION;

/// Messages of a snapshot asked for at once.
const BATCH: u64 = 1000;
/// A consumer that is not asked for this long removes itself.
const FORGOTTEN: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Made {
    num_pending: u64,
    /// The server's time.
    #[serde(default)]
    ts: String,
}

/// A message, and how long ago it was stored by the server's own clock.
#[derive(Debug)]
pub(super) struct Aged {
    pub(super) stored: Stored,
    pub(super) age: Duration,
}

/// The last message of each subject that matches, in the order of the stream.
pub(super) async fn last_of_each(
    link: &Link,
    stream: &str,
    filter: &str,
) -> Result<Vec<Aged>, Fault> {
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
    let now = parse_rfc3339(&made.ts).map_or(0, |now| now.unix_timestamp_nanos());
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
                None => found.push(aged(message, now)),
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

/// What the bucket of hellos holds.
pub(super) async fn hellos(link: &Link) -> Result<Vec<Aged>, Fault> {
    let bucket = &link.names.workers;
    let found = last_of_each(link, &names::stream_of(bucket), &names::key(bucket, ">")).await?;
    Ok(found.into_iter().filter(|aged| !aged.stored.deletion).collect())
}

/// A subject that was written meanwhile is there twice.
fn newest(mut found: Vec<Aged>) -> Vec<Aged> {
    let sequence = |aged: &Aged| aged.stored.sequence;
    let subject = |a: &Aged, b: &Aged| a.stored.subject.cmp(&b.stored.subject);
    found.sort_by(|a, b| subject(a, b).then(sequence(b).cmp(&sequence(a))));
    found.dedup_by(|later, first| later.stored.subject == first.stored.subject);
    found.sort_by_key(sequence);
    found
}

fn aged(message: Message, now: i128) -> Aged {
    let deletion = message.headers.as_ref().is_some_and(|headers| headers.get(OPERATION).is_some());
    let meta = message.reply.as_deref().and_then(Meta::parse);
    let (sequence, stored) = meta.map_or((0, now), |meta| (meta.sequence, meta.stored));
    let age = u64::try_from(now.saturating_sub(stored)).unwrap_or(0);
    let (subject, payload) = (message.subject.into_string(), message.payload);
    Aged { stored: Stored { subject, sequence, payload, deletion }, age: Duration::from_nanos(age) }
}
