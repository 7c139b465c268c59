//! The last message of every subject: the subjects come with the stream's state, and the messages
//! are requested in one batch. Workers have the permission for it, too: it creates nothing on the
//! server.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::datetime::{DateTime, parse_rfc3339};
use serde::Deserialize;
use serde_json::json;

use super::client::NatsClient;
use super::error::NatsError;
use super::names;
use super::stored_message::{StoredMessage, message_request, parse_message};

/// Most requests for messages of a bucket at a time: the bucket of runs has an entry of a kilobyte for each
/// run that is kept, and those may be a hundred thousand.
pub(super) const REQUESTS_AT_ONCE: usize = 1024;

#[derive(Deserialize)]
struct StreamSubjectsInfo {
    state: StreamSubjectsState,
    #[serde(default)]
    total: usize,
    #[serde(default)]
    created: String,
    /// The server's time.
    #[serde(default)]
    ts: String,
}

#[derive(Deserialize)]
struct StreamSubjectsState {
    #[serde(default)]
    subjects: Option<HashMap<String, u64>>,
}

/// A message and its age by the server's clock.
#[derive(Debug)]
pub(super) struct AgedMessage {
    pub(super) stored: StoredMessage,
    pub(super) age: Duration,
}

/// The subjects of a stream that match, and the server's time.
pub(super) async fn matching_subjects(
    client: &NatsClient,
    stream: &str,
    filter: &str,
) -> Result<(Vec<String>, Option<DateTime>), NatsError> {
    let mut found = Vec::new();
    let now = count_messages(client, stream, filter, |subject, _| found.push(subject)).await?;
    Ok((found, now))
}

/// Passes the subjects of a stream that match to `see`, with the number of their messages. There may be
/// millions: only a page of them is in memory. Returns the server's time.
pub(super) async fn count_messages(
    client: &NatsClient,
    stream: &str,
    filter: &str,
    mut see: impl FnMut(String, u64),
) -> Result<Option<DateTime>, NatsError> {
    let verb = format!("STREAM.INFO.{stream}");
    let mut seen = 0;
    loop {
        let page = json!({ "subjects_filter": filter, "offset": seen });
        let info: StreamSubjectsInfo = client.api_call(&verb, &page).await?;
        let subjects = info.state.subjects.unwrap_or_default();
        let last_page = subjects.is_empty();
        seen += subjects.len();
        for (subject, messages) in subjects {
            see(subject, messages);
        }
        if last_page || seen >= info.total {
            return Ok(parse_rfc3339(&info.ts).ok());
        }
    }
}

/// The age of a stream by the server's clock.
pub(super) async fn stream_age(client: &NatsClient, stream: &str) -> Result<Duration, NatsError> {
    let info: StreamSubjectsInfo =
        client.api_call(&format!("STREAM.INFO.{stream}"), &json!({})).await?;
    let times = parse_rfc3339(&info.ts).ok().zip(parse_rfc3339(&info.created).ok());
    let age = times.and_then(|(now, created)| Duration::try_from(now - created).ok());
    Ok(age.unwrap_or_default())
}

/// The last message of each key of a bucket, without deletions, in the order of the stream.
pub(super) async fn read_bucket(
    client: &NatsClient,
    bucket: &str,
) -> Result<Vec<AgedMessage>, NatsError> {
    let mut found = Vec::new();
    let keep = |aged: AgedMessage| {
        if !aged.stored.deletion {
            found.push(aged);
        }
    };
    visit_keys(client, bucket, keep).await?;
    found.sort_by_key(|aged| aged.stored.sequence);
    Ok(found)
}

/// Passes the last message of each key of a bucket to `see`; that of a removed key is a deletion. Only some
/// messages are in memory at a time.
pub(super) async fn visit_keys(
    client: &NatsClient,
    bucket: &str,
    mut see: impl FnMut(AgedMessage),
) -> Result<(), NatsError> {
    let stream = names::bucket_stream(bucket);
    let (subjects, now) =
        matching_subjects(client, &stream, &names::key_subject(bucket, ">")).await?;
    for some in subjects.chunks(REQUESTS_AT_ONCE) {
        let get = |subject| message_request(&stream, &json!({ "last_by_subj": subject }));
        for answer in client.request_all(some.iter().map(get).collect()).await? {
            if let Some((stored, time)) = parse_message(answer)? {
                let time = parse_rfc3339(&time).ok();
                let age = now.zip(time).and_then(|(now, time)| Duration::try_from(now - time).ok());
                see(AgedMessage { stored, age: age.unwrap_or_default() });
            }
        }
    }
    Ok(())
}
