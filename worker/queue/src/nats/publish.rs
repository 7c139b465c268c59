//! Publishing to streams, in batches with one result per message.

use std::borrow::Cow;

use async_nats::HeaderMap;
use serde::Deserialize;

use super::client::NatsClient;
use super::error::{ApiError, NatsError};
use super::replies::{NatsRequest, ReplyResult};

/// The sequence of a published message, or why it was not stored.
pub(super) type PublishResult = Result<u64, NatsError>;

/// The header that stores a message only if the last one of its subject has this sequence.
const EXPECTED_SEQUENCE_HEADER: &str = "Nats-Expected-Last-Subject-Sequence";
/// The header that marks a message of a bucket as a deletion.
pub(super) const KV_OPERATION_HEADER: &str = "KV-Operation";

#[derive(Deserialize)]
struct PublishAck<'a> {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    error: Option<ApiError>,
    #[serde(borrow)]
    #[serde(default)]
    stream: Cow<'a, str>,
}

impl NatsClient {
    /// Appends messages; returns the sequence of each.
    pub(super) async fn publish(
        &self,
        messages: Vec<NatsRequest>,
    ) -> Result<Vec<PublishResult>, NatsError> {
        let answers = self.request_all(messages).await?;
        Ok(answers.into_iter().map(parse_ack).collect())
    }

    /// Appends a message if the last one of its subject has this sequence, 0 for none.
    pub(super) async fn publish_after(
        &self,
        mut message: NatsRequest,
        sequence: u64,
        delete: bool,
    ) -> PublishResult {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_SEQUENCE_HEADER, sequence.to_string().as_str());
        if delete {
            headers.insert(KV_OPERATION_HEADER, "DEL");
        }
        message.headers = Some(headers);
        parse_ack(self.request(message).await)
    }
}

fn parse_ack(answer: ReplyResult) -> PublishResult {
    let answer = answer?;
    let ack: PublishAck<'_> = serde_json::from_slice(&answer.payload).map_err(|e| {
        NatsError::Unreachable(format!("cannot parse the server's acknowledgement: {e}"))
    })?;
    match ack.error {
        Some(error) => Err(NatsError::Api(error)),
        // Another subscriber of the subject could reply, too.
        None if ack.stream.is_empty() || ack.seq == 0 => {
            Err(NatsError::Unreachable("the acknowledgement is not from a stream".to_owned()))
        }
        None => Ok(ack.seq),
    }
}
