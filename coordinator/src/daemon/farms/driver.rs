//! A session of a farm: from its document to its end.

use std::sync::Arc;

use rollout_base::shared_limit::SharedPlace;
use rollout_base::traces::Tracer;
use rollout_engine::LockWaitPolicy;
use rollout_protocol::Timestamp;
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

use super::hosted_farm::{FarmStage, HostedFarm};
use super::record::HostedFarmEnd;
use crate::daemon::Daemon;
use crate::daemon::driver::prepare;
#[cfg(feature = "nats")]
use crate::daemon::driver::remote;
use crate::daemon::failure::{RunFailure, RunFault, SessionFailure};
use crate::daemon::id::HostedFarmId;
use crate::launch::LaunchError;
use crate::launch::farm::{FarmRequest, FarmSession};
use crate::plan::PreparedJob;

/// The end of a session.
enum FarmSessionEnd {
    /// The farm was closed, and nothing is left.
    Ended(HostedFarmEnd),
    /// The daemon stops, or the farm is being removed.
    Stopped,
    /// It failed, and can be tried again.
    Failed(SessionFailure),
}

/// Runs a session to its end and writes the record.
pub(super) async fn drive(daemon: &Daemon, farm: &HostedFarm) {
    let end = run_session(daemon, farm).await;
    match &end {
        FarmSessionEnd::Stopped => return,
        FarmSessionEnd::Ended(_) => tracing::info!("farm {} has ended", farm.id()),
        FarmSessionEnd::Failed(SessionFailure { failure, .. }) => {
            tracing::error!("farm {}: {}", farm.id(), failure.message);
        }
    }
    let end = with_disk_fault(daemon, farm, end).await;
    let written = farm.note(&daemon.dir, |record| match end {
        FarmSessionEnd::Stopped => {}
        FarmSessionEnd::Ended(end) => record.end = Some(end),
        FarmSessionEnd::Failed(failed) => record.failure = Some(failed.failure),
    });
    if let Err(error) = written.await {
        // The journal has everything: the next session finds the same.
        tracing::error!("cannot note the end of a session of farm {}: {error}", farm.id());
        daemon.writes.record_failed(&error);
    }
}

/// The end of a session, with the disk as its cause if that fails, and beside it if that has failed a short
/// time before.
async fn with_disk_fault(
    daemon: &Daemon,
    farm: &HostedFarm,
    end: FarmSessionEnd,
) -> FarmSessionEnd {
    match end {
        FarmSessionEnd::Failed(failed) => {
            let Some(fault) = daemon.disk_fault::<HostedFarmId>().await else {
                return FarmSessionEnd::Failed(failed);
            };
            // Without a status it was not opened.
            let results = farm.view().status.map(|status| status.last_cursor);
            FarmSessionEnd::Failed(farm.disk_retries().failure(&fault, failed, results).into())
        }
        end => end,
    }
}

async fn run_session(daemon: &Daemon, farm: &HostedFarm) -> FarmSessionEnd {
    let mut stopping = daemon.farms.stopping.subscribe();
    let session = match open(daemon, farm, &mut stopping).await {
        Ok(Some(session)) => Arc::new(session),
        Ok(None) => return FarmSessionEnd::Stopped,
        Err(failed) => return FarmSessionEnd::Failed(failed),
    };
    farm.set_stage(FarmStage::Open(Arc::clone(&session)));
    tracing::info!("farm {} is open", farm.id());
    let mut ending = Box::pin(session.wait());
    loop {
        tokio::select! {
            outcome = &mut ending => {
                return match outcome {
                    Ok(outcome) if outcome.cancelled => FarmSessionEnd::Stopped,
                    Ok(_) => {
                        let (at, status) = (Timestamp::now(), session.status());
                        FarmSessionEnd::Ended(HostedFarmEnd { at, status })
                    }
                    Err(error) => FarmSessionEnd::Failed(launch_failure(daemon, error)),
                };
            }
            // The sender lives as long as the daemon.
            Ok(()) = stopping.changed() => {
                let level = *stopping.borrow_and_update();
                level.into_iter().for_each(|level| session.request_stop(level));
            }
        }
    }
}

/// Opens the farm. `None` if it was deleted before, and nothing of it runs, or if the daemon stops: an
/// opening that was begun has ended then. Threads that were fetching datasets may not have.
async fn open(
    daemon: &Daemon,
    farm: &HostedFarm,
    stopping: &mut watch::Receiver<Option<StopLevel>>,
) -> Result<Option<FarmSession>, SessionFailure> {
    // It is never an error: the sender lives as long as the daemon.
    let mut stopped = stopping.clone();
    let stopped = async move {
        let _is_stopping = stopped.wait_for(Option::is_some).await.is_ok();
    };
    let mut stopped = std::pin::pin!(stopped);
    let prepared = tokio::select! {
        prepared = prepared(daemon, farm) => prepared?,
        () = &mut stopped => return Ok(None),
    };
    let Some((request, _turn)) = prepared else { return Ok(None) };
    let opened = Box::pin(FarmSession::open_unless(request, stopped)).await;
    opened.map_err(|error| launch_failure(daemon, error))
}

/// The request for a session, with the turn to open it; `None` if it needs none.
async fn prepared(
    daemon: &Daemon,
    farm: &HostedFarm,
) -> Result<Option<(FarmRequest, SharedPlace)>, SessionFailure> {
    let priority = farm.record().priority;
    let turn = daemon.farms.openings.acquire(&farm.limit_user(), priority, 1).await;
    if !farm.needs_session(daemon.is_remote()) {
        return Ok(None);
    }
    farm.set_stage(FarmStage::Opening);
    let variables = farm.record().variables.clone();
    let prepared = prepare(daemon, farm.id(), &farm.limit_user(), variables).await;
    let prepared = prepared.map_err(|fault| fault.failure)?;
    Ok(Some((request(daemon, farm, prepared)?, turn)))
}

fn launch_failure(daemon: &Daemon, error: LaunchError) -> SessionFailure {
    SessionFailure::of(RunFault::Launch(Box::new(error)), daemon.options.explain)
}

fn request(
    daemon: &Daemon,
    farm: &HostedFarm,
    prepared: PreparedJob,
) -> Result<FarmRequest, RunFailure> {
    let options = &daemon.options;
    let PreparedJob { job, datasets, .. } = prepared;
    #[cfg(feature = "nats")]
    let remote = remote(daemon, job.pool.as_deref())?;
    let (settings, priority) = {
        let record = farm.record();
        (record.settings.clone(), record.priority)
    };
    Ok(FarmRequest {
        settings,
        job,
        datasets,
        store: options.store.clone(),
        store_cache_mb: options.store_cache_mb,
        // Only an earlier daemon can own a run of this directory, and this one has its lock.
        wait_policy: LockWaitPolicy::default(),
        #[cfg(feature = "nats")]
        remote,
        host: options.host.clone(),
        operator: options.operator.clone(),
        tracer: Tracer::default(),
        slots: Some(daemon.slot_share(farm.limit_user(), priority)),
    })
}
