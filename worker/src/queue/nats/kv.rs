//! Single messages of streams, asked of the leader: an answer is never older than the question.

use bytes::Bytes;
use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use super::fault::Fault;
use super::link::{Link, api_request, parse_api};
use super::publish::OPERATION;
use super::replies::{Answered, Request};

/// A message of a stream.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) subject: String,
    pub(super) sequence: u64,
    pub(super) payload: Bytes,
    /// It says that the key was removed.
    pub(super) deletion: bool,
}

#[derive(Deserialize)]
struct Answer {
    message: Raw,
}

#[derive(Deserialize)]
struct Raw {
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

/// Asks for one message.
pub(super) fn message_request(stream: &str, which: &Value) -> Request {
    api_request(&format!("STREAM.MSG.GET.{stream}"), which)
}

/// A message with the time it was stored; none when there is none.
pub(super) fn parse_message(answer: Answered) -> Result<Option<(Stored, String)>, Fault> {
    let Raw { subject, seq, data, hdrs, time } = match parse_api::<Answer>(&answer?.payload) {
        Ok(Answer { message }) => message,
        Err(fault) if fault.is_no_message() => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let decode = |text: String| {
        let garbled = |_| Fault::Unreachable("a message of the server is garbled".to_owned());
        BASE64.decode(text.as_bytes()).map_err(garbled)
    };
    let headers = decode(hdrs)?;
    let deletion = String::from_utf8_lossy(&headers).contains(OPERATION);
    let payload = decode(data)?.into();
    Ok(Some((Stored { subject, sequence: seq, payload, deletion }, time)))
}

impl Link {
    /// The last message of a subject.
    pub(super) async fn last(&self, stream: &str, subject: &str) -> Result<Option<Stored>, Fault> {
        self.message(stream, json!({ "last_by_subj": subject })).await
    }

    /// The first message of subjects that has at least this sequence.
    pub(super) async fn next(
        &self,
        stream: &str,
        subjects: &str,
        sequence: u64,
    ) -> Result<Option<Stored>, Fault> {
        self.message(stream, json!({ "next_by_subj": subjects, "seq": sequence })).await
    }

    /// The message with this sequence.
    pub(super) async fn at(&self, stream: &str, sequence: u64) -> Result<Option<Stored>, Fault> {
        self.message(stream, json!({ "seq": sequence })).await
    }

    async fn message(&self, stream: &str, which: Value) -> Result<Option<Stored>, Fault> {
        let answer = self.ask_one(message_request(stream, &which)).await;
        Ok(parse_message(answer)?.map(|(stored, _)| stored))
    }
}
