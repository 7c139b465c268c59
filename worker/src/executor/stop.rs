//! Waiting for a stop of an execution.

use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

/// Ends when the execution must end at once.
pub async fn killed(stop: watch::Receiver<Option<StopLevel>>) {
    reached(stop, StopLevel::Kill).await;
}

/// Ends when the execution must end, be it at the next opportunity.
pub async fn stopped(stop: watch::Receiver<Option<StopLevel>>) {
    reached(stop, StopLevel::Drain).await;
}

async fn reached(mut stop: watch::Receiver<Option<StopLevel>>, wanted: StopLevel) {
    let reached = stop.wait_for(|level| *level >= Some(wanted)).await.is_ok();
    if !reached {
        // The sender is gone, so no stop can come any more.
        std::future::pending::<()>().await;
    }
}
