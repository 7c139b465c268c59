//! Groups of samples.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use rollout_protocol::farm::{CancelReceipt, GroupId, GroupRequest, SubmittedGroup};

use super::documents::{CancelledGroupDocument, GroupDocument, SubmittedGroupDocument};
use super::{find, problems};
use crate::api::gate::require;
use crate::api::problem::ApiProblem;
use crate::api::{ApiState, body, json};
use crate::daemon::{FarmError, Principal, Role};

/// Submit a group
///
/// The body is a request for a group. It is durable when the answer arrives, and the same request again
/// has no further effect. 429 names the `limit`, the `depth` and the `max`: send the group again later.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/farms/{id}/groups",
    tag = "farms",
    params(("id" = String, Path, description = "The farm")),
    request_body(content = Object, description = "`group`, `task`, `n`, `policy_version`, `model`, `sampling`, `priority`, `deadline_sec`, `group_policy`, `max_refills`, `min_usable`, `consumer`, `metadata`"),
    responses(
        (status = 201, description = "It is admitted", body = SubmittedGroupDocument),
        (status = 200, description = "It was admitted before", body = SubmittedGroupDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn submit(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let farm = find(&state, &user, &id)?;
    let bytes = body::read(&state, &user, &headers, body).await?;
    let read = |bytes: &[u8]| {
        let document: serde_json::Value = body::parse(bytes)?;
        serde_json::from_value(document)
            .map_err(|error| problems::invalid_group(format!("cannot admit the group: {error}")))
    };
    let request: GroupRequest = body::work(&state, &user, &bytes, read).await?;
    let group = request.group.clone();
    let receipt = state.daemon.submit_group(&user, &farm, request).await?;
    let (status, known) = match receipt.state {
        SubmittedGroup::Admitted => (StatusCode::CREATED, false),
        SubmittedGroup::Known => (StatusCode::OK, true),
    };
    let document = SubmittedGroupDocument { group, known, end: receipt.end };
    Ok((status, json(&document)).into_response())
}

/// Show a group
///
/// A group that has ended and whose completions are acknowledged has its `end` only.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/farms/{id}/groups/{group}",
    tag = "farms",
    params(
        ("id" = String, Path, description = "The farm"),
        ("group" = String, Path, description = "The group"),
    ),
    responses(
        (status = 200, description = "The group", body = GroupDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, group)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let farm = find(&state, &user, &id)?;
    let group: GroupId = group.parse().map_err(|_| FarmError::NoGroup)?;
    let found = farm.group(&group).await?;
    Ok(json(&GroupDocument::new(group, found)))
}

/// Cancel a group
///
/// Its samples end as cancelled. An id that the farm does not know is never admitted after this.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/farms/{id}/groups/{group}/cancel",
    tag = "farms",
    params(
        ("id" = String, Path, description = "The farm"),
        ("group" = String, Path, description = "The group"),
    ),
    responses(
        (status = 200, description = "It is cancelled, or had ended before", body = CancelledGroupDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn cancel(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, group)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let farm = find(&state, &user, &id)?;
    let group: GroupId =
        group.parse().map_err(|error| ApiProblem::bad_request(format!("{error}")))?;
    let CancelReceipt { samples, unknown, end } = farm.cancel_group(group.clone()).await?;
    Ok(json(&CancelledGroupDocument { group, samples, unknown, end }))
}
