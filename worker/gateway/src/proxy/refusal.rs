//! Replies that ask to call again later: how long to wait.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::{HeaderMap, Response, StatusCode};
use rollout_protocol::spec::gateway::ModelDialect;
use serde_json::Value;

/// Size of an error that is read, bytes: far more than any has.
const MAX_ERROR_BYTES: usize = 1024 * 1024;

/// Longest time to read an error.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a server's reply: on its way, or read already.
pub(super) type ServerBody = Either<Incoming, Full<Bytes>>;

/// A reply, and how long it asks to wait.
pub(super) struct ServerReply {
    pub(super) response: Response<ServerBody>,
    pub(super) wait: Option<Duration>,
}

/// Whether a server asks to call again later.
pub(super) fn asks_to_wait(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504 | 529)
}

/// Finds out how long a reply asks to wait: Gemini says it in the body.
///
/// # Errors
/// Why its body cannot be read.
pub(super) async fn read(
    dialect: ModelDialect,
    response: Response<Incoming>,
) -> Result<ServerReply, String> {
    let wait = asked_wait(response.headers());
    let is_in_body = dialect == ModelDialect::Gemini && wait.is_none();
    if !is_in_body || !asks_to_wait(response.status()) {
        return Ok(ServerReply { response: response.map(Either::Left), wait });
    }
    let (parts, body) = response.into_parts();
    let reading = Limited::new(body, MAX_ERROR_BYTES).collect();
    let read = tokio::time::timeout(READ_TIMEOUT, reading).await;
    let read = read.map_err(|_| "the error of the model server does not end".to_owned())?;
    let body = read.map_err(|error| error.to_string())?.to_bytes();
    let wait = retry_delay(&body);
    let body = Either::Right(Full::new(body));
    Ok(ServerReply { response: Response::from_parts(parts, body), wait })
}

/// How long headers ask to wait.
pub(super) fn asked_wait(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after"));
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// How long an error of Gemini asks to wait. The error of a stream may be in a list.
fn retry_delay(body: &[u8]) -> Option<Duration> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let body = body.get(0).unwrap_or(&body);
    let details = body["error"]["details"].as_array()?;
    let delay = details.iter().find_map(|detail| detail["retryDelay"].as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn delay_is_read_from_errors_of_gemini() {
        let error = |delay: &str| {
            json!({"error": {"code": 429, "details": [
                {"@type": "type.googleapis.com/google.rpc.QuotaFailure"},
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]}})
        };
        let read = |value: &Value| retry_delay(value.to_string().as_bytes());
        assert_eq!(read(&error("34.5s")), Some(Duration::from_millis(34_500)));
        assert_eq!(read(&json!([error("7s")])), Some(Duration::from_secs(7)));
        for other in [error("7"), error("-1s"), json!({"error": {}}), json!([]), json!(1)] {
            assert_eq!(read(&other), None, "{other}");
        }
    }
}
