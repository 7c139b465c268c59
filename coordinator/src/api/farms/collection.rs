//! Opening, list and state of farms.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::documents::{FarmDocument, FarmList, ListFarmsQuery, OpenFarm};
use super::find;
use crate::api::gate::require;
use crate::api::problem::ApiProblem;
use crate::api::{ApiState, body, json, runs};
use crate::daemon::{FarmQuery, FarmSubmission, HostedFarm, Principal, Role, SubmittedFarm};

/// Farms of a page unless the request says otherwise.
const DEFAULT_LIMIT: usize = 100;

/// Open a farm
///
/// The farm is durable when the answer arrives. With `Idempotency-Key`, the same request again gives
/// the same farm, with status 200. The rules for the document are those of jobs.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/farms",
    tag = "farms",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[ -~]*$", description = "A text that no other farm of this user has")),
    request_body = OpenFarm,
    responses(
        (status = 201, description = "A new farm", body = FarmDocument),
        (status = 200, description = "The farm that was opened before under this key", body = FarmDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn open(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let key = runs::idempotency_key(&headers)?;
    let bytes = body::read(&state, &user, &headers, body).await?;
    let sha256 = body::work(&state, &user, &bytes, |bytes| runs::sha256([bytes])).await;
    // Its datasets may have been removed since.
    if let Some(farm) = state.daemon.known_farm(&user, key.as_deref(), &sha256)? {
        return Ok(answer(StatusCode::OK, &farm));
    }
    let (daemon, author) = (Arc::clone(&state.daemon), user.clone());
    let read = move |bytes: &[u8]| {
        let OpenFarm { name, document, settings, priority } = body::parse(bytes)?;
        runs::check_values(None, priority)?;
        let document = runs::document_text(&daemon, &author, document)?;
        let settings = settings.named(name)?;
        Ok::<_, ApiProblem>((document, settings, priority))
    };
    let (document, settings, priority) = body::work(&state, &user, &bytes, read).await?;
    let submission = FarmSubmission { document, settings, priority, key, sha256 };
    let (status, farm) = match state.daemon.submit_farm(&user, submission).await? {
        SubmittedFarm::New(farm) => (StatusCode::CREATED, farm),
        SubmittedFarm::Known(farm) => (StatusCode::OK, farm),
    };
    Ok(answer(status, &farm))
}

fn answer(status: StatusCode, farm: &HostedFarm) -> Response {
    let mut response = (status, json(&FarmDocument::from(farm.view()))).into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/farms/{}", farm.id())) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// List farms
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/farms",
    tag = "farms",
    params(ListFarmsQuery),
    responses(
        (status = 200, description = "Farms, newest first", body = FarmList),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let query: ListFarmsQuery = body::query(query.as_deref())?;
    let before = query.cursor.map(|cursor| cursor.parse()).transpose().map_err(|_| {
        ApiProblem::bad_request("cannot use the cursor: it is not `next_cursor` of a page")
    })?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    let ListFarmsQuery { state: wanted, user: of, name, .. } = query;
    let query = FarmQuery { state: wanted, user: of, name, before, limit };
    Ok(json(&FarmList::from(state.daemon.list_farms(&user, &query))))
}

/// Show a farm
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/farms/{id}",
    tag = "farms",
    params(("id" = String, Path, description = "The farm")),
    responses(
        (status = 200, description = "The farm", body = FarmDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiProblem> {
    let farm = find(&state, &user, &id)?;
    Ok(json(&FarmDocument::from(farm.view())))
}
