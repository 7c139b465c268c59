//! Tickets of the stages of evals: asked for with a claim, and given back with another.

use std::convert::Infallible;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::wire::claim::{ClaimAnswer, Claim};
use rollout_protocol::wire::report::ReportBody;
use rollout_protocol::wire::stage::{StageProgress, StageStep};
use tokio::sync::mpsc;

use super::Shared;
use super::claim::{PAUSE, ask, words};
use super::execution::Execution;
use super::report::Outgoing;
use crate::work::eval::Tickets;

/// Stages that ended and whose tickets are to be given back.
pub(super) type Over = (Arc<Execution>, EvalStage);

/// The tickets of one execution.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) shared: Arc<Shared>,
    pub(super) execution: Arc<Execution>,
}

#[async_trait]
impl Tickets for Holder {
    async fn begin(&self, stage: EvalStage) {
        let Self { shared, execution } = self;
        if execution.offer.pacing.tickets.requires(stage) {
            let waiting = StageProgress { stage, step: StageStep::Waiting };
            execution.reached(waiting);
            // Only who is known to run gets a ticket: that of one that is lost comes back.
            if execution.announce() {
                let report = execution.report(&shared.config.worker, ReportBody::Started);
                shared.outbox.push(Outgoing::first(report));
            }
            // A question that is given up is never answered after that: whoever asks has none.
            while ask(shared, &question(shared, execution, waiting)).await != ClaimAnswer::Run {
                tokio::time::sleep(PAUSE).await;
            }
        }
        execution.reached(StageProgress { stage, step: StageStep::Running });
    }

    fn end(&self, stage: EvalStage) {
        let Self { shared, execution } = self;
        execution.reached(StageProgress { stage, step: StageStep::Over });
        if execution.offer.pacing.tickets.requires(stage) {
            // A worker that ends reports all its executions, or nobody hears of them any more.
            let _ends = shared.over.send((execution.clone(), stage));
        }
    }
}

/// Gives tickets back, for ever.
pub(super) async fn give_back(
    shared: Arc<Shared>,
    mut over: mpsc::UnboundedReceiver<Over>,
) -> Infallible {
    let mut telling = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some((execution, stage)) = over.recv() => telling.push(tell(&shared, execution, stage)),
            Some(()) = telling.next(), if !telling.is_empty() => {}
        }
    }
}

/// Tells until it is heard. Nobody has to hear it when the execution is reported.
async fn tell(shared: &Shared, execution: Arc<Execution>, stage: EvalStage) {
    let over = question(shared, &execution, StageProgress { stage, step: StageStep::Over });
    tokio::select! {
        _heard = ask(shared, &over) => {}
        () = shared.registry.removed(&execution) => {}
    }
}

fn question(shared: &Shared, execution: &Execution, mark: StageProgress) -> Claim {
    Claim { stage: Some(mark), ..words(shared, execution) }
}
