//! Completions of a farm as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use rollout_base::shared_limit::SharedPlace;
use rollout_protocol::farm::Completion;

use super::documents::CompletionStreamQuery;
use super::find;
use crate::api::connections::LongAnswer;
use crate::api::problem::ApiProblem;
use crate::api::{ApiState, body, events};
use crate::daemon::{CompletionRead, FarmError, HostedFarm, Principal};

/// Completions that are read at once.
const BATCH: usize = 256;

/// Longest wait of a read.
const READ_WAIT: Duration = Duration::from_secs(60);

/// Follow the completions of a farm
///
/// Server-sent events: `id` is the cursor, `event` is `completion`, and `data` the completion. A client
/// that connects again with `Last-Event-ID` or `after` misses none. Completions that were acknowledged
/// are not sent. The event `end` ends the stream when the farm has ended, the event `error` when its
/// session failed.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/farms/{id}/completions/stream",
    tag = "farms",
    params(
        ("id" = String, Path, description = "The farm"),
        CompletionStreamQuery,
        ("Last-Event-ID" = Option<usize>, Header, description = "Cursor of the last completion that was received"),
    ),
    responses(
        (status = 200, description = "Completions", body = Object, content_type = "text/event-stream"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn stream(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiProblem> {
    let farm = find(&state, &user, &id)?;
    let CompletionStreamQuery { consumer, after } = body::query(query.as_deref())?;
    let after = events::last_event_id(&headers)?.unwrap_or(after);
    let permit = events::stream_permit(&state, &user)?;
    // A stream that can send nothing is an error.
    let read = farm.completions(consumer.as_deref(), after, BATCH, Duration::ZERO).await?;
    let mut reader = CompletionReader {
        farm,
        consumer,
        after,
        ready: VecDeque::new(),
        is_over: false,
        is_told: false,
        _permit: permit,
    };
    reader.take(read);
    let events = stream::unfold(reader, CompletionReader::step);
    let keep_alive = KeepAlive::new().interval(events::KEEP_ALIVE);
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    response.extensions_mut().insert(LongAnswer);
    Ok(response)
}

/// A reader of completions. It holds one batch; the next one is read when that is sent.
struct CompletionReader {
    farm: Arc<HostedFarm>,
    consumer: Option<String>,
    /// Cursor of the last completion of the batch.
    after: u64,
    ready: VecDeque<Arc<Completion>>,
    /// Whether no more will come.
    is_over: bool,
    /// Whether the client was told so.
    is_told: bool,
    _permit: SharedPlace,
}

impl CompletionReader {
    fn take(&mut self, read: CompletionRead) {
        let CompletionRead { completions, next_after, is_over, .. } = read;
        self.after = next_after;
        self.ready = completions.into();
        self.is_over = is_over;
    }

    async fn step(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            if let Some(completion) = self.ready.pop_front() {
                let data = serde_json::to_string(&*completion).unwrap_or_default();
                let event = Event::default().id(completion.cursor.to_string());
                return Some((Ok(event.event("completion").data(data)), self));
            }
            if self.is_told {
                return None;
            }
            if self.is_over {
                self.is_told = true;
                return Some((Ok(Event::default().event("end").data("{}")), self));
            }
            let consumer = self.consumer.clone();
            let read = self.farm.completions(consumer.as_deref(), self.after, BATCH, READ_WAIT);
            match read.await {
                Ok(read) => self.take(read),
                // It opens again, or the server ends: the client connects again then.
                Err(FarmError::NotOpen { .. } | FarmError::WaitsForDisk { .. }) => {}
                Err(error) => {
                    self.is_told = true;
                    let document = serde_json::json!({ "message": error.to_string() });
                    let event = Event::default().event("error").data(document.to_string());
                    return Some((Ok(event), self));
                }
            }
        }
    }
}
