//! Requests of users about trials that run here: controls for harnesses, and output.

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::harness::ControlAction;
use rollout_protocol::wire::output::{TrialAnswer, TrialRequest};
use rollout_protocol::wire::trial_control::{
    TrialControlReceipt, TrialControlRequest, TrialControlResult,
};
use rollout_queue::traits::PendingTrialRequest;

use super::WorkerShared;
use super::execution::Execution;
use super::trial_output;
use crate::executor::MailboxRefusal;

/// Requests that wait for their result at a time: people send them one by one.
const MAX_WAITING: usize = 256;

/// Answers requests about executions that run here. Other workers answer the others.
/// Never ends.
pub(super) async fn handle_trial_requests(shared: Arc<WorkerShared>) -> Infallible {
    let mut waiting = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(()) = waiting.next(), if !waiting.is_empty() => {}
            pending = shared.source.next_trial_request(), if waiting.len() < MAX_WAITING => {
                let (run, item) = pending.request.target();
                if let Some(execution) = shared.registry.find_running(run, item) {
                    waiting.push(answer(&shared, execution, pending));
                }
            }
        }
    }
}

async fn answer(shared: &WorkerShared, execution: Arc<Execution>, pending: PendingTrialRequest) {
    let PendingTrialRequest { request, reply_to } = pending;
    let answer = match request {
        TrialRequest::Control(request) => Some(control(shared, &execution, request).await),
        TrialRequest::Output(request) => trial_output::answer(shared, execution, request).await,
    };
    let Some(answer) = answer else { return };
    if let Err(error) = shared.source.answer_trial_request(reply_to, answer).await {
        tracing::warn!("cannot answer a request about a trial: {error}");
    }
}

async fn control(
    shared: &WorkerShared,
    execution: &Execution,
    request: TrialControlRequest,
) -> TrialAnswer {
    let (item, action) = (request.item, request.action);
    let result = match execution.controls.send(request.into_control()) {
        Ok(result) => match result.await {
            Ok(result) => result,
            // The command ended before it got the control.
            Err(_) => TrialControlResult::NotInCommand { phase: execution.phase() },
        },
        Err(refusal) => refused(refusal, execution, action),
    };
    let (exec, worker) = (execution.exec, shared.config.worker.clone());
    TrialAnswer::Control(TrialControlReceipt { item, exec, worker, action, result })
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
