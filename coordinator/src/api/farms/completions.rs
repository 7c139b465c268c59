//! Completions of a farm: reading and acknowledgement.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use rollout_base::shared_limit::SharedPlace;
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::farm::AckReceipt;
use rollout_protocol::limits::COMPLETIONS_PER_READ;

use super::documents::{
    AcknowledgeCompletions, AcknowledgedDocument, CompletionList, CompletionsQuery,
};
use super::find;
use crate::api::gate::require;
use crate::api::problem::ApiProblem;
use crate::api::{ApiState, body, events, json};
use crate::daemon::{CompletionRead, Principal, Role};

/// Completions of an answer unless the request says otherwise.
const DEFAULT_LIMIT: usize = 100;

/// Metadata of an answer that is made at once and counts for no limit.
const SMALL_METADATA_BYTES: u64 = 64 * 1024;

/// Parts in which a large answer is sent.
const PART_BYTES: usize = 64 * 1024;

/// Longest wait for a completion, seconds.
const MAX_WAIT_SEC: u64 = 60;

/// Read completions
///
/// Shows what the consumer has not acknowledged, in the order of the cursors, also after a restart of
/// the server. Waits for the first one as long as `wait` says, and is empty if none came.
#[cfg_attr(feature = "openapi", utoipa::path(
    get,
    path = "/v1/farms/{id}/completions",
    tag = "farms",
    params(("id" = String, Path, description = "The farm"), CompletionsQuery),
    responses(
        (status = 200, description = "Completions", body = CompletionList),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn read(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let farm = find(&state, &user, &id)?;
    let CompletionsQuery { consumer, after, limit, wait } = body::query(query.as_deref())?;
    if wait > MAX_WAIT_SEC {
        let message = format!("cannot wait for {wait} seconds: expected 0 to {MAX_WAIT_SEC}");
        return Err(ApiProblem::bad_request(message));
    }
    // A reader that goes drops this future, and with it the permit.
    let mut permit = if wait > 0 { Some(events::stream_permit(&state, &user)?) } else { None };
    let limit = limit.unwrap_or(DEFAULT_LIMIT).clamp(1, COMPLETIONS_PER_READ);
    let wait = Duration::from_secs(wait);
    let read = farm.completions(consumer.as_deref(), after, limit, wait).await?;
    if read.metadata_bytes <= SMALL_METADATA_BYTES {
        return Ok(json(&list(&read)));
    }
    // Many readers that do not take what they asked for would take the server's memory.
    let permit = match permit.take() {
        Some(permit) => permit,
        None => events::stream_permit(&state, &user)?,
    };
    let turn = state.encodings.acquire(&user.limit_user(), 0, 1).await;
    let encoded = supervise::blocking(move || {
        // An encoding whose reader has gone keeps its turn until it ends.
        let _turn = turn;
        serde_json::to_vec(&list(&read))
    });
    let encoded = encoded.await.map_err(|error| {
        tracing::error!("cannot encode completions: {error}");
        let message = "cannot encode the answer";
        ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", ExitCode::Failure, message)
    })?;
    Ok(large(encoded.into(), permit))
}

fn list(read: &CompletionRead) -> CompletionList<'_> {
    let completions = read.completions.iter().map(|one| &**one).collect();
    CompletionList { completions, next_after: read.next_after }
}

/// An answer of JSON that holds a permit until it is sent.
fn large(text: Bytes, permit: SharedPlace) -> Response {
    let length = text.len();
    let parts = (0..length).step_by(PART_BYTES);
    let parts = parts.map(move |at| text.slice(at..(at + PART_BYTES).min(length)));
    let parts = stream::iter(parts).map(move |part| {
        let _held = &permit;
        Ok::<_, Infallible>(part)
    });
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
    ];
    (headers, Body::from_stream(parts)).into_response()
}

/// Acknowledge completions
///
/// They are never shown again. Durable when the answer arrives; cursors that are unknown, or were
/// acknowledged before, are no error.
#[cfg_attr(feature = "openapi", utoipa::path(
    post,
    path = "/v1/farms/{id}/ack",
    tag = "farms",
    params(("id" = String, Path, description = "The farm")),
    request_body = AcknowledgeCompletions,
    responses(
        (status = 200, description = "Numbers of completions", body = AcknowledgedDocument),
        (status = "default", description = "An error", body = crate::api::problem::Problem, content_type = "application/problem+json"),
    ),
))]
pub(super) async fn acknowledge(
    State(state): State<Arc<ApiState>>,
    Extension(user): Extension<Principal>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    require(&user, Role::Submit)?;
    let farm = find(&state, &user, &id)?;
    let bytes = body::read(&state, &user, &headers, body).await?;
    let AcknowledgeCompletions { consumer, cursors } = body::json(&state, &user, &bytes).await?;
    if cursors.len() > COMPLETIONS_PER_READ {
        let message = format!(
            "cannot acknowledge {} completions at once: expected at most {COMPLETIONS_PER_READ}",
            cursors.len()
        );
        return Err(ApiProblem::bad_request(message));
    }
    let receipt = farm.acknowledge(consumer.as_deref(), cursors).await?;
    let AckReceipt { acknowledged, repeated, unknown } = receipt;
    Ok(json(&AcknowledgedDocument { acknowledged, repeated, unknown }))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use axum::Router;
    use axum::body::to_bytes;
    use axum::routing::get;
    use rollout_base::shared_limit::{LimitShares, LimitUser, SharedLimit};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::*;
    use crate::api::connections::Connections;

    #[tokio::test]
    async fn unread_large_answers_of_one_user_hold_places_and_leave_some_for_others() {
        let limit = SharedLimit::new(LimitShares::new(8));
        let text = Bytes::from(vec![b'x'; 3 * PART_BYTES + 1]);
        let answer = |name: &str| {
            let user = LimitUser { name: name.to_owned(), is_admin: false };
            let place = limit.try_acquire(&user, 1).ok()?;
            Some(large(text.clone(), place))
        };
        let mut unread: Vec<Response> = std::iter::from_fn(|| answer("ada")).collect();
        assert!((2..8).contains(&unread.len()), "{}", unread.len());
        assert!(answer("bob").is_some(), "there is a place for another user");
        assert!(answer("ada").is_none());
        let read = unread.pop().expect("an answer");
        let length = read.headers()[header::CONTENT_LENGTH].to_str().expect("text");
        assert_eq!(length, text.len().to_string());
        assert_eq!(to_bytes(read.into_body(), usize::MAX).await.expect("a body"), text);
        assert!(answer("ada").is_some(), "an answer that was read holds no place");
    }

    /// Asks for the answer of a user; returns the status, and the connection, of which nothing else is
    /// read.
    async fn ask(address: SocketAddr, user: &str) -> (String, TcpStream) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(64 * 1024).expect("set");
        let mut stream = socket.connect(address).await.expect("connected");
        let request = format!("GET /{user} HTTP/1.1\r\nhost: h\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut status = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut status).await.expect("a status");
        (String::from_utf8_lossy(&status).into_owned(), stream)
    }

    #[tokio::test]
    async fn answers_that_a_client_leaves_in_its_sockets_hold_places_of_its_user() {
        let limit = SharedLimit::new(LimitShares::new(8));
        // As long as an answer with completions, and less than the system takes by default.
        let text = Bytes::from(vec![b'x'; 2 * 1024 * 1024]);
        let answer = move |Path(name): Path<String>| {
            let user = LimitUser { name, is_admin: false };
            let place = limit.try_acquire(&user, 1);
            std::future::ready(match place {
                Ok(place) => large(text.clone(), place),
                Err(_) => StatusCode::TOO_MANY_REQUESTS.into_response(),
            })
        };
        let router = Router::new().route("/{user}", get(answer));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let serving = Connections::new(64, None).serve(listener, router);
        let _serving = supervise::spawn("server", serving);
        let mut unread = Vec::new();
        let refused = loop {
            let (status, stream) = ask(address, "ada").await;
            if status != "HTTP/1.1 200" {
                break status;
            }
            unread.push(stream);
            assert!(unread.len() < 8, "unread answers hold no places");
        };
        assert_eq!(refused, "HTTP/1.1 429");
        let (status, _stream) = ask(address, "bob").await;
        assert_eq!(status, "HTTP/1.1 200", "there is a place for another user");
    }
}
