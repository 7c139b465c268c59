//! Appending to streams: many at once, each with its own answer.

use std::borrow::Cow;

use async_nats::HeaderMap;
use serde::Deserialize;

use super::client::NatsClient;
use super::error::{ApiError, NatsError};
use super::replies::{NatsRequest, ReplyResult};

/// What became of a message.
pub(super) type PublishResult = Result<u64, NatsError>;

/// The header by which a message is stored only if the last one of its subject has this sequence.
const EXPECTED_SEQUENCE_HEADER: &str = "Nats-Expected-Last-Subject-Sequence";
/// The header by which a value of a bucket is a deletion.
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
    /// Appends messages; the sequence of each.
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
        NatsError::Unreachable(format!("an acknowledgement is not understood: {e}"))
    })?;
    match ack.error {
        Some(error) => Err(NatsError::Api(error)),
        // Somebody who subscribed to the subject could answer too.
        None if ack.stream.is_empty() || ack.seq == 0 => {
            Err(NatsError::Unreachable("something that is no stream acknowledged".to_owned()))
        }
        None => Ok(ack.seq),
    }
}
