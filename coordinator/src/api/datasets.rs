//! Upload of datasets, by the digest of their archive.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use rollout_base::supervise;
use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::exit::ExitCode;
use tokio::time::timeout;

use super::gate::require;
use super::problem::ApiProblem;
use super::{ApiState, body, events};
use crate::daemon::{DaemonError, Principal, Role};

/// Longest time between two parts of an upload.
const PART_TIMEOUT: Duration = Duration::from_secs(60);

/// Ask whether you uploaded a dataset
///
/// An administrator may use the datasets of all users.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/datasets/{digest}",
    tag = "datasets",
    params(("digest" = String, Path, pattern = "^[0-9a-f]{64}$", description = "SHA-256 of its archive, in hexadecimal digits")),
    responses(
        (status = 204, description = "It is there"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(digest): Path<String>,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let digest = parsed(&digest)?;
    if state.daemon.has_dataset(&user, digest).await {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Err(ApiProblem::not_found("cannot find the dataset: upload it"))
}

/// Upload a dataset
///
/// The body is a tar archive whose SHA-256 is the digest. `path: dataset:DIGEST` of a document, or
/// `dataset:DIGEST/NAME` for a directory in it, then names the dataset.
#[cfg_attr(feature = "openapi", utoipa::path(
    put,
    path = "/v1/datasets/{digest}",
    tag = "datasets",
    params(("digest" = String, Path, pattern = "^[0-9a-f]{64}$", description = "SHA-256 of the body, in hexadecimal digits")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 204, description = "It is there"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn upload(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(digest): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let digest = parsed(&digest)?;
    let _permit = events::stream_permit(&state, &user)?;
    let expected = body::stated_length(&headers).unwrap_or(state.max_dataset_bytes);
    let most = expected.min(state.max_dataset_bytes);
    // The archive and its files are on the disk while it is unpacked.
    let mut room = state.daemon.dataset_room(&user, most.max(1).saturating_mul(2)).await?;
    let daemon = Arc::clone(&state.daemon);
    let opened = supervise::blocking(move || daemon.dataset_file()).await;
    let mut file = opened.map_err(DaemonError::from)?;
    let (mut hasher, mut bytes) = (DigestHasher::default(), 0_u64);
    let mut parts = body.into_data_stream();
    loop {
        let part = timeout(PART_TIMEOUT, parts.next()).await.map_err(|_| {
            let message = "cannot read the body: it did not arrive in time";
            let status = StatusCode::REQUEST_TIMEOUT;
            ApiProblem::new(status, "timeout", ExitCode::OutOfReach, message)
        })?;
        let Some(part) = part else { break };
        let part = part
            .map_err(|error| ApiProblem::bad_request(format!("cannot read the body: {error}")))?;
        bytes += part.len() as u64;
        if bytes > state.max_dataset_bytes {
            let message =
                format!("cannot read the body: it has more than {} bytes", state.max_dataset_bytes);
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(ApiProblem::new(status, "too-large", ExitCode::Usage, message));
        }
        hasher.update(&part);
        let (written, result) = supervise::blocking(move || {
            let result = file.write_all(&part);
            (file, result)
        })
        .await;
        file = written;
        result.map_err(|error| {
            tracing::error!("cannot write an upload: {error}");
            let status = StatusCode::INSUFFICIENT_STORAGE;
            ApiProblem::new(status, "internal", ExitCode::Failure, "cannot store the dataset")
        })?;
    }
    if hasher.finish() != digest {
        let message = "cannot store the dataset: it has another digest";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        return Err(ApiProblem::new(status, "digest-mismatch", ExitCode::Config, message));
    }
    room.shrink_to(bytes.saturating_mul(2));
    state.daemon.store_dataset(digest, file, room).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn parsed(text: &str) -> Result<Digest, ApiProblem> {
    let wrong = "cannot use the digest: expected 64 lower-case hexadecimal digits";
    format!("sha256:{text}").parse().map_err(|_| ApiProblem::bad_request(wrong))
}
