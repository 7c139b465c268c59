//! Running one execution.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::offer::Work;

use super::execution::Execution;
use super::seat::Seated;
use super::slots::Seat;
use super::stage_permits::Holder;
use super::{Shared, finish};
use crate::environment::Labels;
use crate::executor::Finished;
use crate::supervise::panic_message;
use crate::work::eval::EvalContext;
use crate::work::ideas::IdeasContext;
use crate::work::trial::TrialContext;

/// Why an execution has no record.
#[derive(Debug)]
pub(super) enum Unrecorded {
    /// It was stopped before the runner had it.
    Stopped,
    /// Something failed around the runner, or the runner has a defect.
    Failed(TrialError),
}

/// Runs an execution until its environment is gone.
pub(super) async fn execute(
    shared: Arc<Shared>,
    execution: Arc<Execution>,
) -> Result<Finished, Unrecorded> {
    match AssertUnwindSafe(run(&shared, &execution)).catch_unwind().await {
        Ok(ended) => ended,
        Err(panic) => Err(Unrecorded::Failed(defect(&execution, &panic_message(panic.as_ref())))),
    }
}

/// Goes on with an execution that waits, gives its seat back and finishes it.
pub(super) async fn drive(
    shared: Arc<Shared>,
    execution: Arc<Execution>,
    seat: Seat,
    running: Pin<Box<impl Future<Output = Result<Finished, Unrecorded>> + Send>>,
) {
    execution.place.sit(seat);
    let ended = running.await;
    execution.ends();
    execution.place.clear();
    finish::finish(&shared, execution, ended).await;
}

async fn run(shared: &Arc<Shared>, execution: &Arc<Execution>) -> Result<Finished, Unrecorded> {
    match execution.offer.work {
        Work::Trial(trial) => run_trial(shared, execution, trial).await,
        Work::Eval => run_eval(shared, execution).await,
        Work::Ideas => run_ideas(shared, execution).await,
    }
}

async fn run_trial(
    shared: &Arc<Shared>,
    execution: &Arc<Execution>,
    trial: TrialRef,
) -> Result<Finished, Unrecorded> {
    let documents = match shared.documents.cached(&trial) {
        Some(documents) => documents,
        None => tokio::select! {
            fetched = shared.documents.get(&trial, &shared.store_outage) => match fetched {
                Ok(documents) => documents,
                Err(error) => return Err(Unrecorded::Failed(error)),
            },
            () = execution.stopped() => return Err(Unrecorded::Stopped),
        },
    };
    let context = TrialContext {
        labels: labels(shared, execution),
        spec: execution.offer.spec,
        settings: documents.settings,
        agent: documents.agent,
        task: documents.task,
        attempt: trial.attempt,
        scratch: shared.spool.scratch(execution.exec),
        stop: execution.stops(),
        phases: execution.clone(),
        pacing: shared.paces.of(&execution.offer),
        slot: Arc::new(Seated { shared: shared.clone(), execution: execution.clone() }),
        max_park: execution.offer.pacing.max_park(),
    };
    Ok(shared.runner.run(context).await.of_any_kind())
}

async fn run_eval(
    shared: &Arc<Shared>,
    execution: &Arc<Execution>,
) -> Result<Finished, Unrecorded> {
    let spec = execution.offer.spec;
    let eval = tokio::select! {
        fetched = shared.documents.eval(spec, &shared.store_outage) => match fetched {
            Ok(eval) => eval,
            Err(error) => return Err(Unrecorded::Failed(error)),
        },
        () = execution.stopped() => return Err(Unrecorded::Stopped),
    };
    let context = EvalContext {
        labels: labels(shared, execution),
        spec,
        eval,
        scratch: shared.spool.scratch(execution.exec),
        stop: execution.stops(),
        phases: execution.clone(),
        tickets: Arc::new(Holder { shared: shared.clone(), execution: execution.clone() }),
        slot: Arc::new(Seated { shared: shared.clone(), execution: execution.clone() }),
        max_park: execution.offer.pacing.max_park(),
    };
    Ok(shared.runner.eval(context).await.of_any_kind())
}

async fn run_ideas(
    shared: &Arc<Shared>,
    execution: &Arc<Execution>,
) -> Result<Finished, Unrecorded> {
    let spec = execution.offer.spec;
    let ideas = tokio::select! {
        fetched = shared.documents.ideas(spec, &shared.store_outage) => match fetched {
            Ok(ideas) => ideas,
            Err(error) => return Err(Unrecorded::Failed(error)),
        },
        () = execution.stopped() => return Err(Unrecorded::Stopped),
    };
    let context = IdeasContext {
        labels: labels(shared, execution),
        spec,
        ideas,
        scratch: shared.spool.scratch(execution.exec),
        stop: execution.stops(),
        phases: execution.clone(),
        tickets: Arc::new(Holder { shared: shared.clone(), execution: execution.clone() }),
        slot: Arc::new(Seated { shared: shared.clone(), execution: execution.clone() }),
        max_park: execution.offer.pacing.max_park(),
    };
    Ok(shared.runner.ideas(context).await.of_any_kind())
}

fn labels(shared: &Shared, execution: &Execution) -> Labels {
    let offer = &execution.offer;
    Labels {
        run: offer.run,
        item: offer.item,
        try_id: offer.try_id,
        exec: execution.exec,
        worker: shared.config.worker.clone(),
        owner: shared.config.owner.clone(),
    }
}

fn defect(execution: &Execution, panic: &str) -> TrialError {
    tracing::error!("execution {} panicked: {panic}", execution.exec);
    TrialError::new(
        ErrorType::InternalError,
        ErrorCode::BUG,
        ErrorClass::Infrastructure,
        RetryClass::Permanent,
        format!("a defect of Rollout ended the execution: {panic}"),
    )
    .in_phase(execution.phase())
}
