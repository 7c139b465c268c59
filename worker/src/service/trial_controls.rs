//! Controls of users for harnesses that run here.

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::harness::ControlAction;
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlResult};

use super::WorkerShared;
use super::execution::Execution;
use crate::executor::MailboxRefusal;
use crate::queue::traits::PendingTrialControl;

/// Requests that wait for their result at a time: people send them one by one.
const MAX_WAITING: usize = 256;

/// Answers requests for controls of executions that run here. Other workers answer the others.
/// Never ends.
pub(super) async fn handle_trial_controls(shared: Arc<WorkerShared>) -> Infallible {
    let mut waiting = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(()) = waiting.next(), if !waiting.is_empty() => {}
            pending = shared.source.next_trial_control(), if waiting.len() < MAX_WAITING => {
                let (run, item) = (pending.request.run, pending.request.item);
                if let Some(execution) = shared.registry.find_running(run, item) {
                    waiting.push(answer(&shared, execution, pending));
                }
            }
        }
    }
}

async fn answer(shared: &WorkerShared, execution: Arc<Execution>, pending: PendingTrialControl) {
    let PendingTrialControl { request, reply_to } = pending;
    let (item, action) = (request.item, request.action);
    let result = match execution.controls.send(request.into_control()) {
        Ok(result) => match result.await {
            Ok(result) => result,
            // The command ended before it got the control.
            Err(_) => TrialControlResult::NotInCommand { phase: execution.phase() },
        },
        Err(refusal) => refused(refusal, &execution, action),
    };
    let (exec, worker) = (execution.exec, shared.config.worker.clone());
    let receipt = TrialControlReceipt { item, exec, worker, action, result };
    if let Err(error) = shared.source.answer_trial_control(reply_to, receipt).await {
        tracing::warn!("cannot answer the control of a trial: {error}");
    }
}

fn refused(
    refusal: MailboxRefusal,
    execution: &Execution,
    action: ControlAction,
) -> TrialControlResult {
    match refusal {
        MailboxRefusal::Closed => TrialControlResult::NotInCommand { phase: execution.phase() },
        MailboxRefusal::Unsupported(level) => {
            TrialControlResult::UnsupportedForIntegrationLevel { level }
        }
        MailboxRefusal::Full => {
            let reason = format!("too many controls wait before this {action}");
            TrialControlResult::Refused { reason }
        }
    }
}
