//! Running one execution.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::offer::OfferedWork;

use super::execution::Execution;
use super::seat::Seated;
use super::slots::Seat;
use super::stage_permits::Holder;
use super::{Shared, finish};
use crate::environment::EnvironmentLabels;
use crate::executor::{ExecutionContext, Finished};
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
        OfferedWork::Trial(trial) => run_trial(shared, execution, trial).await,
        OfferedWork::Eval => run_eval(shared, execution).await,
        OfferedWork::Ideas => run_ideas(shared, execution).await,
    }
}

async fn run_trial(
    shared: &Arc<Shared>,
    execution: &Arc<Execution>,
    trial: TrialRef,
) -> Result<Finished, Unrecorded> {
    let documents = match shared.documents.cached(&trial) {
        Some(documents) => documents,
        None => {
            let fetching = shared.documents.get(&trial, &shared.store_outage);
            unless_stopped(execution, fetching).await?
        }
    };
    let context = TrialContext {
        execution: context(shared, execution),
        settings: documents.settings,
        agent: documents.agent,
        task: documents.task,
        attempt: trial.attempt,
        pacing: shared.paces.of(&execution.offer),
    };
    Ok(shared.runner.run(context).await.of_any_kind())
}

async fn run_eval(
    shared: &Arc<Shared>,
    execution: &Arc<Execution>,
) -> Result<Finished, Unrecorded> {
    let fetching = shared.documents.eval(execution.offer.spec, &shared.store_outage);
    let eval = unless_stopped(execution, fetching).await?;
    let tickets = Arc::new(Holder { shared: shared.clone(), execution: execution.clone() });
    let context = EvalContext { execution: context(shared, execution), eval, tickets };
    Ok(shared.runner.eval(context).await.of_any_kind())
}

async fn run_ideas(
    shared: &Arc<Shared>,
    execution: &Arc<Execution>,
) -> Result<Finished, Unrecorded> {
    let fetching = shared.documents.ideas(execution.offer.spec, &shared.store_outage);
    let ideas = unless_stopped(execution, fetching).await?;
    let tickets = Arc::new(Holder { shared: shared.clone(), execution: execution.clone() });
    let context = IdeasContext { execution: context(shared, execution), ideas, tickets };
    Ok(shared.runner.ideas(context).await.of_any_kind())
}

/// Waits for the documents of an execution, until it is stopped.
async fn unless_stopped<T>(
    execution: &Execution,
    fetching: impl Future<Output = Result<T, TrialError>>,
) -> Result<T, Unrecorded> {
    tokio::select! {
        fetched = fetching => fetched.map_err(Unrecorded::Failed),
        () = execution.stopped() => Err(Unrecorded::Stopped),
    }
}

fn context(shared: &Arc<Shared>, execution: &Arc<Execution>) -> ExecutionContext {
    let offer = &execution.offer;
    ExecutionContext {
        labels: EnvironmentLabels {
            run: offer.run,
            item: offer.item,
            try_id: offer.try_id,
            exec: execution.exec,
            worker: shared.config.worker.clone(),
            owner: shared.config.owner.clone(),
        },
        spec: offer.spec,
        scratch: shared.spool.scratch(execution.exec),
        stop: execution.stops(),
        phases: execution.clone(),
        slot: Arc::new(Seated { shared: shared.clone(), execution: execution.clone() }),
        max_park: offer.pacing.max_park(),
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
