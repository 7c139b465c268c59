//! Tickets of the stages of evals: asked for with a claim, and given back with another.

use std::convert::Infallible;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::report::ReportBody;
use rollout_protocol::wire::stage::{StageProgress, StageStep};
use tokio::sync::mpsc;

use super::WorkerShared;
use super::claim::{CLAIM_RETRY_PAUSE, claim_message, request_answer};
use super::execution::Execution;
use super::report::OutgoingReport;
use crate::work::eval::StagePermits;

/// Stages that ended and whose tickets are to be given back.
pub(super) type EndedStage = (Arc<Execution>, EvalStage);

/// The tickets of one execution.
#[derive(Debug)]
pub(super) struct ExecutionStagePermits {
    pub(super) shared: Arc<WorkerShared>,
    pub(super) execution: Arc<Execution>,
}

#[async_trait]
impl StagePermits for ExecutionStagePermits {
    async fn acquire(&self, stage: EvalStage) {
        let Self { shared, execution } = self;
        if execution.offer.pacing.tickets.requires(stage) {
            let waiting = StageProgress { stage, step: StageStep::Waiting };
            execution.set_stage(waiting);
            // Only who is known to run gets a ticket: that of one that is lost comes back.
            if execution.mark_announced() {
                let report = execution.new_report(&shared.config.worker, ReportBody::Started);
                shared.outbox.push(OutgoingReport::intermediate(report));
            }
            // A question that is given up is never answered after that: whoever asks has none.
            while request_answer(shared, &stage_claim(shared, execution, waiting)).await
                != ClaimAnswer::Run
            {
                tokio::time::sleep(CLAIM_RETRY_PAUSE).await;
            }
        }
        execution.set_stage(StageProgress { stage, step: StageStep::Running });
    }

    fn release(&self, stage: EvalStage) {
        let Self { shared, execution } = self;
        execution.set_stage(StageProgress { stage, step: StageStep::Over });
        if execution.offer.pacing.tickets.requires(stage) {
            // A worker that ends reports all its executions, or nobody hears of them any more.
            let _ends = shared.over.send((execution.clone(), stage));
        }
    }
}

/// Gives tickets back, for ever.
pub(super) async fn return_permits(
    shared: Arc<WorkerShared>,
    mut over: mpsc::UnboundedReceiver<EndedStage>,
) -> Infallible {
    let mut telling = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some((execution, stage)) = over.recv() => telling.push(return_permit(&shared, execution, stage)),
            Some(()) = telling.next(), if !telling.is_empty() => {}
        }
    }
}

/// Tells until it is heard. Nobody has to hear it when the execution is reported.
async fn return_permit(shared: &WorkerShared, execution: Arc<Execution>, stage: EvalStage) {
    let over = stage_claim(shared, &execution, StageProgress { stage, step: StageStep::Over });
    tokio::select! {
        _heard = request_answer(shared, &over) => {}
        () = shared.registry.wait_until_removed(&execution) => {}
    }
}

fn stage_claim(shared: &WorkerShared, execution: &Execution, mark: StageProgress) -> Claim {
    Claim { stage: Some(mark), ..claim_message(shared, execution) }
}
