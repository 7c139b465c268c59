//! Errors of requests about farms.

use std::time::Duration;

use axum::http::StatusCode;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::farm::{AdmissionRefusal, BusyLimit};

use crate::api::problem::{ApiProblem, BusyMembers};
use crate::daemon::FarmError;

/// When a group may be sent again that did not fit.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The name of the limit on the bytes of groups, of a farm and of all.
const HELD_BYTES: &str = "held_bytes";

/// The name of a limit in documents.
const fn limit_word(limit: BusyLimit) -> &'static str {
    match limit {
        BusyLimit::OpenGroups => "open_groups",
        BusyLimit::OpenSamples => "open_samples",
        BusyLimit::Unacknowledged => "unacknowledged",
        BusyLimit::CancelledGroups => "cancelled_groups",
        BusyLimit::HeldBytes => HELD_BYTES,
    }
}

fn refused(refusal: &AdmissionRefusal) -> ApiProblem {
    let text = refusal.to_string();
    let conflict =
        |kind| ApiProblem::new(StatusCode::CONFLICT, kind, ExitCode::Config, text.clone());
    match *refusal {
        AdmissionRefusal::Busy { limit, depth, max } => {
            let status = StatusCode::TOO_MANY_REQUESTS;
            ApiProblem::new(status, "busy", ExitCode::OutOfReach, text)
                .retry_after(RETRY_AFTER)
                .busy(BusyMembers { limit: limit_word(limit), depth, max })
        }
        AdmissionRefusal::Conflict | AdmissionRefusal::Cancelled => conflict("conflict"),
        AdmissionRefusal::Stale { .. } => conflict("stale"),
        AdmissionRefusal::Closed => conflict("closed"),
        AdmissionRefusal::Invalid { .. } => invalid_group(text),
    }
}

/// Settings of which no farm can be opened.
pub(super) fn invalid_farm(text: impl Into<String>) -> ApiProblem {
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    ApiProblem::new(status, "invalid-farm", ExitCode::Config, text)
}

/// A group that no state of the farm makes valid.
pub(super) fn invalid_group(text: impl Into<String>) -> ApiProblem {
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    ApiProblem::new(status, "invalid-group", ExitCode::Config, text)
}

impl From<FarmError> for ApiProblem {
    fn from(error: FarmError) -> Self {
        let text = error.to_string();
        match error {
            FarmError::NotFound
            | FarmError::NoGroup
            | FarmError::NoCompletion
            | FarmError::NoSampleRecord
            | FarmError::NoConsumer(_)
            | FarmError::NoGateway => Self::not_found(text),
            FarmError::Settings(_) => invalid_farm(text),
            FarmError::Refused(refusal) => refused(&refusal),
            FarmError::Task(_) => invalid_group(text),
            FarmError::Documents(error) => {
                tracing::error!("cannot store the documents of a group: {error}");
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, "store", ExitCode::OutOfReach, "cannot store the group")
                    .retry_after(RETRY_AFTER)
                    .hint("the log of the server has the cause")
            }
            FarmError::Ended => Self::new(StatusCode::CONFLICT, "closed", ExitCode::Config, text),
            FarmError::Failed(failure) => {
                Self::from_failure(StatusCode::CONFLICT, "failed", failure)
                    .hint("`resume` opens the farm again")
            }
            FarmError::NotOpen { retry_after } => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, "starting", ExitCode::OutOfReach, text).retry_after(retry_after)
            }
            FarmError::WaitsForDisk { retry_after } => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, "not-open", ExitCode::OutOfReach, text).retry_after(retry_after)
            }
            FarmError::TooMany { own, max, retry_after } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                Self::new(status, "busy", ExitCode::OutOfReach, text)
                    .retry_after(retry_after)
                    .busy(BusyMembers { limit: "farms", depth: own, max })
            }
            FarmError::Full { own, max } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                Self::new(status, "busy", ExitCode::OutOfReach, text)
                    .retry_after(RETRY_AFTER)
                    .busy(BusyMembers { limit: HELD_BYTES, depth: own, max })
            }
            FarmError::Daemon(error) => error.into(),
        }
    }
}
