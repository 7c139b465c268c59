//! The gate of every request: its id, its user, and the form of errors.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use rollout_base::shared_limit::SharedPlace;
use rollout_protocol::exit::ExitCode;

use super::ApiState;
use super::problem::ApiProblem;
use crate::daemon::{Principal, Role};

/// Header with the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id of a request that a client may choose, bytes.
const MAX_REQUEST_ID: usize = 128;

/// Paths that need no token: probes have none.
const PUBLIC: [&str; 2] = ["/healthz", "/readyz"];

/// Gives a request its id and its user, and puts errors in their form.
pub(super) async fn pass(
    State(state): State<Arc<ApiState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match admit(&state, request.headers(), &path) {
        Ok(Some((user, place))) => {
            request.extensions_mut().insert(user);
            let mut response = next.run(request).await;
            response.extensions_mut().insert(place);
            response
        }
        Ok(None) => next.run(request).await,
        Err(problem) => axum::response::IntoResponse::into_response(problem),
    };
    let problem = response.extensions_mut().remove::<ApiProblem>();
    if let Some(problem) = problem.or_else(|| unexplained(&path, response.status())) {
        response = problem.render(&id, std::mem::take(response.headers_mut()));
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    state.metrics.answered(response.status(), began.elapsed());
    let status = response.status().as_u16();
    tracing::debug!("{method} {path} {status} {:?} {id}", began.elapsed());
    response
}

/// The error of a request that no handler got, such as one for a path that is not UTF-8.
fn unexplained(path: &str, status: StatusCode) -> Option<ApiProblem> {
    let is_refused = path.starts_with("/v1") && status.is_client_error();
    let message = "cannot understand the request";
    is_refused.then(|| ApiProblem::new(status, "bad-request", ExitCode::Usage, message))
}

/// The place of a request among those that are served, until its answer is sent.
#[derive(Debug, Clone)]
pub(super) struct RequestPlace {
    _place: Arc<SharedPlace>,
}

/// The user of a request, and its place; `None` for a path that needs none.
fn admit(
    state: &ApiState,
    headers: &HeaderMap,
    path: &str,
) -> Result<Option<(Principal, RequestPlace)>, ApiProblem> {
    let Some(user) = user(state, headers, path)? else { return Ok(None) };
    let place = state.requests.try_acquire(&user.limit_user(), 1).map_err(|reached| {
        let message = "cannot serve the request: the server serves as many as it can";
        ApiProblem::limit_reached("busy", message, "requests", reached)
    })?;
    Ok(Some((user, RequestPlace { _place: Arc::new(place) })))
}

/// The id that the client gave, if it can be repeated in logs, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let given =
        given.filter(|id| (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(is_plain));
    given.map_or_else(|| format!("{:032x}", rand::random::<u128>()), str::to_owned)
}

/// The user of a request; `None` for a path that needs none.
fn user(
    state: &ApiState,
    headers: &HeaderMap,
    path: &str,
) -> Result<Option<Principal>, ApiProblem> {
    if PUBLIC.contains(&path) {
        return Ok(None);
    }
    let refused = |message| {
        ApiProblem::new(StatusCode::UNAUTHORIZED, "unauthorized", ExitCode::Config, message)
    };
    let value = headers.get(header::AUTHORIZATION);
    let Some(value) = value else {
        return Err(refused("cannot find a token: send `Authorization: Bearer TOKEN`"));
    };
    let token = value.to_str().ok().and_then(|value| value.split_once(' '));
    let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let user = token.and_then(|(_, token)| state.tokens.find(token.trim()));
    user.map(Some).ok_or_else(|| refused("cannot accept the token: the server does not know it"))
}

/// Refuses a user without a role.
///
/// # Errors
/// 403.
pub(super) fn require(user: &Principal, role: Role) -> Result<(), ApiProblem> {
    if user.role >= role {
        return Ok(());
    }
    let message = "cannot do this with your token: its role does not allow it";
    Err(ApiProblem::new(StatusCode::FORBIDDEN, "forbidden", ExitCode::Config, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients_are_kept_if_they_are_plain() {
        let id = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(value).expect("a value"));
            request_id(&headers)
        };
        assert_eq!(id("trace-1.a_B"), "trace-1.a_B");
        for bad in ["", "a b", "a\"b", &"x".repeat(MAX_REQUEST_ID + 1)] {
            assert_eq!(id(bad).len(), 32, "{bad}");
        }
    }
}
