//! Permits of the stages of evals: requested with a claim and returned with another.

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

/// A stage that ended and whose permit must be returned.
pub(super) type EndedStage = (Arc<Execution>, EvalStage);

/// The stage permits of one execution.
#[derive(Debug)]
pub(super) struct ExecutionStagePermits {
    pub(super) shared: Arc<WorkerShared>,
    pub(super) execution: Arc<Execution>,
}

#[async_trait]
impl StagePermits for ExecutionStagePermits {
    async fn acquire(&self, stage: EvalStage) {
        let Self { shared, execution } = self;
        if execution.offer.rate_limits.permits.requires(stage) {
            let waiting = StageProgress { restarts: 0, stage, step: StageStep::Waiting };
            execution.set_stage(waiting);
            // The start must be reported first: the coordinator gives permits only to executions
            // that it knows, so that it can take back the permit of a lost one.
            if execution.mark_announced() {
                let report = execution.new_report(&shared.config.worker, ReportBody::Started);
                shared.outbox.push(OutgoingReport::intermediate(report));
            }
            // A claim that was given up is never granted later: without an answer, this execution
            // holds no permit.
            while request_answer(shared, &stage_claim(shared, execution, waiting)).await
                != ClaimAnswer::Run
            {
                tokio::time::sleep(CLAIM_RETRY_PAUSE).await;
            }
        }
        execution.set_stage(StageProgress { restarts: 0, stage, step: StageStep::Running });
    }

    fn release(&self, stage: EvalStage) {
        let Self { shared, execution } = self;
        execution.set_stage(StageProgress { restarts: 0, stage, step: StageStep::Over });
        if execution.offer.rate_limits.permits.requires(stage) {
            // Fails only when the worker ends. Then it reports all its executions, or they are
            // lost.
            let _ends = shared.ended_stages.send((execution.clone(), stage));
        }
    }
}

/// Returns permits. Never ends.
pub(super) async fn return_permits(
    shared: Arc<WorkerShared>,
    mut ended_stages: mpsc::UnboundedReceiver<EndedStage>,
) -> Infallible {
    let mut returns = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some((execution, stage)) = ended_stages.recv() => returns.push(return_permit(&shared, execution, stage)),
            Some(()) = returns.next(), if !returns.is_empty() => {}
        }
    }
}

/// Sends the return until it is answered, or until the execution is reported, which returns the
/// permit, too.
async fn return_permit(shared: &WorkerShared, execution: Arc<Execution>, stage: EvalStage) {
    let claim = stage_claim(
        shared,
        &execution,
        StageProgress { restarts: 0, stage, step: StageStep::Over },
    );
    tokio::select! {
        _heard = request_answer(shared, &claim) => {}
        () = shared.registry.wait_until_removed(&execution) => {}
    }
}

fn stage_claim(shared: &WorkerShared, execution: &Execution, progress: StageProgress) -> Claim {
    Claim { stage: Some(progress), ..claim_message(shared, execution) }
}
