//! Items of a run: their states, executions, outputs and artifacts.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use rollout_base::shared_limit::SharedPlace;
use rollout_base::supervise;
use rollout_protocol::digest::Digest;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::limits::NAME_BYTES;
use rollout_protocol::name::check_component;
use rollout_store::BlobStore;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
#[cfg(feature = "openapi")]
use utoipa::{IntoParams, ToSchema};

use super::connections::LongAnswer;
use super::item_documents::{ArtifactList, ItemDocument, OutputDocument, OutputList};
use super::problem::ApiProblem;
use super::{ApiState, body, events, json, output_follower, runs, whole_number};
use crate::daemon::{DaemonError, HostedRun, ItemQuery, Principal, ShownOutput, is_output};
use crate::results::known_cost::NullUnknownCosts;
use crate::results::view::{self, CapturedError, CapturedFile};

/// Items of a page unless the request says otherwise.
const DEFAULT_LIMIT: usize = 100;

/// Most items of a page.
const MAX_LIMIT: usize = 1000;

/// Pieces of a file that wait for the client.
const WAITING_PIECES: usize = 4;

/// Bytes of a piece of an artifact.
const PIECE_BYTES: usize = 64 * 1024;

/// Which items to list.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct ItemsQuery {
    /// Only items in this state, such as `failed`.
    state: Option<String>,
    /// Pattern of the agent's name.
    agent: Option<String>,
    /// Pattern of the task's name, or of `dataset/task`.
    task: Option<String>,
    /// Most items of a page, from 1 to 1000; 100 by default.
    #[serde(default, deserialize_with = "whole_number::query_option")]
    limit: Option<usize>,
    /// `next` of the page before.
    #[serde(default, deserialize_with = "whole_number::query_option")]
    cursor: Option<usize>,
}

/// A page of items.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct ItemList {
    /// Items, in the plan's order.
    items: Vec<ItemDocument>,
    /// `cursor` of the next page; null on the last one.
    next: Option<usize>,
}

/// Which output to read.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct OutputQuery {
    /// Name of an output (`command/stdout.txt`), of a directory of outputs, or of a file in the logs;
    /// the output of every script and build with a header each by default.
    name: Option<String>,
    /// The try; by default the one that settled the item, else the last one with output.
    #[serde(rename = "try", default, deserialize_with = "whole_number::query_option")]
    number: Option<u32>,
    /// Send the output of an item that runs as it is written, until the item is settled.
    #[serde(default)]
    follow: bool,
}

/// Which artifact to read.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct ArtifactQuery {
    /// Its path, as in the list.
    path: String,
}

/// List the items of a run
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/items",
    tag = "items",
    params(("id" = String, Path, description = "The run"), ItemsQuery),
    responses(
        (status = 200, description = "Items, in the plan's order", body = ItemList),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let run = runs::find(&state, &user, &id)?;
    let query: ItemsQuery = body::query(query.as_deref())?;
    let query = ItemQuery {
        state: query.state,
        agent: query.agent,
        task: query.task,
        skip: query.cursor.unwrap_or_default(),
        limit: query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT),
    };
    let page = state.daemon.items(&user, &run, query).await?;
    let items = page.items.into_iter().map(ItemDocument::from).collect();
    Ok(json(&ItemList { items, next: page.next }))
}

/// Show an item with its executions
///
/// `item` is its id, its name, or a part of its name that no other has. The answer is the document of
/// `rollout show RUN ITEM --json`.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/items/{item}",
    tag = "items",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The item"),
    ),
    responses(
        (status = 200, description = "The item", body = ItemDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    /// The document of `rollout show`.
    #[derive(Serialize)]
    struct ShownItem {
        #[serde(flatten)]
        detail: view::TrialDetail,
        executions: Vec<view::RecordedExecution>,
    }

    let run = runs::find(&state, &user, &id)?;
    let found = state.daemon.item(&user, &run, &item).await?;
    let shown = ShownItem { detail: found.detail, executions: found.executions };
    Ok(json(&NullUnknownCosts(&shown)))
}

/// List the captured outputs of an item
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/items/{item}/outputs",
    tag = "items",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The item"),
    ),
    responses(
        (status = 200, description = "Its outputs", body = OutputList),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn outputs(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let run = runs::find(&state, &user, &id)?;
    let files = state.daemon.item_files(&user, &run, &item, None).await?;
    let outputs = files.record.outputs.iter().map(OutputDocument::from).collect();
    Ok(json(&OutputList { outputs }))
}

/// Read the output of an item
///
/// The text of `rollout logs`. With `follow`, the answer lasts until the item is settled.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/items/{item}/logs",
    tag = "items",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The item"),
        OutputQuery,
    ),
    responses(
        (status = 200, description = "The output, as it is", body = String, content_type = "text/plain"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn logs(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let run = runs::find(&state, &user, &id)?;
    let OutputQuery { name, number, follow } = body::query(query.as_deref())?;
    let permit = events::stream_permit(&state, &user)?;
    let (pieces, mut received) = mpsc::channel(WAITING_PIECES);
    if follow {
        // An unknown item is an error, not an empty stream.
        let found = state.daemon.item(&user, &run, &item).await?;
        if let Some(name) = &name {
            let is_settled = output_follower::is_settled(&found);
            check_followed(&state, &user, (&run, &item), name, is_settled).await?;
        }
        let daemon = Arc::clone(&state.daemon);
        let follower = output_follower::follow(daemon, user, run, item, name, pieces);
        let sending = supervise::spawn("followed output", follower);
        return Ok(text_stream(None, received, (sending, permit)));
    }
    let files = state.daemon.item_files(&user, &run, &item, number).await?;
    let mut found = state.daemon.captured_files(&files, name.as_deref())?;
    if name.is_none() {
        found.retain(CapturedFile::is_script_output);
    }
    let sending = supervise::spawn("captured output", async move {
        send_files(&files.store, &found, &pieces).await
    });
    // Whether a file in the logs exists is known when it is read.
    match received.recv().await {
        None => {
            let sent = sending.await.map_err(|_panic| DaemonError::Unfinished)?;
            sent.map_err(|error| state.daemon.captured_failure(error))?;
            Ok(text_stream(None, received, permit))
        }
        first => Ok(text_stream(first, received, (sending, permit))),
    }
}

/// Refuses to follow an output that an item does not have: one with a path of another place, and of a
/// settled item one that it did not leave.
async fn check_followed(
    state: &ApiState,
    user: &Principal,
    (run, item): (&HostedRun, &str),
    name: &str,
    is_settled: bool,
) -> Result<(), ApiProblem> {
    if is_settled {
        let files = state.daemon.item_files(user, run, item, None).await?;
        let shown = ShownOutput::new(Some(name));
        let mut paths = files.record.outputs.iter().map(|output| &output.path);
        if paths.any(|path| is_output(path) && shown.is_wanted(path)) {
            return Ok(());
        }
    } else if is_inside(name) {
        return Ok(());
    }
    Err(DaemonError::NoFiles.into())
}

/// Whether a name of an output, or of a directory of outputs, leads to no other place.
fn is_inside(name: &str) -> bool {
    name.trim_end_matches('/').split('/').all(|part| check_component(part, NAME_BYTES).is_ok())
}

/// Sends files until the client goes.
///
/// # Errors
/// The file that cannot be read.
async fn send_files(
    store: &Arc<dyn BlobStore>,
    files: &[CapturedFile],
    pieces: &mpsc::Sender<Bytes>,
) -> Result<(), CapturedError> {
    for file in files.iter().filter(|file| !file.is_empty()) {
        if files.len() > 1 {
            let header = format!("==> {} <==\n", file.path);
            if pieces.send(header.into()).await.is_err() {
                return Ok(());
            }
        }
        let sent = view::read_captured(&**store, file, pieces.clone()).await;
        sent.inspect_err(|error| tracing::warn!("cannot send {}: {error}", file.path))?;
        if files.len() > 1 && pieces.send("\n".into()).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// An answer of text in pieces, the first of which may have come. `owned` is held until all is sent.
fn text_stream<T: Send + 'static>(
    first: Option<Bytes>,
    received: mpsc::Receiver<Bytes>,
    owned: T,
) -> Response {
    let pieces =
        stream::unfold((first, received, owned), |(first, mut received, owned)| async move {
            let piece = match first {
                Some(piece) => piece,
                None => received.recv().await?,
            };
            Some((Ok::<_, std::convert::Infallible>(piece), (None, received, owned)))
        });
    let media = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        // Output is text of agents: a browser must not guess that it is a page.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let mut response = (media, Body::from_stream(pieces)).into_response();
    response.extensions_mut().insert(LongAnswer);
    response
}

/// List the artifacts of an item
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/items/{item}/artifacts",
    tag = "items",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The item"),
    ),
    responses(
        (status = 200, description = "Its artifacts", body = ArtifactList),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn artifacts(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
) -> Result<Response, ApiProblem> {
    let run = runs::find(&state, &user, &id)?;
    let files = state.daemon.item_files(&user, &run, &item, None).await?;
    Ok(json(&ArtifactList::from(files.references.artifacts)))
}

/// Read an artifact of an item
///
/// The content of its blob; an artifact of several files is an archive.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/items/{item}/artifact",
    tag = "items",
    params(
        ("id" = String, Path, description = "The run"),
        ("item" = String, Path, description = "The item"),
        ArtifactQuery,
    ),
    responses(
        (status = 200, description = "Its content", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn artifact(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path((id, item)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let run = runs::find(&state, &user, &id)?;
    let ArtifactQuery { path } = body::query(query.as_deref())?;
    let files = state.daemon.item_files(&user, &run, &item, None).await?;
    let (digest, size_bytes) = files.artifact(&path).ok_or(DaemonError::NoFiles)?;
    let permit = events::stream_permit(&state, &user)?;
    blob_stream(&*files.store, &digest, size_bytes, permit).await
}

/// An answer with the content of a blob. `permit` is held until all is sent.
pub(super) async fn blob_stream(
    store: &dyn BlobStore,
    digest: &Digest,
    size_bytes: u64,
    permit: SharedPlace,
) -> Result<Response, ApiProblem> {
    let reader = store.get(digest).await.map_err(|error| {
        tracing::error!("cannot read a blob: {error}");
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        ApiProblem::new(status, "internal", ExitCode::Failure, "cannot read the content")
    })?;
    let pieces = stream::unfold((reader, permit), |(mut reader, permit)| async move {
        let mut piece = vec![0; PIECE_BYTES];
        match reader.read(&mut piece).await {
            Ok(0) => None,
            Ok(read) => {
                piece.truncate(read);
                Some((Ok(Bytes::from(piece)), (reader, permit)))
            }
            Err(error) => Some((Err(error), (reader, permit))),
        }
    });
    let media = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, size_bytes.to_string()),
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    let mut response = (media, Body::from_stream(pieces)).into_response();
    response.extensions_mut().insert(LongAnswer);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followed_name_that_leads_to_another_place_is_refused() {
        for name in ["command", "command/", "command/stdout.txt", "steps/one/agent/stderr.txt"] {
            assert!(is_inside(name), "{name}");
        }
        let absolute = ["", "/", "/etc/passwd"];
        let upward = ["..", "../../etc/passwd", "command/../../x", "./command"];
        let unusual = ["command//x", "command/.hidden", "command\\x", "a\u{0}b"];
        for name in absolute.into_iter().chain(upward).chain(unusual) {
            assert!(!is_inside(name), "{name}");
        }
    }
}
