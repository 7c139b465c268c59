//! Waiting for a server that is out of reach for a moment.

use std::time::Duration;

use rollout_worker::queue::nats::{BindError, ConnectError, SetupError};
use rollout_worker::queue::traits::QueueError;
use tokio::time::Instant;

use crate::cli::error::CliError;

/// How long the beginning of a run waits: a server that is being restarted is back by then.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// Why something did not work.
pub(super) enum Missed {
    /// It may work later.
    Now(CliError),
    /// It will not.
    Forever(CliError),
}

/// Tries as long as there is hope.
pub(super) async fn patiently<T>(
    attempt: impl AsyncFn() -> Result<T, Missed>,
) -> Result<T, CliError> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(Missed::Forever(error)) => return Err(error),
            Err(Missed::Now(error)) if begun.elapsed() >= PATIENCE => return Err(error),
            Err(Missed::Now(error)) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("{}; trying again for {PATIENCE:?}", error.message);
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Missed {
    fn of(passes: bool, error: CliError) -> Self {
        if passes { Self::Now(error) } else { Self::Forever(error) }
    }
}

impl From<QueueError> for Missed {
    fn from(error: QueueError) -> Self {
        Self::of(matches!(error, QueueError::Unreachable { .. }), error.into())
    }
}

impl From<ConnectError> for Missed {
    fn from(error: ConnectError) -> Self {
        Self::of(matches!(error, ConnectError::Unreachable { .. }), error.into())
    }
}

impl From<SetupError> for Missed {
    fn from(error: SetupError) -> Self {
        let passes = matches!(error, SetupError::Queue(QueueError::Unreachable { .. }));
        Self::of(passes, error.into())
    }
}

impl From<BindError> for Missed {
    fn from(error: BindError) -> Self {
        let passes = matches!(error, BindError::Queue(QueueError::Unreachable { .. }));
        Self::of(passes, error.into())
    }
}
