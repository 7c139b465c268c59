//! Farms over HTTP.
//!
//! * `collection`: opening, list, state; `control`: policy version, pause, resume, close, delete
//! * `groups`: groups of samples; `completions`: their results, `completion_stream` as server-sent
//!   events; `samples`: records of samples and the calls of their agents
//! * `documents`: bodies; `problems`: errors

mod collection;
mod completion_stream;
mod completions;
mod control;
mod documents;
mod groups;
mod problems;
mod samples;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
#[cfg(feature = "openapi")]
use utoipa::OpenApi;

use super::ApiState;
use super::problem::ApiProblem;
use crate::daemon::{FarmError, HostedFarm, HostedFarmId, Principal};

/// The paths of farms.
pub(super) fn router() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/farms", get(collection::list).post(collection::open))
        .route("/v1/farms/{id}", get(collection::show).delete(control::delete))
        .route("/v1/farms/{id}/policy", post(control::policy))
        .route("/v1/farms/{id}/pause", post(control::pause))
        .route("/v1/farms/{id}/resume", post(control::resume))
        .route("/v1/farms/{id}/close", post(control::close))
        .route("/v1/farms/{id}/groups", post(groups::submit))
        .route("/v1/farms/{id}/groups/{group}", get(groups::show))
        .route("/v1/farms/{id}/groups/{group}/cancel", post(groups::cancel))
        .route("/v1/farms/{id}/ack", post(completions::acknowledge))
        .route("/v1/farms/{id}/completions", get(completions::read))
        .route("/v1/farms/{id}/completions/stream", get(completion_stream::stream))
        .route("/v1/farms/{id}/completions/{cursor}/record", get(samples::record))
        .route("/v1/farms/{id}/completions/{cursor}/calls", get(samples::calls))
}

/// The description of the paths of farms.
#[cfg(feature = "openapi")]
#[derive(OpenApi)]
#[openapi(
    paths(
        collection::open,
        collection::list,
        collection::show,
        control::delete,
        control::policy,
        control::pause,
        control::resume,
        control::close,
        groups::submit,
        groups::show,
        groups::cancel,
        completions::acknowledge,
        completions::read,
        completion_stream::stream,
        samples::record,
        samples::calls,
    ),
    tags((name = "farms", description = "Farms: open runs that a trainer asks for groups of samples")),
)]
pub(super) struct FarmsDescription;

/// The farm that a path names, if the user may see it.
fn find(state: &ApiState, user: &Principal, id: &str) -> Result<Arc<HostedFarm>, ApiProblem> {
    let id: HostedFarmId = id.parse().map_err(|_| FarmError::NotFound)?;
    Ok(state.daemon.find_farm(user, &id)?)
}
