//! Control of farms. A request is durable when its answer arrives, and can be repeated.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::documents::{FarmDocument, PauseDocument, PolicyVersionDocument, ResumeFarm};
use super::find;
use crate::api::gate::require;
use crate::api::problem::ApiProblem;
use crate::api::{ApiState, body, json};
use crate::daemon::{Principal, Role};

/// Say that the trainer has a newer policy
///
/// A version that is not newer changes nothing. The answer is the state of the farm.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/farms/{id}/policy",
    tag = "farms",
    params(("id" = String, Path, description = "The farm")),
    request_body = PolicyVersionDocument,
    responses(
        (status = 200, description = "The state of the farm", body = Object),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn policy(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let farm = find(&state, &user, &id)?;
    let bytes = body::read(&state, &user, &headers, body).await?;
    let PolicyVersionDocument { version } = body::json(&state, &user, &bytes).await?;
    Ok(json(&farm.set_policy_version(version).await?))
}

/// Pause a farm
///
/// No sample begins, and no deadline passes.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/farms/{id}/pause",
    tag = "farms",
    params(("id" = String, Path, description = "The farm")),
    responses(
        (status = 200, description = "It is paused", body = PauseDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn pause(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let farm = find(&state, &user, &id)?;
    Ok(json(&PauseDocument::from(farm.pause().await?)))
}

/// Resume a farm
///
/// Ends a pause, with the version of the policy from now on if it changed. A farm whose last session
/// failed is opened again.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/farms/{id}/resume",
    tag = "farms",
    params(("id" = String, Path, description = "The farm")),
    request_body = Option<ResumeFarm>,
    responses(
        (status = 200, description = "It runs", body = PauseDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn resume(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let farm = find(&state, &user, &id)?;
    let bytes = body::read(&state, &user, &headers, body).await?;
    let request: Option<ResumeFarm> =
        if bytes.is_empty() { None } else { body::json(&state, &user, &bytes).await? };
    let ResumeFarm { version } = request.unwrap_or_default();
    Ok(json(&PauseDocument::from(state.daemon.resume_farm(&farm, version).await?)))
}

/// Close a farm
///
/// It admits no more groups, and ends when every sample has ended and every completion is
/// acknowledged.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/farms/{id}/close",
    tag = "farms",
    params(("id" = String, Path, description = "The farm")),
    responses(
        (status = 200, description = "The farm", body = FarmDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn close(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let farm = find(&state, &user, &id)?;
    farm.close().await?;
    Ok(json(&FarmDocument::from(farm.view())))
}

/// Delete a farm
///
/// Cancels its groups, and removes its record and its files. Its blobs stay until the operator
/// collects them.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete,
    path = "/v1/farms/{id}",
    tag = "farms",
    params(("id" = String, Path, description = "The farm")),
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
    let farm = find(&state, &user, &id)?;
    state.daemon.delete_farm(&farm).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
