//! Records of samples, and the model calls of their agents.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use rollout_base::shared_limit::SharedPlace;
use rollout_base::supervise;
use tokio::sync::mpsc;

use super::find;
use crate::api::connections::LongAnswer;
use crate::api::problem::ApiProblem;
use crate::api::{ApiState, events, json};
use crate::daemon::{FarmError, Principal};
use crate::results::view;

/// Pieces of a file that wait for the client.
const WAITING_PIECES: usize = 4;

fn parsed(cursor: &str) -> Result<u64, ApiProblem> {
    Ok(cursor.parse().map_err(|_| FarmError::NoCompletion)?)
}

/// Read the record of a sample
///
/// The record of the execution that decided it, as long as the completion is not acknowledged.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/farms/{id}/completions/{cursor}/record",
    tag = "farms",
    params(
        ("id" = String, Path, description = "The farm"),
        ("cursor" = u64, Path, description = "Cursor of its completion"),
    ),
    responses(
        (status = 200, description = "The record of a trial", body = Object),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn record(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, cursor)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let farm = find(&state, &user, &id)?;
    let record = state.daemon.sample_record(&farm, parsed(&cursor)?).await?;
    Ok(json(&record))
}

/// Read the model calls of a sample
///
/// The calls that the gateway recorded, merged into trajectories: `calls`, `by`, and with token ids
/// `ids`, `mask` (1 for sampled tokens) and `logprobs`. `policies` has the versions of the policy when
/// each call was sent and ended, `policy` those when the group was requested and admitted, and when
/// the sample ended.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/farms/{id}/completions/{cursor}/calls",
    tag = "farms",
    params(
        ("id" = String, Path, description = "The farm"),
        ("cursor" = u64, Path, description = "Cursor of its completion"),
    ),
    responses(
        (status = 200, description = "`trajectories` and `policy`", body = Object),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn calls(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, cursor)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let farm = find(&state, &user, &id)?;
    let permit = events::stream_permit(&state, &user)?;
    let found = state.daemon.sample_calls(&farm, parsed(&cursor)?).await?;
    let policy = serde_json::to_string(&found.policy).unwrap_or_default();
    let (pieces, received) = mpsc::channel::<Bytes>(WAITING_PIECES);
    let sending = supervise::spawn("trajectories", found.send(pieces));
    let list = TrajectoryList {
        received,
        sending: Some(sending),
        head: Some(format!("{{\"policy\":{policy},\"trajectories\":[")),
        is_line_open: false,
        has_line: false,
        _permit: permit,
    };
    let body = Body::from_stream(stream::unfold(list, TrajectoryList::step));
    let media = [(header::CONTENT_TYPE, "application/json")];
    let mut response = (media, body).into_response();
    response.extensions_mut().insert(LongAnswer);
    Ok(response)
}

/// The lines of a file of documents as one list: a file may be larger than the memory for an answer.
struct TrajectoryList {
    received: mpsc::Receiver<Bytes>,
    /// The reading of the file; `None` when its end was seen.
    sending: Option<supervise::Task<Result<(), view::CapturedError>>>,
    head: Option<String>,
    /// Whether a part of a line was sent.
    is_line_open: bool,
    /// Whether a line was sent.
    has_line: bool,
    _permit: SharedPlace,
}

impl TrajectoryList {
    async fn step(mut self) -> Option<(io::Result<Bytes>, Self)> {
        if let Some(head) = self.head.take() {
            return Some((Ok(head.into()), self));
        }
        if let Some(piece) = self.received.recv().await {
            let joined = self.joined(&piece);
            return Some((Ok(joined.into()), self));
        }
        let sent = self.sending.take()?.await;
        let end = match sent {
            Ok(Ok(())) => Ok(Bytes::from_static(b"]}")),
            Ok(Err(error)) => {
                tracing::error!("cannot read trajectories: {error}");
                // The client sees that the answer breaks off.
                Err(io::Error::other(error))
            }
            Err(error) => Err(io::Error::other(error)),
        };
        Some((end, self))
    }

    /// A piece of lines with commas between the lines, in place of their ends.
    fn joined(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut joined = Vec::with_capacity(piece.len() + 1);
        for byte in piece {
            if *byte == b'\n' {
                self.is_line_open = false;
                continue;
            }
            if !self.is_line_open && self.has_line {
                joined.push(b',');
            }
            (self.is_line_open, self.has_line) = (true, true);
            joined.push(*byte);
        }
        joined
    }
}
