//! Bodies of requests, bounded in size and time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::LengthLimitError;
use rollout_protocol::exit::ExitCode;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::problem::ApiProblem;

/// Time to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads a body.
///
/// # Errors
/// 413 for one with more than `most` bytes, 408 for one that takes too long.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    most: usize,
) -> Result<Bytes, ApiProblem> {
    let too_large = || {
        let message = format!("cannot read the body: it has more than {most} bytes");
        ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", ExitCode::Usage, message)
    };
    let stated = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let stated: Option<u64> = stated.and_then(|text| text.parse().ok());
    if stated.is_some_and(|stated| stated > most as u64) {
        return Err(too_large());
    }
    match timeout(BODY_TIMEOUT, axum::body::to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
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

/// The document in a body of JSON: an object, or null. A list would be read as the members of the
/// document in their order, which the description does not allow.
///
/// # Errors
/// 400.
pub(super) fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiProblem> {
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiProblem::bad_request("cannot read the body: it is a list, not an object"));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| ApiProblem::bad_request(format!("cannot read the body: {error}")))
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

    use super::*;

    #[derive(Deserialize)]
    struct Document {
        name: Option<String>,
    }

    #[test]
    fn list_is_no_document() {
        let read = |text: &str| json::<Document>(text.as_bytes()).map(|document| document.name);
        assert_eq!(read(r#" {"name": "n"}"#).ok(), Some(Some("n".to_owned())));
        for text in [r#"["n"]"#, " [null]", "1", ""] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
