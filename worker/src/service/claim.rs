//! Claims of suspicious deliveries: the worker asks the coordinator before it runs them.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::limits;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::report::ReportBody;
use tokio::sync::OwnedSemaphorePermit;

use super::WorkerShared;
use super::execute::{NoRecordReason, drive_to_end, run_execution};
use super::execution::Execution;
use super::finish::finish;
use super::report::OutgoingReport;
use super::slots::SlotPermit;

/// Pause before an unanswered claim is sent again.
pub(super) const CLAIM_RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The decision about a suspicious delivery.
#[derive(Debug)]
enum ClaimDecision {
    Run,
    /// Neither acknowledge, return nor extend it.
    Forget,
    /// Acknowledge it, which removes it from the queue.
    Drop,
    /// Return it to the queue for another worker.
    Return,
}

/// The permit that a claim holds while it waits.
enum ClaimPermit {
    Slot(SlotPermit),
    /// A permit to wait without a slot.
    Waiting(OwnedSemaphorePermit),
}

/// Claims a suspicious delivery and acts on the answer.
pub(super) async fn resolve_claim(
    shared: Arc<WorkerShared>,
    execution: Arc<Execution>,
    slot: SlotPermit,
) {
    let mut permit = ClaimPermit::Slot(slot);
    let decision = tokio::select! {
        // A coordinator that granted the claim and then stopped the execution expects a report: its
        // answer comes before the stop.
        biased;
        decision = decide_claim(&shared, &execution, &mut permit) => decision,
        () = execution.wait_for_stop() => ClaimDecision::Forget,
        () = shared.wait_for_pulls_end() => ClaimDecision::Return,
    };
    tracing::debug!(
        "claim of execution {} of try {}: {decision:?}",
        execution.exec,
        execution.offer.try_id
    );
    let token = [execution.token()];
    let sent = match decision {
        ClaimDecision::Run => return run_claimed(shared, execution, permit).await,
        ClaimDecision::Forget => Ok(()),
        ClaimDecision::Drop => shared.source.ack(&token).await,
        ClaimDecision::Return => shared.source.nak(&token).await,
    };
    if let Err(error) = sent {
        shared.queue_outage.mark_failed(&error);
    }
    shared.registry.remove([&execution].into_iter());
}

async fn run_claimed(shared: Arc<WorkerShared>, execution: Arc<Execution>, permit: ClaimPermit) {
    let slot = match permit {
        ClaimPermit::Slot(slot) => slot,
        ClaimPermit::Waiting(waiting_permit) => {
            let slot = tokio::select! {
                biased;
                () = execution.wait_for_stop() => return finish_stopped(&shared, execution).await,
                () = shared.wait_for_pulls_end() => return finish_stopped(&shared, execution).await,
                slot = shared.slots.acquire(execution.offer.class) => slot,
            };
            drop(waiting_permit);
            slot
        }
    };
    if execution.mark_announced() {
        let report = execution.new_report(&shared.config.worker, ReportBody::Started);
        shared.outbox.push(OutgoingReport::intermediate(report));
    }
    execution.mark_running();
    let running = Box::pin(run_execution(shared.clone(), execution.clone()));
    drive_to_end(shared, execution, slot, running).await;
}

/// Finishes a claimed execution that does not run after all. Its coordinator expects a report.
async fn finish_stopped(shared: &WorkerShared, execution: Arc<Execution>) {
    finish(shared, execution, Err(NoRecordReason::Stopped)).await;
}

/// Waits up to one lease for an answer, and holds a slot only for the first seconds of it.
async fn decide_claim(
    shared: &WorkerShared,
    execution: &Execution,
    permit: &mut ClaimPermit,
) -> ClaimDecision {
    let claim = claim_message(shared, execution);
    let mut answer = std::pin::pin!(request_answer(shared, &claim));
    if let Ok(answer) = tokio::time::timeout(limits::CLAIM_SLOT_TIMEOUT, &mut answer).await {
        return answer.into();
    }
    let rest = shared.config.lease.saturating_sub(limits::CLAIM_SLOT_TIMEOUT);
    let mut timeout = std::pin::pin!(shared.connection.wait_until_stable(rest));
    // The number of claims that wait without a slot is limited. Others keep their slot, so that no
    // more work is pulled for it.
    tokio::select! {
        answer = &mut answer => return answer.into(),
        () = &mut timeout => return decide_without_answer(shared, &claim).await,
        room = shared.claim_permits.clone().acquire_owned() => {
            *permit = ClaimPermit::Waiting(room.expect("the semaphore is never closed"));
        }
    }
    tokio::select! {
        answer = answer => answer.into(),
        () = timeout => decide_without_answer(shared, &claim).await,
    }
}

pub(super) fn claim_message(shared: &WorkerShared, execution: &Execution) -> Claim {
    let offer = &execution.offer;
    Claim {
        run: offer.run,
        item: offer.item,
        try_id: offer.try_id,
        exec: execution.exec,
        spec: offer.spec,
        worker: shared.config.worker.clone(),
        stage: None,
    }
}

/// Sends the claim until it is answered, and at once on every new connection.
pub(super) async fn request_answer(shared: &WorkerShared, claim: &Claim) -> ClaimAnswer {
    loop {
        let connection = shared.connection.wait_until_ready().await;
        let request = async {
            let answer = shared.source.claim(claim.clone()).await;
            if answer.is_err() {
                tokio::time::sleep(CLAIM_RETRY_PAUSE).await;
            }
            answer
        };
        tokio::select! {
            answer = request => match answer {
                Ok(answer) => return answer,
                Err(error) => tracing::debug!("claim of {}: {error}", claim.exec),
            },
            () = shared.connection.wait_for_change(connection) => {}
        }
    }
}

/// Decides without a coordinator: a try that another worker has, or that has a result marker, is
/// not run again.
async fn decide_without_answer(shared: &WorkerShared, claim: &Claim) -> ClaimDecision {
    match shared.source.is_contested(claim).await {
        Ok(false) => {}
        Ok(true) => return ClaimDecision::Forget,
        Err(error) => {
            shared.queue_outage.mark_failed(&error);
            return ClaimDecision::Forget;
        }
    }
    let prefix = ResultMarker::prefix_of_try(claim.run, claim.item, claim.try_id);
    match shared.store.list_documents(&prefix).await {
        Ok(markers) if markers.is_empty() => ClaimDecision::Run,
        Ok(_) => ClaimDecision::Forget,
        Err(error) => {
            shared.store_outage.mark_failed(&error);
            ClaimDecision::Forget
        }
    }
}

impl From<ClaimAnswer> for ClaimDecision {
    fn from(answer: ClaimAnswer) -> Self {
        match answer {
            ClaimAnswer::Run => Self::Run,
            ClaimAnswer::Hold => Self::Forget,
            ClaimAnswer::Drop => Self::Drop,
        }
    }
}
