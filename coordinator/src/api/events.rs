//! Events of a run as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use rollout_base::shared_limit::{LimitUser, SharedPlace};
use serde::Deserialize;
use tokio::time::timeout;
#[cfg(feature = "openapi")]
use utoipa::IntoParams;

use super::connections::LongAnswer;
use super::problem::ApiProblem;
use super::{ApiState, body, runs, whole_number};
use crate::daemon::{Daemon, EventFollower, HostedEvent, HostedRun, Principal};

/// Time between two signs of life on a stream without events.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Longest time between two looks at a run.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Where a stream begins.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct EventsQuery {
    /// Only events with a higher number; 0 for all. `Last-Event-ID` takes its place.
    #[serde(default, deserialize_with = "whole_number::query")]
    #[cfg_attr(feature = "openapi", param(value_type = usize))]
    after: u64,
}

/// Follow the durable events of a run
///
/// Server-sent events: `id` is the number of the event, `event` its kind, and `data` the object that
/// `rollout events --json` prints. A client that connects again with `Last-Event-ID` or `after` misses
/// none and gets none twice. The stream ends with the event `end` when the run has no session and will
/// have none by itself.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/runs/{id}/events",
    tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        EventsQuery,
        ("Last-Event-ID" = Option<usize>, Header, description = "Number of the last event that was received"),
    ),
    responses(
        (status = 200, description = "Events", body = Object, content_type = "text/event-stream"),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn events(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiProblem> {
    let run = runs::find(&state, &user, &id)?;
    let EventsQuery { after } = body::query(query.as_deref())?;
    let after = last_event_id(&headers)?.unwrap_or(after);
    let permit = stream_permit(&state, &user)?;
    let follower = run.follow();
    let daemon = Arc::clone(&state.daemon);
    let ready = VecDeque::new();
    let reader = EventReader {
        daemon,
        user: user.limit_user(),
        run,
        after,
        follower,
        ready,
        is_over: false,
        _permit: permit,
    };
    let events = stream::unfold(reader, EventReader::step);
    let mut response =
        Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.extensions_mut().insert(LongAnswer);
    Ok(response)
}

/// The number of the last event that a client received.
///
/// # Errors
/// 400 for something else.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiProblem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(whole_number::parse);
    let wrong = "cannot use `Last-Event-ID`: it is not the number of an event";
    number.map(Some).ok_or_else(|| ApiProblem::bad_request(wrong))
}

/// A place of a user among the answers that last.
///
/// # Errors
/// 429 when there are too many, or too many of this user.
pub(super) fn stream_permit(state: &ApiState, user: &Principal) -> Result<SharedPlace, ApiProblem> {
    state.streams.try_acquire(&user.limit_user(), 1).map_err(|reached| {
        let message = "cannot open the stream: the server has as many as it can";
        ApiProblem::limit_reached("too-many-streams", message, "streams", reached)
    })
}

/// A reader of events. It holds one batch; the next one is read when that is sent, so a slow client
/// costs a batch and holds up nothing.
struct EventReader {
    daemon: Arc<Daemon>,
    user: LimitUser,
    run: Arc<HostedRun>,
    /// Number of the last event of the batch.
    after: u64,
    follower: EventFollower,
    ready: VecDeque<HostedEvent>,
    is_over: bool,
    _permit: SharedPlace,
}

impl EventReader {
    async fn step(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                let HostedEvent { seq, kind, json } = event;
                let event = Event::default().id(seq.to_string()).event(&*kind).data(&*json);
                return Some((Ok(event), self));
            }
            if self.is_over {
                return None;
            }
            self.follower.mark_seen();
            // Before the look: events that come with the end must not be missed.
            let was_over = self.run.is_over();
            match self.daemon.events(&self.user, &self.run, self.after).await {
                Ok(events) if events.is_empty() && was_over => {
                    self.is_over = true;
                    return Some((Ok(Event::default().event("end").data("{}")), self));
                }
                Ok(events) if events.is_empty() => {
                    let _either = timeout(LOOK_INTERVAL, self.follower.changed()).await;
                }
                Ok(events) => {
                    self.after = events.last().map_or(self.after, |last| last.seq);
                    self.ready = events.into();
                }
                Err(error) => {
                    self.is_over = true;
                    let document = serde_json::json!({ "message": error.to_string() });
                    let event = Event::default().event("error").data(document.to_string());
                    return Some((Ok(event), self));
                }
            }
        }
    }
}
