//! Appending to streams: many at once, each with its own answer.

use std::borrow::Cow;

use async_nats::HeaderMap;
use serde::Deserialize;

use super::fault::{ApiError, Fault};
use super::link::Link;
use super::replies::{Answered, Request};

/// What became of a message.
pub(super) type Published = Result<u64, Fault>;

/// The header by which a message is stored only if the last one of its subject has this sequence.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// The header by which a value of a bucket is a deletion.
pub(super) const OPERATION: &str = "KV-Operation";

#[derive(Deserialize)]
struct PubAck<'a> {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    error: Option<ApiError>,
    #[serde(borrow)]
    #[serde(default)]
    stream: Cow<'a, str>,
}

impl Link {
    /// Appends messages; the sequence of each.
    pub(super) async fn publish(&self, messages: Vec<Request>) -> Result<Vec<Published>, Fault> {
        let answers = self.ask(messages).await?;
        Ok(answers.into_iter().map(parse_ack).collect())
    }

    /// Appends a message if the last one of its subject has this sequence, 0 for none.
    pub(super) async fn publish_after(
        &self,
        mut message: Request,
        sequence: u64,
        delete: bool,
    ) -> Published {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED, sequence.to_string().as_str());
        if delete {
            headers.insert(OPERATION, "DEL");
        }
        message.headers = Some(headers);
        parse_ack(self.ask_one(message).await)
    }
}

fn parse_ack(answer: Answered) -> Published {
    let answer = answer?;
    let ack: PubAck<'_> = serde_json::from_slice(&answer.payload)
        .map_err(|e| Fault::Unreachable(format!("an acknowledgement is not understood: {e}")))?;
    match ack.error {
        Some(error) => Err(Fault::Api(error)),
        // Somebody who subscribed to the subject could answer too.
        None if ack.stream.is_empty() || ack.seq == 0 => {
            Err(Fault::Unreachable("something that is no stream acknowledged".to_owned()))
        }
        None => Ok(ack.seq),
    }
}
