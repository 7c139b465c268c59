//! The run of one execution.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use rollout_base::supervise::panic_message;
use rollout_environment::EnvironmentLabels;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::offer::OfferedWork;
use tracing::Instrument as _;

use super::event_log::ExecutionEventLog;
use super::execution::Execution;
use super::execution_slot::ExecutionSlotHandle;
use super::slots::SlotPermit;
use super::stage_permits::ExecutionStagePermits;
use super::{WorkerShared, disks, finish};
use crate::executor::{ExecutionContext, Finished, ScratchWork};
use crate::work::eval::EvalContext;
use crate::work::ideas::IdeasContext;
use crate::work::trial::TrialContext;

/// Why an execution has no record.
#[derive(Debug)]
pub(super) enum NoRecordReason {
    /// It was stopped before the runner started it.
    Stopped,
    /// Something outside the runner failed, or the runner panicked.
    Failed(TrialError),
}

/// Runs an execution until its environment is removed.
pub(super) async fn run_execution(
    shared: Arc<WorkerShared>,
    execution: Arc<Execution>,
) -> Result<Finished, NoRecordReason> {
    let work = run_work(&shared, &execution).instrument(execution.span());
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(ended) => ended,
        Err(panic) => {
            Err(NoRecordReason::Failed(panic_error(&execution, &panic_message(panic.as_ref()))))
        }
    }
}

/// Drives an execution that waits to its end, frees its slot and finishes it.
pub(super) async fn drive_to_end(
    shared: Arc<WorkerShared>,
    execution: Arc<Execution>,
    slot: SlotPermit,
    mut running: Pin<Box<impl Future<Output = Result<Finished, NoRecordReason>> + Send>>,
) {
    execution.slot.occupy(slot);
    let ended = disks::unless_hung(&shared, running.as_mut()).await;
    let Some(ended) = ended else { return finish::abandon(&shared, execution, running).await };
    execution.mark_ended();
    execution.trace.leave();
    execution.slot.clear();
    let span = execution.span();
    finish::finish(&shared, execution, ended).instrument(span).await;
}

async fn run_work(
    shared: &Arc<WorkerShared>,
    execution: &Arc<Execution>,
) -> Result<Finished, NoRecordReason> {
    match execution.offer.work {
        OfferedWork::Trial(trial) => run_trial(shared, execution, trial).await,
        OfferedWork::Eval => run_eval(shared, execution).await,
        OfferedWork::Ideas => run_ideas(shared, execution).await,
    }
}

async fn run_trial(
    shared: &Arc<WorkerShared>,
    execution: &Arc<Execution>,
    trial: TrialRef,
) -> Result<Finished, NoRecordReason> {
    let documents = match shared.specs.cached(&trial) {
        Some(documents) => documents,
        None => {
            let fetching = shared.specs.get(&trial, &shared.store_outage);
            unless_stopped(execution, fetching).await?
        }
    };
    if let Some(state) = execution.offer.model_calls {
        shared.model_calls.of(execution.offer.run).learn(state);
    }
    let context = TrialContext {
        execution: execution_context(shared, execution),
        settings: documents.settings,
        agent: documents.agent,
        task: documents.task,
        attempt: trial.attempt,
        rate_limiter: shared.rate_limiters.for_offer(&execution.offer),
    };
    Ok(shared.runner.run(context).await.into_any_kind())
}

async fn run_eval(
    shared: &Arc<WorkerShared>,
    execution: &Arc<Execution>,
) -> Result<Finished, NoRecordReason> {
    let fetching = shared.specs.eval(execution.offer.spec, &shared.store_outage);
    let eval = unless_stopped(execution, fetching).await?;
    let permits = Arc::new(ExecutionStagePermits::new(shared, execution));
    let context = EvalContext { execution: execution_context(shared, execution), eval, permits };
    Ok(shared.runner.eval(context).await.into_any_kind())
}

async fn run_ideas(
    shared: &Arc<WorkerShared>,
    execution: &Arc<Execution>,
) -> Result<Finished, NoRecordReason> {
    let fetching = shared.specs.ideas(execution.offer.spec, &shared.store_outage);
    let ideas = unless_stopped(execution, fetching).await?;
    let permits = Arc::new(ExecutionStagePermits::new(shared, execution));
    let context = IdeasContext { execution: execution_context(shared, execution), ideas, permits };
    Ok(shared.runner.ideas(context).await.into_any_kind())
}

/// Waits for the specs of an execution, until it is stopped.
async fn unless_stopped<T>(
    execution: &Execution,
    fetching: impl Future<Output = Result<T, TrialError>>,
) -> Result<T, NoRecordReason> {
    tokio::select! {
        fetched = fetching => fetched.map_err(NoRecordReason::Failed),
        () = execution.wait_for_stop() => Err(NoRecordReason::Stopped),
    }
}

fn execution_context(shared: &Arc<WorkerShared>, execution: &Arc<Execution>) -> ExecutionContext {
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
        scratch_work: ScratchWork::default(),
        stop: execution.subscribe_stop(),
        phases: execution.clone(),
        slot: Arc::new(ExecutionSlotHandle {
            shared: shared.clone(),
            execution: execution.clone(),
        }),
        max_park: offer.rate_limits.max_park(),
        has_model_leases: offer.rate_limits.model_leases,
        controls: execution.controls.clone(),
        event_log: Arc::new(ExecutionEventLog {
            shared: shared.clone(),
            execution: execution.clone(),
        }),
    }
}

fn panic_error(execution: &Execution, panic: &str) -> TrialError {
    tracing::error!("execution {} panicked: {panic}", execution.exec);
    TrialError::new(
        ErrorType::InternalError,
        ErrorCode::BUG,
        ErrorClass::Infrastructure,
        RetryClass::Permanent,
        format!("a bug in Rollout ended the execution: {panic}"),
    )
    .in_phase(execution.phase())
}
