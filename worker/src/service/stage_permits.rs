//! Permits of the stages of evals: requested with a claim and returned with another.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
pub(super) type EndedStage = (Arc<Execution>, StageProgress);

/// The stage permits of one execution.
#[derive(Debug)]
pub(super) struct ExecutionStagePermits {
    shared: Arc<WorkerShared>,
    execution: Arc<Execution>,
    /// How many times the execution started over.
    restarts: AtomicU32,
}

impl ExecutionStagePermits {
    pub(super) fn new(shared: &Arc<WorkerShared>, execution: &Arc<Execution>) -> Self {
        let (shared, execution) = (Arc::clone(shared), Arc::clone(execution));
        Self { shared, execution, restarts: AtomicU32::new(0) }
    }

    fn progress(&self, stage: EvalStage, step: StageStep) -> StageProgress {
        StageProgress { restarts: self.restarts.load(Ordering::Relaxed), stage, step }
    }

    /// Returns the permits of this stage and of all before it.
    fn send_ended(&self, ended: StageProgress) {
        // Fails only when the worker ends. Then it reports all its executions, or they are lost.
        let _ends = self.shared.ended_stages.send((Arc::clone(&self.execution), ended));
    }
}

#[async_trait]
impl StagePermits for ExecutionStagePermits {
    async fn acquire(&self, stage: EvalStage) {
        let Self { shared, execution, .. } = self;
        if execution.offer.rate_limits.permits.requires(stage) {
            let waiting = self.progress(stage, StageStep::Waiting);
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
        let running = self.progress(stage, StageStep::Running);
        execution.set_stage(running);
        let permits = execution.offer.rate_limits.permits;
        if running.restarts > 0 && !permits.requires(stage) && !permits.is_none() {
            // No request takes the place of a permit that the former start held.
            self.send_ended(running);
        }
    }

    fn release(&self, stage: EvalStage) {
        let over = self.progress(stage, StageStep::Over);
        self.execution.set_stage(over);
        if self.execution.offer.rate_limits.permits.requires(stage) {
            self.send_ended(over);
        }
    }

    /// The next stage shows the later start: with its request, or with a return if it needs no permit.
    /// The coordinator takes the former permit back then.
    fn start_over(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
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
            Some((execution, ended)) = ended_stages.recv() => {
                returns.push(return_permit(&shared, execution, ended));
            }
            Some(()) = returns.next(), if !returns.is_empty() => {}
        }
    }
}

/// Sends the return until it is answered, or until the execution is reported, which returns the
/// permit, too.
async fn return_permit(shared: &WorkerShared, execution: Arc<Execution>, ended: StageProgress) {
    let claim = stage_claim(shared, &execution, ended);
    tokio::select! {
        _heard = request_answer(shared, &claim) => {}
        () = shared.registry.wait_until_removed(&execution) => {}
    }
}

fn stage_claim(shared: &WorkerShared, execution: &Execution, progress: StageProgress) -> Claim {
    Claim { stage: Some(progress), ..claim_message(shared, execution) }
}
