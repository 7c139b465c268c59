//! Errors of the API as `application/problem+json` (RFC 9457), with the codes of the command line.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rollout_base::backoff::error_chain;
use rollout_base::shared_limit::LimitReached;
use rollout_protocol::exit::ExitCode;
use serde::Serialize;
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

use crate::daemon::{DaemonError, RecordError, RunFailure};

/// Media type of problems.
const PROBLEM_JSON: &str = "application/problem+json";

/// Beginning of the types of problems.
const TYPE_PREFIX: &str = "urn:rollout:problem:";

/// When a request may be sent again for which there was no room, or no disk.
const LIMIT_RETRY_AFTER: Duration = Duration::from_secs(5);

/// An error of a request.
#[derive(Debug, Clone)]
pub(super) struct ApiProblem {
    pub(super) status: StatusCode,
    /// Its kind, for programs.
    kind: &'static str,
    failure: Box<RunFailure>,
    retry_after: Option<Duration>,
    busy: Option<BusyMembers>,
}

/// The limit that a request exceeds.
#[derive(Debug, Clone, Copy)]
pub(super) struct BusyMembers {
    /// The limit.
    pub(super) limit: &'static str,
    /// How much of it the user has.
    pub(super) depth: u64,
    /// How much there may be.
    pub(super) max: u64,
}

/// The document of an error.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct Problem {
    /// Kind of the problem: `urn:rollout:problem:` and a word.
    #[serde(rename = "type")]
    kind: String,
    /// The phrase of the status.
    title: String,
    /// The status of the reply.
    status: u16,
    /// The failed operation and its cause.
    detail: String,
    /// The exit code that the command line has for this error.
    code: u8,
    /// Details, one line each.
    details: Vec<String>,
    /// Suggested actions.
    hints: Vec<String>,
    /// The id of the request, as in `x-request-id`.
    request_id: String,
    /// With status 429: the limit that is reached, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    /// With `limit`: how much of it you have.
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u64>,
    /// With `limit`: how much there may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<u64>,
}

impl ApiProblem {
    /// A problem with a status, a kind and an exit code.
    pub(super) fn new(
        status: StatusCode,
        kind: &'static str,
        code: ExitCode,
        message: impl Into<String>,
    ) -> Self {
        let (message, details, hints) = (message.into(), Vec::new(), Vec::new());
        let (code, is_temporary) = (code.code(), false);
        let failure = RunFailure { code, message, details, hints, is_temporary };
        Self::from_failure(status, kind, failure)
    }

    /// A request that cannot be understood.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", ExitCode::Usage, message)
    }

    /// A limit that is reached, or the part of it that the user may have. How much others hold is not
    /// told: a user could follow their requests with it.
    pub(super) fn limit_reached(
        kind: &'static str,
        message: &str,
        limit: &'static str,
        reached: LimitReached,
    ) -> Self {
        let LimitReached { own, total, .. } = reached;
        let message = format!("{message}; you have {own} of {total}");
        Self::new(StatusCode::TOO_MANY_REQUESTS, kind, ExitCode::OutOfReach, message)
            .retry_after(LIMIT_RETRY_AFTER)
            .busy(BusyMembers { limit, depth: own, max: total })
    }

    /// Something that does not exist, or not for this user.
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", ExitCode::Config, message)
    }

    /// A failure with its own code.
    pub(super) fn from_failure(
        status: StatusCode,
        kind: &'static str,
        failure: RunFailure,
    ) -> Self {
        Self { status, kind, failure: Box::new(failure), retry_after: None, busy: None }
    }

    /// States the limit that is reached.
    pub(super) fn busy(mut self, members: BusyMembers) -> Self {
        self.busy = Some(members);
        self
    }

    /// Adds a suggested action.
    pub(super) fn hint(mut self, hint: &str) -> Self {
        self.failure.hints.push(hint.to_owned());
        self
    }

    /// Adds a detail.
    pub(super) fn detail(mut self, detail: &str) -> Self {
        self.failure.details.push(detail.to_owned());
        self
    }

    /// States when to try again.
    pub(super) fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The reply to a request.
    pub(super) fn render(self, request_id: &str, of: HeaderMap) -> Response {
        let Self { status, kind, failure, retry_after, busy } = self;
        let RunFailure { code, message, details, hints, .. } = *failure;
        let document = Problem {
            kind: format!("{TYPE_PREFIX}{kind}"),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: message,
            code,
            details,
            hints,
            request_id: request_id.to_owned(),
            limit: busy.map(|busy| busy.limit),
            depth: busy.map(|busy| busy.depth),
            max: busy.map(|busy| busy.max),
        };
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.extend(of);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(after) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The reply is made where the id of the request is known.
impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<DaemonError> for ApiProblem {
    fn from(error: DaemonError) -> Self {
        let text = error.to_string();
        match error {
            DaemonError::NotFound | DaemonError::NoItem | DaemonError::NoFiles => {
                Self::not_found(text)
            }
            DaemonError::Unreadable { .. } => {
                Self::new(StatusCode::CONFLICT, "unreadable", ExitCode::RunDamaged, text)
            }
            DaemonError::Invalid(failure) => {
                Self::from_failure(StatusCode::UNPROCESSABLE_ENTITY, "invalid-job", failure)
            }
            DaemonError::Failed(failure) => {
                Self::from_failure(failed_status(&failure), "failed", failure)
            }
            DaemonError::NoDataset => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                Self::new(status, "missing-dataset", ExitCode::Config, text)
            }
            DaemonError::BadQuery(_) => Self::bad_request(text),
            DaemonError::KeyConflict => {
                Self::new(StatusCode::CONFLICT, "idempotency-conflict", ExitCode::Config, text)
                    .hint("use another key for another submission")
            }
            DaemonError::Conflict { .. } => {
                Self::new(StatusCode::CONFLICT, "conflict", ExitCode::Config, text)
            }
            DaemonError::NotOpen => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "not-open", ExitCode::OutOfReach, text)
                    .retry_after(Duration::from_secs(1))
            }
            DaemonError::Ended => Self::new(StatusCode::CONFLICT, "ended", ExitCode::Config, text),
            DaemonError::SessionFailed(failure) => {
                Self::from_failure(StatusCode::CONFLICT, "failed", failure)
            }
            DaemonError::Busy { retry_after, .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", ExitCode::OutOfReach, text)
                    .retry_after(retry_after)
            }
            DaemonError::NoDisk(reached) => {
                let mut problem = Self::limit_reached("no-disk", &text, "disk", reached);
                problem.status = StatusCode::INSUFFICIENT_STORAGE;
                problem.retry_after = None;
                problem.hint("ask the operator to remove datasets, or to raise `--user-disk`")
            }
            DaemonError::Stopping => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", ExitCode::OutOfReach, text)
                    .retry_after(Duration::from_secs(5))
            }
            DaemonError::Unfinished => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", ExitCode::Failure, text)
            }
            DaemonError::Record(error) => Self::from_record(&error),
        }
    }
}

impl ApiProblem {
    /// A record of the state directory that cannot be read or written. Paths of the server are not for
    /// users.
    fn from_record(error: &RecordError) -> Self {
        tracing::error!("cannot use the state directory: {}", error_chain(error));
        let text = "cannot use the state directory of the server";
        let problem = match error {
            // Its disk may take writes again.
            RecordError::File { .. } => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, "state-directory", ExitCode::OutOfReach, text)
                    .retry_after(LIMIT_RETRY_AFTER)
            }
            RecordError::Damaged { .. } | RecordError::Newer { .. } | RecordError::InUse { .. } => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Self::new(status, "internal", ExitCode::Failure, text)
            }
        };
        problem.hint("the log of the server has the cause")
    }
}

/// The status of a run that cannot be read: a damaged run is a fact about the run, not a failure of
/// the server.
fn failed_status(failure: &RunFailure) -> StatusCode {
    let is = |code: ExitCode| failure.code == code.code();
    if is(ExitCode::OutOfReach) {
        StatusCode::SERVICE_UNAVAILABLE
    } else if is(ExitCode::Failure) {
        StatusCode::INTERNAL_SERVER_ERROR
    } else if is(ExitCode::Config) {
        StatusCode::NOT_FOUND
    } else {
        StatusCode::CONFLICT
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn fault_of_the_state_directory_is_told_without_its_path() {
        let path = || PathBuf::from("/srv/state/runs/r1.json");
        let (action, source) = ("write", std::io::Error::other("/srv/state is full"));
        let reason = "/srv/state has no record".to_owned();
        let internal = StatusCode::INTERNAL_SERVER_ERROR;
        for (error, status) in [
            (RecordError::File { action, path: path(), source }, StatusCode::SERVICE_UNAVAILABLE),
            (RecordError::Damaged { path: path(), reason }, internal),
            (RecordError::Newer { path: path(), found: 99 }, internal),
            (RecordError::InUse { path: path() }, internal),
        ] {
            let problem = ApiProblem::from(DaemonError::Record(error));
            assert_eq!(problem.status, status, "{problem:?}");
            let text = format!("{:?}", problem.failure);
            assert!(text.contains("the state directory of the server"), "{text}");
            assert!(!text.contains("/srv"), "{text}");
        }
    }
}
