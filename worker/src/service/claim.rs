//! Suspicious deliveries: asking before running.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::limits;
use rollout_protocol::wire::claim::{Answer, Claim};
use rollout_protocol::wire::marker::Marker;
use rollout_protocol::wire::report::Body;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::Shared;
use super::execute::{drive, execute};
use super::execution::Execution;
use super::report::Outgoing;

/// How long an unanswered claim waits before it is said again.
const PAUSE: Duration = Duration::from_millis(500);

/// What to do with a suspicious delivery.
enum Decision {
    Run,
    /// Neither acknowledge nor refuse nor extend it.
    Forget,
    /// Acknowledge it away.
    Drop,
    /// Let another worker have it.
    Refuse,
}

/// What a claim occupies while it waits.
enum Place {
    Slot(OwnedSemaphorePermit),
    /// Room for one that waits without a slot.
    Room(OwnedSemaphorePermit),
}

/// Claims a suspicious delivery and does what the answer says.
pub(super) async fn claim(
    shared: Arc<Shared>,
    execution: Arc<Execution>,
    slot: OwnedSemaphorePermit,
) {
    let mut place = Place::Slot(slot);
    let mut closing = shared.closing.subscribe();
    let decision = tokio::select! {
        decision = decide(&shared, &execution, &mut place) => decision,
        () = execution.stopped() => Decision::Forget,
        _ = closing.wait_for(|closing| *closing) => Decision::Refuse,
    };
    let token = [execution.token()];
    let said = match decision {
        Decision::Run => return run(shared, execution, place).await,
        Decision::Forget => Ok(()),
        Decision::Drop => shared.source.ack(&token).await,
        Decision::Refuse => shared.source.nak(&token).await,
    };
    if let Err(error) = said {
        shared.queue_outage.failed(&error);
    }
    shared.registry.remove([&execution].into_iter());
}

async fn run(shared: Arc<Shared>, execution: Arc<Execution>, place: Place) {
    let slot = match place {
        Place::Slot(slot) => slot,
        Place::Room(room) => {
            let slot = shared.slots.clone().acquire_owned().await;
            drop(room);
            slot.expect("slots are never closed")
        }
    };
    if execution.announce() {
        let report = execution.report(&shared.config.worker, Body::Started);
        shared.outbox.push(Outgoing::first(report));
    }
    execution.begins();
    let running = Box::pin(execute(shared.clone(), execution.clone()));
    drive(shared, execution, slot, running).await;
}

/// Asks for as long as one lease, with a slot for the first seconds of it.
async fn decide(shared: &Shared, execution: &Execution, place: &mut Place) -> Decision {
    let asked = Instant::now();
    let mut answer = std::pin::pin!(ask(shared, execution));
    if let Ok(answer) = tokio::time::timeout_at(asked + limits::CLAIM_IN_SLOT, &mut answer).await {
        return answer.into();
    }
    // So many wait without a slot; more would be held for nothing.
    let Ok(room) = shared.off_slot.clone().try_acquire_owned() else { return Decision::Forget };
    *place = Place::Room(room);
    match tokio::time::timeout_at(asked + shared.config.lease, answer).await {
        Ok(answer) => answer.into(),
        Err(_) => without_answer(shared, execution).await,
    }
}

async fn ask(shared: &Shared, execution: &Execution) -> Answer {
    let offer = &execution.offer;
    let claim = Claim {
        run: offer.run,
        item: offer.item,
        try_id: offer.try_id,
        exec: execution.exec,
        spec: offer.spec,
        worker: shared.config.worker.clone(),
    };
    loop {
        match shared.source.claim(claim.clone()).await {
            Ok(answer) => return answer,
            Err(error) => tracing::debug!("claim of {}: {error}", execution.exec),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Nobody decides, so the worker does: what has a record is not run again.
async fn without_answer(shared: &Shared, execution: &Execution) -> Decision {
    let offer = &execution.offer;
    let prefix = Marker::prefix_of_try(offer.run, offer.item, offer.try_id);
    match shared.store.list_documents(&prefix).await {
        Ok(markers) if markers.is_empty() => Decision::Run,
        Ok(_) => Decision::Forget,
        Err(error) => {
            shared.store_outage.failed(&error);
            Decision::Forget
        }
    }
}

impl From<Answer> for Decision {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Run => Self::Run,
            Answer::Hold => Self::Forget,
            Answer::Drop => Self::Drop,
        }
    }
}
