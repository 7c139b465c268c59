//! Single messages of streams, read from the leader: a response is never older than its request.

use bytes::Bytes;
use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{NatsClient, api_request, parse_api};
use super::error::NatsError;
use super::publish::KV_OPERATION_HEADER;
use super::replies::{NatsRequest, ReplyResult};

/// A message of a stream.
#[derive(Debug, Clone)]
pub(super) struct StoredMessage {
    pub(super) subject: String,
    pub(super) sequence: u64,
    pub(super) payload: Bytes,
    /// Whether it marks the removal of its key.
    pub(super) deletion: bool,
}

#[derive(Deserialize)]
struct MessageAnswer {
    message: EncodedMessage,
}

#[derive(Deserialize)]
struct EncodedMessage {
    subject: String,
    seq: u64,
    #[serde(default)]
    data: String,
    #[serde(default)]
    hdrs: String,
    /// When it was stored, by the server's clock.
    #[serde(default)]
    time: String,
}

/// A request for one message.
pub(super) fn message_request(stream: &str, which: &Value) -> NatsRequest {
    api_request(&format!("STREAM.MSG.GET.{stream}"), which)
}

/// Parses a message with the time it was stored; `None` when there is no message.
pub(super) fn parse_message(
    answer: ReplyResult,
) -> Result<Option<(StoredMessage, String)>, NatsError> {
    let EncodedMessage { subject, seq, data, hdrs, time } =
        match parse_api::<MessageAnswer>(&answer?.payload) {
            Ok(MessageAnswer { message }) => message,
            Err(fault) if fault.is_no_message() => return Ok(None),
            Err(fault) => return Err(fault),
        };
    let decode = |text: String| {
        let garbled =
            |_| NatsError::Unreachable("cannot decode a message of the server".to_owned());
        BASE64.decode(text.as_bytes()).map_err(garbled)
    };
    let headers = decode(hdrs)?;
    let deletion = String::from_utf8_lossy(&headers).contains(KV_OPERATION_HEADER);
    let payload = decode(data)?.into();
    Ok(Some((StoredMessage { subject, sequence: seq, payload, deletion }, time)))
}

impl NatsClient {
    /// The last message of a subject.
    pub(super) async fn last_message(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, NatsError> {
        self.request_message(stream, json!({ "last_by_subj": subject })).await
    }

    /// The first message of these subjects that has at least this sequence.
    pub(super) async fn next_message(
        &self,
        stream: &str,
        subjects: &str,
        sequence: u64,
    ) -> Result<Option<StoredMessage>, NatsError> {
        self.request_message(stream, json!({ "next_by_subj": subjects, "seq": sequence })).await
    }

    /// The message with this sequence.
    pub(super) async fn message_at(
        &self,
        stream: &str,
        sequence: u64,
    ) -> Result<Option<StoredMessage>, NatsError> {
        self.request_message(stream, json!({ "seq": sequence })).await
    }

    async fn request_message(
        &self,
        stream: &str,
        which: Value,
    ) -> Result<Option<StoredMessage>, NatsError> {
        let answer = self.request(message_request(stream, &which)).await;
        Ok(parse_message(answer)?.map(|(stored, _)| stored))
    }
}
