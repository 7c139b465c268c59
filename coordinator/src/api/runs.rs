//! Submission, list and control of runs.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use super::documents::{ListQuery, RunDocument, RunList, SubmitQuery, SubmitRun};
use super::gate::require;
use super::problem::ApiProblem;
use super::{ApiState, body, json};
use crate::daemon::{
    Daemon, DaemonError, HostedKind, HostedRun, HostedRunId, JobSubmission, Principal, Role,
    RunQuery, SubmissionResult, SubmittedDocument,
};

/// Runs of a page unless the request says otherwise.
const DEFAULT_LIMIT: usize = 100;

/// Longest idempotency key, bytes.
const MAX_KEY_BYTES: usize = 255;

/// Longest name, characters.
const MAX_NAME_CHARS: usize = 100;

/// Priorities of users are between this number and its opposite.
const MAX_PRIORITY: i32 = 1000;

/// The run that a path names, if the user may see it.
pub(super) fn find(
    state: &ApiState,
    user: &Principal,
    id: &str,
) -> Result<Arc<HostedRun>, ApiProblem> {
    let id: HostedRunId = id.parse().map_err(|_| DaemonError::NotFound)?;
    Ok(state.daemon.find(user, &id)?)
}

/// Submit a job
///
/// The run is durable when the answer arrives. With `Idempotency-Key`, the same submission again gives
/// the same run, with status 200.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/runs",
    tag = "runs",
    params(
        SubmitQuery,
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[ -~]*$", description = "A text that no other submission of this user has"),
    ),
    request_body(
        content(
            (SubmitRun = "application/json"),
            (String = "application/yaml"),
        ),
        description = "A submission, or the text of a job file",
    ),
    responses(
        (status = 201, description = "A new run", body = RunDocument),
        (status = 200, description = "The run that was submitted before under this key", body = RunDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn submit(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let key = idempotency_key(&headers)?;
    let bytes = body::read(&state, &user, &headers, body).await?;
    let parameters: SubmitQuery = body::query(query.as_deref())?;
    let media = media_type(&headers);
    let whole = media.clone();
    let digest =
        move |bytes: &[u8]| sha256([whole.as_bytes(), query.unwrap_or_default().as_bytes(), bytes]);
    let sha256 = body::work(&state, &user, &bytes, digest).await;
    // Its datasets may have been removed since.
    if let Some(run) = state.daemon.known(&user, key.as_deref(), &sha256)? {
        return Ok(answer(StatusCode::OK, &run));
    }
    let (kind, document, name, priority) = match media.as_str() {
        "application/json" | "" => {
            let (daemon, author) = (Arc::clone(&state.daemon), user.clone());
            let read = move |bytes: &[u8]| from_json(&daemon, &author, bytes);
            body::work(&state, &user, &bytes, read).await?
        }
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            let text = std::str::from_utf8(&bytes);
            let text = text.map_err(|_| ApiProblem::bad_request("the job is not UTF-8"))?;
            let priority = parameters.priority.unwrap_or_default();
            let document = SubmittedDocument { text: text.to_owned(), ..Default::default() };
            (parameters.kind.into(), document, parameters.name, priority)
        }
        other => {
            let message = format!(
                "cannot read a body of `{other}`: send `application/json` or `application/yaml`"
            );
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let code = rollout_protocol::exit::ExitCode::Usage;
            return Err(ApiProblem::new(status, "media-type", code, message));
        }
    };
    check_values(name.as_deref(), priority)?;
    let submission = JobSubmission { kind, document, name, priority, key, sha256 };
    let (status, run) = match state.daemon.submit(&user, submission).await? {
        SubmissionResult::New(run) => (StatusCode::CREATED, run),
        SubmissionResult::Known(run) => (StatusCode::OK, run),
    };
    Ok(answer(status, &run))
}

/// SHA-256 of the parts of a submission, in hexadecimal digits.
pub(super) fn sha256<const N: usize>(parts: [&[u8]; N]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn answer(status: StatusCode, run: &HostedRun) -> Response {
    let mut response = (status, json(&RunDocument::from(run.view()))).into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/runs/{}", run.id())) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The submission in a body of JSON. Blocks.
fn from_json(
    daemon: &Daemon,
    user: &Principal,
    bytes: &[u8],
) -> Result<(HostedKind, SubmittedDocument, Option<String>, i32), ApiProblem> {
    let SubmitRun { kind, document, name, priority } = body::parse(bytes)?;
    Ok((kind.into(), document_text(daemon, user, document)?, name, priority))
}

/// The text of a document of a user, with the paths of uploaded datasets. Blocks.
pub(super) fn document_text(
    daemon: &Daemon,
    user: &Principal,
    document: serde_json::Value,
) -> Result<SubmittedDocument, ApiProblem> {
    match document {
        serde_json::Value::String(text) => Ok(SubmittedDocument { text, ..Default::default() }),
        // JSON is YAML; lines give faults a place.
        mut document @ serde_json::Value::Object(_) => {
            let uploads = daemon.resolve_datasets(user, &mut document)?;
            let text = serde_json::to_string_pretty(&document).unwrap_or_default();
            Ok(SubmittedDocument { text, uploads })
        }
        _ => {
            let message = "cannot read `document`: expected an object, or the text of a job file";
            Err(ApiProblem::bad_request(message))
        }
    }
}

pub(super) fn check_values(name: Option<&str>, priority: i32) -> Result<(), ApiProblem> {
    if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&priority) {
        let message = format!(
            "cannot use the priority {priority}: expected -{MAX_PRIORITY} to {MAX_PRIORITY}"
        );
        return Err(ApiProblem::bad_request(message));
    }
    let is_good = |name: &str| {
        (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && !name.chars().any(char::is_control)
    };
    if name.is_some_and(|name| !is_good(name)) {
        let message = format!(
            "cannot use the name: expected 1 to {MAX_NAME_CHARS} characters without control characters"
        );
        return Err(ApiProblem::bad_request(message));
    }
    Ok(())
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiProblem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=MAX_KEY_BYTES).contains(&key.len()));
    key.map(|key| Some(key.to_owned())).ok_or_else(|| {
        ApiProblem::bad_request(format!(
            "cannot use the idempotency key: expected 1 to {MAX_KEY_BYTES} ASCII characters"
        ))
    })
}

/// The media type of a body, without parameters.
fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let value = value.unwrap_or_default().split(';').next().unwrap_or_default();
    value.trim().to_ascii_lowercase()
}

/// List runs
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs",
    tag = "runs",
    params(ListQuery),
    responses(
        (status = 200, description = "Runs, newest first", body = RunList),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let ListQuery { state: wanted, user: of, name, limit, cursor } = body::query(query.as_deref())?;
    let before = cursor.map(|cursor| cursor.parse()).transpose().map_err(|_| {
        ApiProblem::bad_request("cannot use the cursor: it is not `next` of a page")
    })?;
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    let query = RunQuery { state: wanted, user: of, name, before, limit };
    Ok(json(&RunList::from(state.daemon.list(&user, &query))))
}

/// Show a run
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}",
    tag = "runs",
    params(("id" = String, Path, description = "The run")),
    responses(
        (status = 200, description = "The run", body = RunDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    let run = find(&state, &user, &id)?;
    Ok(json(&RunDocument::from(run.view())))
}

/// Show the overview of a search
///
/// The document of `rollout tree show DIR --json`.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/search",
    tag = "runs",
    params(("id" = String, Path, description = "The run, of the kind `tree`")),
    responses(
        (status = 200, description = "The overview", body = Object),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn search(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    let run = find(&state, &user, &id)?;
    Ok(json(&state.daemon.search(&user, &run).await?))
}

/// Cancel a run
///
/// Its trials end as cancelled, except those that have a result. The request is durable when the
/// answer arrives.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/runs/{id}/cancel",
    tag = "runs",
    params(("id" = String, Path, description = "The run")),
    responses(
        (status = 202, description = "The run", body = RunDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn cancel(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let run = find(&state, &user, &id)?;
    state.daemon.cancel(&run).await?;
    Ok(accepted(&run))
}

/// Pause a run
///
/// No trial begins, and running ones go on. The request is durable when the answer arrives.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/runs/{id}/pause",
    tag = "runs",
    params(("id" = String, Path, description = "The run")),
    responses(
        (status = 202, description = "The run", body = RunDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn pause(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let run = find(&state, &user, &id)?;
    state.daemon.pause(&run).await?;
    Ok(accepted(&run))
}

/// Continue a run
///
/// Ends a pause, or tries a run again whose last session failed.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/runs/{id}/continue",
    tag = "runs",
    params(("id" = String, Path, description = "The run")),
    responses(
        (status = 202, description = "The run", body = RunDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn resume(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let run = find(&state, &user, &id)?;
    state.daemon.resume(&run).await?;
    Ok(accepted(&run))
}

/// Delete a run
///
/// Removes the record and the files of a run that has ended. Its blobs stay until the operator
/// collects them.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete,
    path = "/v1/runs/{id}",
    tag = "runs",
    params(("id" = String, Path, description = "The run")),
    responses(
        (status = 204, description = "It is removed"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn delete(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let run = find(&state, &user, &id)?;
    state.daemon.delete(&run).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn accepted(run: &HostedRun) -> Response {
    (StatusCode::ACCEPTED, json(&RunDocument::from(run.view()))).into_response()
}
