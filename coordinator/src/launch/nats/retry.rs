//! Retries while a server is temporarily unreachable.

use std::error::Error;
use std::time::Duration;

use tokio::time::Instant;

use super::ServerError;

/// How long the start of a run waits: a restarting server is back by then.
const RETRY_PERIOD: Duration = Duration::from_secs(60);

/// Time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Retries until an attempt succeeds, fails permanently, or the period is over.
pub(super) async fn retry<T>(
    attempt: impl AsyncFn() -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let started = Instant::now();
    let mut warned = false;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if !error.is_passing() => return Err(error),
            Err(error) if started.elapsed() >= RETRY_PERIOD => {
                return Err(error.after_attempts(RETRY_PERIOD));
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!("{}; retrying for {RETRY_PERIOD:?}", with_causes(&error));
                }
            }
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

fn with_causes(error: &ServerError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
