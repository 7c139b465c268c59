//! Claims of workers and commands of users.

use std::sync::Arc;

use futures_util::FutureExt as _;
use rollout_base::backoff::OutageLog;
use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::ReportCursor;
use rollout_queue::traits::{Dispatch, QueueError};
use tokio::sync::{mpsc, watch};

use super::stream_head::wait_until_caught_up;
use crate::event_loop::EngineMessage;

/// Claims answered after one read of the reports.
const MAX_CLAIMS_PER_BATCH: usize = 256;

/// Forwards claims, each after the reports up to its arrival.
pub(super) async fn forward_claims(
    run: RunId,
    dispatch: Arc<dyn Dispatch>,
    mut handled: watch::Receiver<Option<ReportCursor>>,
    to: mpsc::Sender<EngineMessage>,
) {
    let outage = OutageLog::new("listening for claims");
    let mut backoff = outage.backoff();
    while !to.is_closed() {
        let first = match dispatch.next_claim(run).await {
            Ok(claim) => claim,
            Err(error) => {
                backoff.wait_after_failure(&error).await;
                continue;
            }
        };
        let mut claims = vec![first];
        while claims.len() < MAX_CLAIMS_PER_BATCH
            && let Some(Ok(more)) = dispatch.next_claim(run).now_or_never()
        {
            claims.push(more);
        }
        let ready = async {
            wait_until_caught_up(run, &*dispatch, &mut handled).await?;
            Ok((dispatch.heartbeats().await?, dispatch.heartbeat_retention()))
        };
        let known: Result<_, QueueError> = ready.await;
        match known {
            Ok(heartbeats) => {
                backoff.succeeded();
                if to.send(EngineMessage::Claims(claims, Some(heartbeats))).await.is_err() {
                    return;
                }
            }
            // No answer is sent: the workers ask again.
            Err(error) => backoff.wait_after_failure(&error).await,
        }
    }
}

/// Forwards commands.
pub(super) async fn forward_commands(
    run: RunId,
    dispatch: Arc<dyn Dispatch>,
    to: mpsc::Sender<EngineMessage>,
) {
    let outage = OutageLog::new("listening for commands");
    let mut backoff = outage.backoff();
    while !to.is_closed() {
        match dispatch.next_command(run).await {
            Ok(command) => {
                backoff.succeeded();
                if to.send(EngineMessage::Command(command)).await.is_err() {
                    return;
                }
            }
            Err(error) => backoff.wait_after_failure(&error).await,
        }
    }
}
