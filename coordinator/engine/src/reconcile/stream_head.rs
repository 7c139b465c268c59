//! Catching up with the head of the report stream.

use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::ReportCursor;
use rollout_queue::traits::{Dispatch, QueueError};
use tokio::sync::watch;

/// Waits until the core has handled every report that the queue had when this was called.
///
/// # Errors
/// [`QueueError`]; also when the session ends meanwhile.
pub(super) async fn wait_until_caught_up(
    run: RunId,
    dispatch: &dyn Dispatch,
    handled: &mut watch::Receiver<Option<ReportCursor>>,
) -> Result<(), QueueError> {
    let incarnation = dispatch.incarnation().await?;
    let head = dispatch.last_report_sequence(run).await?;
    if head == 0 {
        return Ok(());
    }
    let reached = |at: &Option<ReportCursor>| {
        at.is_some_and(|at| at.incarnation == incarnation && at.sequence >= head)
    };
    match handled.wait_for(reached).await {
        Ok(_) => Ok(()),
        Err(_) => Err(QueueError::Unreachable { reason: "the session ended".to_owned() }),
    }
}
