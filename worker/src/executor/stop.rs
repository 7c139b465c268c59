//! Waiting for a stop of an execution.

use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

/// Returns when the execution must end at once.
pub async fn wait_for_kill(stop: watch::Receiver<Option<StopLevel>>) {
    wait_for_level(stop, StopLevel::Kill).await;
}

/// Returns when the execution must end, at once or after the current phase.
pub async fn wait_for_stop(stop: watch::Receiver<Option<StopLevel>>) {
    wait_for_level(stop, StopLevel::Drain).await;
}

async fn wait_for_level(mut stop: watch::Receiver<Option<StopLevel>>, wanted: StopLevel) {
    let reached = stop.wait_for(|level| *level >= Some(wanted)).await.is_ok();
    if !reached {
        // The sender is dropped, so no stop can come any more.
        std::future::pending::<()>().await;
    }
}
