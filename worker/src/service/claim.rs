//! Suspicious deliveries: asking before running.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::limits;
use rollout_protocol::wire::claim::{ClaimAnswer, Claim};
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::report::ReportBody;
use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::execute::{Unrecorded, drive, execute};
use super::execution::Execution;
use super::finish::finish;
use super::report::Outgoing;
use super::slots::Seat;

/// How long an unanswered claim waits before it is said again.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// What to do with a suspicious delivery.
#[derive(Debug)]
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
    Seat(Seat),
    /// Room for one that waits without a seat.
    Room(OwnedSemaphorePermit),
}

/// Claims a suspicious delivery and does what the answer says.
pub(super) async fn claim(shared: Arc<Shared>, execution: Arc<Execution>, seat: Seat) {
    let mut place = Place::Seat(seat);
    let decision = tokio::select! {
        decision = decide(&shared, &execution, &mut place) => decision,
        () = execution.stopped() => Decision::Forget,
        () = shared.pulls_ended() => Decision::Refuse,
    };
    tracing::debug!("{} of try {} may {decision:?}", execution.exec, execution.offer.try_id);
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
    let seat = match place {
        Place::Seat(seat) => seat,
        Place::Room(room) => {
            let seat = tokio::select! {
                biased;
                () = execution.stopped() => return not_run(&shared, execution).await,
                () = shared.pulls_ended() => return not_run(&shared, execution).await,
                seat = shared.rooms.seat(execution.offer.class) => seat,
            };
            drop(room);
            seat
        }
    };
    if execution.announce() {
        let report = execution.report(&shared.config.worker, ReportBody::Started);
        shared.outbox.push(Outgoing::first(report));
    }
    execution.begins();
    let running = Box::pin(execute(shared.clone(), execution.clone()));
    drive(shared, execution, seat, running).await;
}

/// It was told to run and will not: its coordinator has to know, because it expects a report.
async fn not_run(shared: &Shared, execution: Arc<Execution>) {
    finish(shared, execution, Err(Unrecorded::Stopped)).await;
}

/// Asks for as long as one lease, with a seat for the first seconds of it.
async fn decide(shared: &Shared, execution: &Execution, place: &mut Place) -> Decision {
    let claim = words(shared, execution);
    let mut answer = std::pin::pin!(ask(shared, &claim));
    if let Ok(answer) = tokio::time::timeout(limits::CLAIM_SLOT_TIMEOUT, &mut answer).await {
        return answer.into();
    }
    let rest = shared.config.lease.saturating_sub(limits::CLAIM_SLOT_TIMEOUT);
    let mut silence = std::pin::pin!(shared.line.lasts(rest));
    // So many wait without a seat; more stay where they are, and no more work is taken for them.
    tokio::select! {
        answer = &mut answer => return answer.into(),
        () = &mut silence => return without_answer(shared, &claim).await,
        room = shared.off_slot.clone().acquire_owned() => {
            *place = Place::Room(room.expect("room is never closed"));
        }
    }
    tokio::select! {
        answer = answer => answer.into(),
        () = silence => without_answer(shared, &claim).await,
    }
}

pub(super) fn words(shared: &Shared, execution: &Execution) -> Claim {
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

/// Asks until there is an answer, at once on every new connection.
pub(super) async fn ask(shared: &Shared, claim: &Claim) -> ClaimAnswer {
    loop {
        let connection = shared.line.ready().await;
        let asked = async {
            let answer = shared.source.claim(claim.clone()).await;
            if answer.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
            answer
        };
        tokio::select! {
            answer = asked => match answer {
                Ok(answer) => return answer,
                Err(error) => tracing::debug!("claim of {}: {error}", claim.exec),
            },
            () = shared.line.changed_from(connection) => {}
        }
    }
}

/// Nobody decides, so the worker does: what others have, or has a record, is not run again.
async fn without_answer(shared: &Shared, claim: &Claim) -> Decision {
    match shared.source.shown(claim).await {
        Ok(false) => {}
        Ok(true) => return Decision::Forget,
        Err(error) => {
            shared.queue_outage.failed(&error);
            return Decision::Forget;
        }
    }
    let prefix = ResultMarker::prefix_of_try(claim.run, claim.item, claim.try_id);
    match shared.store.list_documents(&prefix).await {
        Ok(markers) if markers.is_empty() => Decision::Run,
        Ok(_) => Decision::Forget,
        Err(error) => {
            shared.store_outage.failed(&error);
            Decision::Forget
        }
    }
}

impl From<ClaimAnswer> for Decision {
    fn from(answer: ClaimAnswer) -> Self {
        match answer {
            ClaimAnswer::Run => Self::Run,
            ClaimAnswer::Hold => Self::Forget,
            ClaimAnswer::Drop => Self::Drop,
        }
    }
}
