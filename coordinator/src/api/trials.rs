//! Trials that a user starts one by one: the operations of an executor.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, future, stream};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::RetryClass;
use rollout_protocol::executor::TrialStatus;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::ItemId;

use super::connections::LongAnswer;
use super::documents::RunDocument;
use super::gate::require;
use super::problem::ApiProblem;
use super::trial_documents::{
    ControlDocument, HandleDocument, PlannedDocument, StartDocument, TrialArtifactList,
    TrialEventDocument, TrialEventsQuery, TrialList, TrialOutputDocument, TrialsQuery,
};
use super::{ApiState, body, events, items, json, runs};
use crate::daemon::{DaemonError, HostedExecutor, HostedRun, Principal, Role, StartError};
use crate::executor::{ExecutorError, TrialEvent};

/// Trials of a page unless the request says otherwise.
const DEFAULT_LIMIT: usize = 100;

/// Most trials of a page.
const MAX_LIMIT: usize = 1000;

/// Time between two signs of life on a stream without events.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The executor of a run that a path names.
fn executor(
    state: &ApiState,
    user: &Principal,
    id: &str,
) -> Result<(Arc<HostedRun>, Arc<HostedExecutor>), ApiProblem> {
    let run = runs::find(state, user, id)?;
    let executor = state.daemon.executor(&run)?;
    Ok((run, executor))
}

fn item_of(text: &str) -> Result<ItemId, ApiProblem> {
    let unknown = || ExecutorError::UnknownTrial { trial: text.to_owned() };
    text.parse().map_err(|_| unknown().into())
}

/// Finish an executor
///
/// It takes no more trials, and its run ends when every started trial has a result. The request is
/// durable when the answer arrives.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/runs/{id}/finish",
    tag = "trials",
    params(("id" = String, Path, description = "The run")),
    responses(
        (status = 202, description = "The run", body = RunDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn finish(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let run = runs::find(&state, &user, &id)?;
    state.daemon.close(&run).await?;
    Ok((StatusCode::ACCEPTED, json(&RunDocument::from(run.view()))).into_response())
}

/// List the trials that can be started
///
/// Trials of the plan: agents x tasks x attempts.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/trials",
    tag = "trials",
    params(("id" = String, Path, description = "The run"), TrialsQuery),
    responses(
        (status = 200, description = "Trials, in the plan's order", body = TrialList),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let (_, executor) = executor(&state, &user, &id)?;
    let TrialsQuery { limit, cursor } = body::query(query.as_deref())?;
    let limit = limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT) as u64;
    let begin = cursor.unwrap_or_default();
    let plan = executor.plan();
    let end = begin.saturating_add(limit).min(plan.len());
    let trials = (begin..end).filter_map(|ordinal| plan.trial(ordinal)).map(|trial| {
        PlannedDocument { item: trial.item, trial: trial.name.into(), spec: trial.trial_ref.into() }
    });
    let next = (end < plan.len() && end > begin).then_some(end);
    Ok(json(&TrialList { trials: trials.collect(), next }))
}

/// Start a trial
///
/// A trial is started once, however often it is requested, also after a restart of the server. The
/// start is durable when the answer arrives.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/runs/{id}/trials",
    tag = "trials",
    params(("id" = String, Path, description = "The run")),
    request_body(content = StartDocument, content_type = "application/json"),
    responses(
        (status = 201, description = "It is started", body = HandleDocument),
        (status = 200, description = "It was started before", body = HandleDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn start(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let run = runs::find(&state, &user, &id)?;
    let bytes = body::read(&state, &user, &headers, body).await?;
    let start: StartDocument = body::json(&state, &user, &bytes).await?;
    let executor = state.daemon.executor(&run)?;
    let (handle, is_new) = executor.start(start.into()).await.map_err(|error| match error {
        StartError::Executor(error) => ApiProblem::from(error),
        StartError::Record(error) => DaemonError::Record(error).into(),
    })?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, json(&HandleDocument::from(handle))).into_response())
}

/// Show the status of a trial
///
/// `state` is `queued`, `running` (with `try`, `exec` and `phase`), `waiting` (before a retry, with
/// `error` and `next_try_at`) or `settled` (with `settlement`).
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/trials/{item}",
    tag = "trials",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The id of the trial"),
    ),
    responses(
        (status = 200, description = "Its status", body = Object),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn status(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let (run, executor) = executor(&state, &user, &id)?;
    let status = executor.calls().trial_status(item_of(&item)?).await?;
    if let TrialStatus::Settled { settlement } = &status {
        run.share_blobs(settlement.by.iter().filter_map(|by| by.record.as_ref()));
    }
    Ok(json(&status))
}

/// Follow the events of a trial's harness
///
/// Server-sent events: `event` is `event`, and `data` has `exec`, `number`, `step` and the `event` of
/// the harness. An event replaces every earlier one with the same or a higher number: numbers begin
/// again with another execution. The stream ends with the event `end` when the trial is settled, or
/// with `error`, whose data has the `kind` and the `detail` of a problem.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/trials/{item}/events",
    tag = "trials",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The id of the trial"),
        TrialEventsQuery,
    ),
    responses(
        (status = 200, description = "Events", body = Object, content_type = "text/event-stream"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn events(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let (_, executor) = executor(&state, &user, &id)?;
    let TrialEventsQuery { from } = body::query(query.as_deref())?;
    let item = item_of(&item)?;
    // An unknown trial is an error, not an empty stream.
    executor.calls().trial_status(item).await?;
    let permit = events::stream_permit(&state, &user)?;
    let found = executor.calls().trial_events(item, from);
    let end = stream::iter([None]);
    let messages = found.map(Some).chain(end).scan(false, |has_failed, message| {
        let is_after_error = std::mem::replace(has_failed, matches!(message, Some(Err(_))));
        future::ready((!is_after_error).then_some(message))
    });
    let messages = messages.map(message);
    let owned = (permit, executor);
    let messages = messages.map(move |message| {
        let _held = &owned;
        Ok::<_, Infallible>(message)
    });
    let mut response =
        Sse::new(messages).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.extensions_mut().insert(LongAnswer);
    Ok(response)
}

/// A message of a stream of events; `None` is its end.
fn message(event: Option<Result<TrialEvent, ExecutorError>>) -> Event {
    match event {
        Some(Ok(event)) => {
            let number = event.number.to_string();
            let document = serde_json::to_string(&TrialEventDocument::from(event));
            Event::default().event("event").id(number).data(document.unwrap_or_default())
        }
        Some(Err(error)) => {
            let document =
                serde_json::json!({ "kind": kind(&error).1, "detail": error.to_string() });
            Event::default().event("error").data(document.to_string())
        }
        None => Event::default().event("end").data("{}"),
    }
}

/// Send a control to the harness of a running trial
///
/// The answer is the receipt of its worker. The evidence that the harness observed the control is
/// its acknowledgement in the receipt.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/runs/{id}/trials/{item}/control",
    tag = "trials",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The id of the trial"),
    ),
    request_body(content = ControlDocument, content_type = "application/json"),
    responses(
        (status = 200, description = "The receipt", body = Object),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn control(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let run = runs::find(&state, &user, &id)?;
    let bytes = body::read(&state, &user, &headers, body).await?;
    let document: ControlDocument = body::json(&state, &user, &bytes).await?;
    let control = document.into_request(&user.name).ok_or_else(|| {
        ApiProblem::bad_request("cannot wait for more than an hour for an acknowledgement")
    })?;
    let executor = state.daemon.executor(&run)?;
    Ok(json(&executor.calls().send_control(item_of(&item)?, control).await?))
}

/// Cancel a trial
///
/// It settles as cancelled, unless it has a result. The request is durable when the answer arrives.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/runs/{id}/trials/{item}/cancel",
    tag = "trials",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The id of the trial"),
    ),
    responses(
        (status = 202, description = "Its status", body = Object),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn cancel(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let (_, executor) = executor(&state, &user, &id)?;
    let item = item_of(&item)?;
    executor.calls().cancel_trial(item).await?;
    let status = executor.calls().trial_status(item).await?;
    Ok((StatusCode::ACCEPTED, json(&status)).into_response())
}

/// Show the output of a settled trial
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/trials/{item}/output",
    tag = "trials",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The id of the trial"),
    ),
    responses(
        (status = 200, description = "A reference", body = TrialOutputDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn output(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let (run, executor) = executor(&state, &user, &id)?;
    let output = executor.calls().trial_output(item_of(&item)?).await?;
    run.share_blobs(output.iter().map(|output| &output.blob));
    Ok(json(&TrialOutputDocument { output }))
}

/// List the artifacts of a settled trial
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/trials/{item}/artifacts",
    tag = "trials",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The id of the trial"),
    ),
    responses(
        (status = 200, description = "References", body = TrialArtifactList),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn artifacts(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let (run, executor) = executor(&state, &user, &id)?;
    let artifacts = executor.calls().trial_artifacts(item_of(&item)?).await?;
    run.share_blobs(artifacts.iter().map(|artifact| &artifact.blob));
    Ok(json(&TrialArtifactList { artifacts }))
}

/// Read a blob to which a result of a run refers
///
/// The content does not change: a client checks it against the digest.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/blobs/{digest}",
    tag = "trials",
    params(
        ("id" = String, Path, description = "The run"),
        ("digest" = String, Path, pattern = "^sha256:[0-9a-f]{64}$", description = "`sha256:` and 64 hexadecimal digits"),
    ),
    responses(
        (status = 200, description = "Its content", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn blob(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, digest)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let run = runs::find(&state, &user, &id)?;
    let digest: Digest = digest.parse().map_err(|_| {
        ApiProblem::bad_request("cannot read the digest: expected `sha256:` and 64 digits")
    })?;
    let (store, size_bytes) = state.daemon.blob(&user, &run, &digest).await?;
    let permit = events::stream_permit(&state, &user)?;
    items::blob_stream(&*store, &digest, size_bytes, permit).await
}

/// The status and the kind of an error. Clients know the kinds.
fn kind(error: &ExecutorError) -> (StatusCode, &'static str) {
    match error {
        ExecutorError::UnknownTrial { .. } => (StatusCode::NOT_FOUND, "unknown-trial"),
        ExecutorError::OtherSpec { .. } => (StatusCode::CONFLICT, "other-spec"),
        ExecutorError::NotSettled { .. } => (StatusCode::CONFLICT, "not-settled"),
        ExecutorError::NotRunning { .. } => (StatusCode::CONFLICT, "not-running"),
        ExecutorError::Refused { .. } => (StatusCode::CONFLICT, "refused"),
        ExecutorError::NoAnswer => (StatusCode::GATEWAY_TIMEOUT, "no-answer"),
        // Its session ends; the next one takes the call.
        ExecutorError::Ended => (StatusCode::SERVICE_UNAVAILABLE, "not-open"),
        other if other.retry_class() == RetryClass::Transient => {
            (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    }
}

impl From<ExecutorError> for ApiProblem {
    fn from(error: ExecutorError) -> Self {
        let (status, kind) = kind(&error);
        let code = match status {
            StatusCode::INTERNAL_SERVER_ERROR => ExitCode::Failure,
            status if status.is_server_error() => ExitCode::OutOfReach,
            _ => ExitCode::Config,
        };
        let problem = Self::new(status, kind, code, error.to_string());
        match error {
            ExecutorError::NotSettled { state } | ExecutorError::NotRunning { state } => {
                problem.detail(state)
            }
            _ if status == StatusCode::SERVICE_UNAVAILABLE => {
                problem.retry_after(Duration::from_secs(1))
            }
            _ => problem,
        }
    }
}
