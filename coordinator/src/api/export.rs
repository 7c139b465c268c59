//! Results of a run in the formats of other tools.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use rollout_protocol::exit::ExitCode;
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
#[cfg(feature = "openapi")]
use utoipa::{IntoParams, ToSchema};

use super::connections::LongAnswer;
use super::problem::ApiProblem;
use super::{ApiState, body, events, runs};
use crate::daemon::Principal;
use crate::results::export::{DEFAULT_MIN_REWARD, ExportFormat};

/// Bytes of a piece.
const PIECE_BYTES: usize = 64 * 1024;

/// Which export to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct ExportQuery {
    /// The format.
    format: ExportedFormat,
    /// For `sft`, the least reward of a trial; 1 by default.
    #[serde(default)]
    min_reward: Option<f64>,
}

/// Formats of exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum ExportedFormat {
    /// A JSON object per line and trial.
    Jsonl,
    /// A line per trial, for spreadsheets.
    Csv,
    /// A row per trial, for data frames.
    #[cfg(feature = "parquet")]
    Parquet,
    /// Analysis tables, in a tar archive.
    Tables,
    /// A job directory in Harbor's layout, in a tar archive.
    Harbor,
    /// A trajectory per trial in Harbor's interchange format, in a tar archive.
    Atif,
    /// A JSON object per line and trial, with its trajectory.
    #[serde(rename = "traces-jsonl")]
    TracesJsonl,
    /// Conversations of trials with a high reward, as chat messages to train a model on.
    Sft,
}

impl From<ExportedFormat> for ExportFormat {
    fn from(format: ExportedFormat) -> Self {
        match format {
            ExportedFormat::Jsonl => Self::Jsonl,
            ExportedFormat::Csv => Self::Csv,
            #[cfg(feature = "parquet")]
            ExportedFormat::Parquet => Self::Parquet,
            ExportedFormat::Tables => Self::Tables,
            ExportedFormat::Harbor => Self::Harbor,
            ExportedFormat::Atif => Self::Atif,
            ExportedFormat::TracesJsonl => Self::TracesJsonl,
            ExportedFormat::Sft => Self::Sft,
        }
    }
}

/// Export the results of a run
///
/// The files of `rollout export`; a directory is a tar archive. `x-rollout-missing` and
/// `x-rollout-unplanned` of the answer count settled trials that are left out, because their records
/// are not written yet or because they are no longer in the plan; `x-rollout-keys-left-out` is `true`
/// if there are more reward keys than columns. For formats with trajectories,
/// `x-rollout-without-trajectory` counts trials that have none, and `x-rollout-below-reward` those
/// that are left out for their reward. `x-rollout-paths-left-out` counts files and directories that
/// are left out because their paths are too deep or too long for an archive.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/export",
    tag = "runs",
    params(("id" = String, Path, description = "The run"), ExportQuery),
    responses(
        (
            status = 200,
            description = "The export",
            content(
                (Vec<u8> = "application/octet-stream"),
                (Vec<u8> = "application/x-tar"),
                (String = "application/jsonl"),
                (String = "text/csv"),
            ),
        ),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn export(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let run = runs::find(&state, &user, &id)?;
    let ExportQuery { format, min_reward } = body::query(query.as_deref())?;
    let permit = events::stream_permit(&state, &user)?;
    let exported = state
        .daemon
        .export(&user, &run, format.into(), min_reward.unwrap_or(DEFAULT_MIN_REWARD))
        .await?;
    let media = match format {
        ExportedFormat::Jsonl | ExportedFormat::TracesJsonl | ExportedFormat::Sft => {
            "application/jsonl"
        }
        ExportedFormat::Csv => "text/csv",
        _ if exported.is_archive => "application/x-tar",
        _ => "application/octet-stream",
    };
    let summary = &exported.summary;
    let headers = [
        ("content-type", media.to_owned()),
        ("content-length", exported.size_bytes.to_string()),
        ("x-rollout-missing", summary.missing.to_string()),
        ("x-rollout-unplanned", summary.unplanned.to_string()),
        ("x-rollout-keys-left-out", summary.keys_left_out.to_string()),
        ("x-rollout-without-trajectory", summary.without_trajectory.to_string()),
        ("x-rollout-below-reward", summary.below_reward.to_string()),
        ("x-rollout-paths-left-out", summary.paths_left_out.to_string()),
        // Text of agents is in it: a browser must not guess that it is a page.
        (header::X_CONTENT_TYPE_OPTIONS.as_str(), "nosniff".to_owned()),
    ];
    let file = tokio::fs::File::open(&exported.path).await.map_err(|error| {
        tracing::error!("cannot open an export: {error}");
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        ApiProblem::new(status, "internal", ExitCode::Failure, "cannot read the export")
    })?;
    let pieces = stream::unfold((file, exported, permit), |(mut file, exported, permit)| async {
        let mut piece = vec![0; PIECE_BYTES];
        match file.read(&mut piece).await {
            Ok(0) => None,
            Ok(read) => {
                piece.truncate(read);
                Some((Ok(Bytes::from(piece)), (file, exported, permit)))
            }
            Err(error) => Some((Err(error), (file, exported, permit))),
        }
    });
    let mut response = (headers, Body::from_stream(pieces)).into_response();
    response.extensions_mut().insert(LongAnswer);
    Ok(response)
}
