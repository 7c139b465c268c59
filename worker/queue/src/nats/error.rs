//! Errors of requests to the server.

use serde::Deserialize;

use crate::traits::QueueError;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NatsError {
    /// No response, so the outcome is unknown.
    #[error("{0}")]
    Unreachable(String),
    /// The server refuses the request for this user.
    #[error("{0}")]
    Denied(String),
    /// No responder on the subject: no stream, no consumer, no coordinator.
    #[error("no responder {}", describe_subject(.0))]
    NoResponders(String),
    /// The server's error response.
    #[error("{} ({})", .0.description, .0.err_code)]
    Api(ApiError),
}

/// An error of the JetStream API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct ApiError {
    /// A status code as in HTTP.
    #[serde(default)]
    pub(super) code: u16,
    /// The exact error number.
    #[serde(default)]
    pub(super) err_code: u32,
    /// A description, which also distinguishes errors that share a number.
    #[serde(default)]
    pub(super) description: String,
}

/// The account, or the server, has not enough disk for a stream.
const OUT_OF_STORAGE: [u32; 2] = [10002, INSUFFICIENT_RESOURCES];
/// There is no such consumer.
pub(super) const CONSUMER_NOT_FOUND: u32 = 10014;
/// There is no such message.
pub(super) const NO_MESSAGE: u32 = 10037;
/// The account has no JetStream.
pub(super) const NOT_ENABLED_FOR_ACCOUNT: u32 = 10039;
/// Disk or memory is exhausted.
const INSUFFICIENT_RESOURCES: u32 = 10047;
/// There is no such stream.
pub(super) const STREAM_NOT_FOUND: u32 = 10059;
/// Another sequence was the last one.
const WRONG_LAST_SEQUENCE: [u32; 2] = [10071, 10164];
/// JetStream is not enabled.
pub(super) const NOT_ENABLED: u32 = 10076;
/// The stream refused a message; the text says why.
const STORE_FAILED: u32 = 10077;

/// Prefix of the subjects of keys of buckets.
const KEY_PREFIX: &str = "$KV.";

/// A subject, or its bucket. Which part of the server is missing is not certain: the stream behind
/// the subject may exist and have no leader.
fn describe_subject(subject: &str) -> String {
    let bucket = subject.strip_prefix(KEY_PREFIX).and_then(|key| key.split('.').next());
    match bucket {
        Some(bucket) => format!("for the bucket `{bucket}`"),
        None => format!("on `{subject}`"),
    }
}

impl ApiError {
    /// A message with the same subject exists already.
    pub(super) fn is_present(&self) -> bool {
        self.err_code == STORE_FAILED
            && self.description.contains("maximum messages per subject exceeded")
    }

    /// The stream, or this subject of it, is full.
    pub(super) fn is_full(&self) -> bool {
        self.err_code == INSUFFICIENT_RESOURCES
            || self.err_code == STORE_FAILED
                && (self.is_present()
                    || self.description.contains("maximum messages exceeded")
                    || self.description.contains("maximum bytes exceeded"))
    }

    /// There is not enough disk for a new stream.
    pub(super) fn is_out_of_storage(&self) -> bool {
        OUT_OF_STORAGE.contains(&self.err_code)
    }

    /// Another client wrote in between.
    pub(super) fn is_conflict(&self) -> bool {
        WRONG_LAST_SEQUENCE.contains(&self.err_code)
    }
}

impl NatsError {
    /// A stream or consumer does not exist, or not yet.
    pub(super) fn is_missing(&self) -> bool {
        match self {
            Self::NoResponders(_) => true,
            Self::Api(error) => {
                matches!(error.err_code, CONSUMER_NOT_FOUND | STREAM_NOT_FOUND)
            }
            Self::Unreachable(_) | Self::Denied(_) => false,
        }
    }

    pub(super) fn is_no_message(&self) -> bool {
        matches!(self, Self::Api(error) if error.err_code == NO_MESSAGE)
    }
}

impl From<NatsError> for QueueError {
    fn from(fault: NatsError) -> Self {
        let reason = fault.to_string();
        match fault {
            NatsError::Denied(_) => Self::Denied { reason },
            // A missing stream or a temporary failure may work later.
            NatsError::Api(error)
                if (400..500).contains(&error.code)
                    && !matches!(error.err_code, CONSUMER_NOT_FOUND | STREAM_NOT_FOUND) =>
            {
                Self::Denied { reason }
            }
            NatsError::Unreachable(_) | NatsError::NoResponders(_) | NatsError::Api(_) => {
                Self::Unreachable { reason }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_without_responder_names_subject_or_bucket() {
        for (subject, reason) in [
            ("$KV.ROLLOUT_WORKERS.vm-1", "no responder for the bucket `ROLLOUT_WORKERS`"),
            ("rollout.v1.report.default.x", "no responder on `rollout.v1.report.default.x`"),
            ("$JS.API.INFO", "no responder on `$JS.API.INFO`"),
            ("$JS.hub.API.INFO", "no responder on `$JS.hub.API.INFO`"),
        ] {
            let error: QueueError = NatsError::NoResponders(subject.to_owned()).into();
            assert_eq!(error.to_string(), format!("cannot use the queue: {reason}"));
        }
    }

    #[test]
    fn stream_missing_is_reported_without_advice() {
        let error: QueueError = NatsError::Api(ApiError {
            code: 404,
            err_code: STREAM_NOT_FOUND,
            description: "stream not found".to_owned(),
        })
        .into();
        assert_eq!(error.to_string(), "cannot use the queue: stream not found (10059)");
    }
}
