//! Output of executions that run here, for users who follow it.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::wire::output::{OutputAnswer, OutputCursor, OutputRequest, TrialAnswer};
use tokio::time::Instant;

use super::WorkerShared;
use super::execution::Execution;
use crate::executor::read_output;

/// Shortest time between two answers about one execution, for all followers together.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);

/// Answers a request for output. Followers of one execution wait for one another.
pub(super) async fn answer(
    shared: &WorkerShared,
    execution: Arc<Execution>,
    request: OutputRequest,
) -> Option<TrialAnswer> {
    let mut next = execution.next_output_answer.lock().await;
    tokio::time::sleep_until(next.unwrap_or_else(Instant::now)).await;
    let (exec, scratch) = (execution.exec, shared.spool.scratch(execution.exec));
    let after = match request.exec {
        Some(known) if known == exec => request.output_after,
        _ => OutputCursor::default(),
    };
    let max_bytes = request.max_bytes;
    let read = supervise::blocking(move || read_output(&scratch, &after, max_bytes)).await;
    *next = Some(Instant::now() + ANSWER_INTERVAL);
    drop(next);
    match read {
        Ok(piece) => {
            let (item, worker) = (request.item, shared.config.worker.clone());
            Some(TrialAnswer::Output(OutputAnswer { item, exec, worker, piece }))
        }
        Err(error) => {
            tracing::warn!("execution {exec}: cannot read its output: {error}");
            None
        }
    }
}
