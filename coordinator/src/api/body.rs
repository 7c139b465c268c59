//! Bodies of requests, bounded in size and time, and in their bytes over all requests.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::LengthLimitError;
use hyper::body::Body as _;
use rollout_base::shared_limit::{LimitShares, LimitUser, SharedLimit, SharedPlace};
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::problem::ApiProblem;
use super::{ApiState, json_size};
use crate::daemon::Principal;

/// Time to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest wait of a body for room.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of the bodies of all requests that are read or used, or four of the largest if these are more.
const BYTES_IN_FLIGHT: usize = 256 * 1024 * 1024;

/// The limit of the bytes of all bodies, of which the largest one has `most`.
pub(super) fn bytes_in_flight(most: usize) -> Arc<SharedLimit> {
    SharedLimit::new(LimitShares::new(BYTES_IN_FLIGHT.max(most.saturating_mul(4)) as u64))
}

/// Large bodies that are parsed at the same time.
const CONCURRENT_PARSES: u64 = 4;

/// Largest small body, bytes: its document takes less time than a change of threads.
const SMALL_BODY: usize = 16 * 1024;

/// The limit of large bodies that are parsed at the same time.
pub(super) fn parses() -> Arc<SharedLimit> {
    SharedLimit::new(LimitShares::new(CONCURRENT_PARSES))
}

/// A body, whose bytes count as long as this or a copy of it lives.
#[derive(Debug, Clone)]
pub(super) struct BodyBytes {
    bytes: Bytes,
    _room: Arc<SharedPlace>,
}

impl BodyBytes {
    fn is_small(&self) -> bool {
        self.bytes.len() <= SMALL_BODY
    }
}

impl Deref for BodyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a body of a user, when there is room for it. The role of the user was checked before.
///
/// # Errors
/// 413 for one that is too large, 429 when there is no room for it, 408 for one that takes too long.
pub(super) async fn read(
    state: &ApiState,
    user: &Principal,
    headers: &HeaderMap,
    body: Body,
) -> Result<BodyBytes, ApiProblem> {
    let most = state.max_body_bytes;
    let too_large = || {
        let message = format!("cannot read the body: it has more than {most} bytes");
        ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", ExitCode::Usage, message)
    };
    let stated = stated_length(headers);
    if stated.is_some_and(|stated| stated > most as u64) {
        return Err(too_large());
    }
    // A body without a stated size may be known to be empty.
    let expected = stated.or(body.size_hint().upper()).unwrap_or(most as u64).min(most as u64);
    let room = room(&state.body_bytes, &user.limit_user(), expected.max(1)).await?;
    match timeout(BODY_TIMEOUT, axum::body::to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(BodyBytes { bytes, _room: Arc::new(room) }),
        Ok(Err(error)) if is_too_long(&error) => Err(too_large()),
        Ok(Err(error)) => Err(ApiProblem::bad_request(format!("cannot read the body: {error}"))),
        Err(_) => {
            let message = "cannot read the body: it did not arrive in time";
            Err(ApiProblem::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                ExitCode::OutOfReach,
                message,
            ))
        }
    }
}

/// Room for a body of a user, whose client has nothing to do with the wait for it.
async fn room(
    limit: &Arc<SharedLimit>,
    user: &LimitUser,
    bytes: u64,
) -> Result<SharedPlace, ApiProblem> {
    if let Ok(room) = timeout(ROOM_TIMEOUT, limit.acquire(user, 0, bytes)).await {
        return Ok(room);
    }
    limit.try_acquire(user, bytes).map_err(|reached| {
        let message = "cannot read the body: the server reads as many bytes as it can";
        ApiProblem::limit_reached("busy", message, "body_bytes", reached)
    })
}

/// The size of a body that a client states.
pub(super) fn stated_length(headers: &HeaderMap) -> Option<u64> {
    let stated = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    stated.and_then(|text| text.parse().ok())
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Does work on a body of a user that blocks, or whose time grows with the body, on a thread for such
/// work: the threads of other requests stay free. Large bodies take turns.
pub(super) async fn work<T: Send + 'static>(
    state: &ApiState,
    user: &Principal,
    bytes: &BodyBytes,
    work: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> T {
    let bytes = bytes.clone();
    let turn = match bytes.is_small() {
        true => None,
        false => Some(state.parses.acquire(&user.limit_user(), 0, 1).await),
    };
    supervise::blocking(move || {
        let _turn = turn;
        work(&bytes)
    })
    .await
}

/// The document in a body of JSON of a user.
///
/// # Errors
/// 400.
pub(super) async fn json<T: DeserializeOwned + Send + 'static>(
    state: &ApiState,
    user: &Principal,
    bytes: &BodyBytes,
) -> Result<T, ApiProblem> {
    match bytes.is_small() {
        true => parse(bytes),
        false => work(state, user, bytes, parse).await,
    }
}

/// The document in a body of JSON: an object, or null. A list would be read as the members of the
/// document in their order, which the description does not allow. Its values are counted before any is
/// kept.
///
/// # Errors
/// 400.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiProblem> {
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiProblem::bad_request("cannot read the body: it is a list, not an object"));
    }
    let unreadable = |error| ApiProblem::bad_request(format!("cannot read the body: {error}"));
    json_size::check(bytes).map_err(unreadable)?;
    serde_json::from_slice(bytes).map_err(unreadable)
}

/// The parameters of a query.
///
/// # Errors
/// 400.
pub(super) fn query<T: DeserializeOwned>(text: Option<&str>) -> Result<T, ApiProblem> {
    serde_urlencoded::from_str(text.unwrap_or_default())
        .map_err(|error| ApiProblem::bad_request(format!("cannot read the query: {error}")))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize)]
    struct Document {
        name: Option<String>,
    }

    #[tokio::test(start_paused = true)]
    async fn body_without_room_is_refused_as_busy_not_as_late() {
        let limit = SharedLimit::new(LimitShares::new(8));
        let [ada, bob] =
            ["ada", "bob"].map(|name| LimitUser { name: name.to_owned(), is_admin: false });
        let held = room(&limit, &ada, 4).await.expect("room");
        let refused = room(&limit, &ada, 4).await.expect_err("no room");
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        let answer = refused.render("id", HeaderMap::new());
        assert!(answer.headers().contains_key(header::RETRY_AFTER));
        let text = axum::body::to_bytes(answer.into_body(), 4096).await.expect("a body");
        let problem: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(problem["type"], "urn:rollout:problem:busy", "{problem:#}");
        let members = [&problem["limit"], &problem["depth"], &problem["max"]];
        assert_eq!(members, [&json!("body_bytes"), &json!(4), &json!(8)]);
        let _of_bob = room(&limit, &bob, 2).await.expect("room of one's own");
        drop(held);
        let _later = room(&limit, &ada, 4).await.expect("room");
    }

    #[test]
    fn list_is_no_document() {
        let read = |text: &str| parse::<Document>(text.as_bytes()).map(|document| document.name);
        assert_eq!(read(r#" {"name": "n"}"#).ok(), Some(Some("n".to_owned())));
        for text in [r#"["n"]"#, " [null]", "1", ""] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
