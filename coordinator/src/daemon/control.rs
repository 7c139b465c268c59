//! Requests about a run: cancel, pause, continue, delete. A request is durable when its call
//! returns; the session of the run is told as soon as it takes commands.

use std::sync::Arc;

use rollout_protocol::Timestamp;

use super::hosted_run::HostedRun;
use super::record::{HostedKind, HostedOutcome, HostedRunEnd, HostedRunRecord, WantedState};
use super::{Daemon, DaemonError};

/// Why a run that has ended takes no request.
const HAS_ENDED: &str = "it has ended";

impl Daemon {
    /// Cancels a run: its trials end as cancelled, except those that have a result. One that never
    /// started ends at once. A run that was cancelled before stays so.
    ///
    /// # Errors
    /// [`DaemonError::Conflict`] for a run that has ended otherwise.
    pub async fn cancel(self: &Arc<Self>, run: &Arc<HostedRun>) -> Result<(), DaemonError> {
        run.disk_retries().forget();
        let never_started = !run.is_live() && !run.has_begun();
        self.change(run, move |record| {
            match &record.end {
                Some(end) if end.outcome == HostedOutcome::Cancelled => return Ok(()),
                Some(_) => return Err(conflict("cancel", HAS_ENDED)),
                None => {}
            }
            record.wanted = WantedState::Cancelled;
            record.failure = None;
            if never_started {
                let (at, outcome) = (Timestamp::now(), HostedOutcome::Cancelled);
                record.end = Some(HostedRunEnd { at, outcome, code: 0 });
            }
            Ok(())
        })
        .await
    }

    /// Pauses a run: no trial begins, and running ones go on.
    ///
    /// # Errors
    /// [`DaemonError::Conflict`] for a run that has ended or was cancelled.
    pub async fn pause(self: &Arc<Self>, run: &Arc<HostedRun>) -> Result<(), DaemonError> {
        self.change(run, |record| {
            check_open("pause", record)?;
            record.wanted = WantedState::Paused;
            Ok(())
        })
        .await
    }

    /// Ends a pause, or tries a run again whose last session failed. It waits for a place among the
    /// running ones if there is none.
    ///
    /// # Errors
    /// [`DaemonError::Conflict`] for a run that has ended or was cancelled.
    pub async fn resume(self: &Arc<Self>, run: &Arc<HostedRun>) -> Result<(), DaemonError> {
        run.disk_retries().forget();
        self.change(run, |record| {
            check_open("continue", record)?;
            record.wanted = WantedState::Running;
            record.failure = None;
            Ok(())
        })
        .await?;
        self.table().continue_now(run, self.running_shares());
        Ok(())
    }

    /// Lets an executor take no more trials: its run ends when every started trial has a result.
    ///
    /// # Errors
    /// [`DaemonError::Conflict`] for another run, and for one that was cancelled or has ended
    /// otherwise.
    pub async fn close(self: &Arc<Self>, run: &Arc<HostedRun>) -> Result<(), DaemonError> {
        self.change(run, |record| {
            if record.kind != HostedKind::Executor {
                return Err(conflict("finish", "it is no executor"));
            }
            if !record.is_closed {
                check_open("finish", record)?;
                record.is_closed = true;
            }
            Ok(())
        })
        .await
    }

    /// Removes the record and the run directory of a run that has ended. Its blobs stay until they
    /// are collected.
    ///
    /// # Errors
    /// [`DaemonError::Conflict`] for a run that has not ended.
    pub async fn delete(self: &Arc<Self>, run: &Arc<HostedRun>) -> Result<(), DaemonError> {
        let (daemon, run) = (Arc::clone(self), Arc::clone(run));
        self.finish(async move { daemon.delete_files(&run).await }).await
    }

    async fn delete_files(&self, run: &HostedRun) -> Result<(), DaemonError> {
        if run.is_live() {
            return Err(conflict("delete", "it runs: cancel it first"));
        }
        run.update(&self.dir, |record| {
            if record.end.is_none() && record.failure.is_none() {
                return Err(conflict("delete", "it has not ended: cancel it first"));
            }
            record.is_deleted = true;
            Ok(())
        })
        .await?;
        self.remove_files(run.id()).await?;
        self.table().remove(run);
        Ok(())
    }

    async fn change(
        self: &Arc<Self>,
        run: &Arc<HostedRun>,
        change: impl FnOnce(&mut HostedRunRecord) -> Result<(), DaemonError> + Send + 'static,
    ) -> Result<(), DaemonError> {
        let (daemon, run) = (Arc::clone(self), Arc::clone(run));
        let work = async move {
            run.update(&daemon.dir, change).await?;
            daemon.wake.notify_one();
            Ok(())
        };
        self.finish(work).await
    }
}

fn conflict(action: &'static str, reason: &'static str) -> DaemonError {
    DaemonError::Conflict { action, reason }
}

fn check_open(action: &'static str, record: &HostedRunRecord) -> Result<(), DaemonError> {
    match (&record.end, record.wanted) {
        (Some(_), _) => Err(conflict(action, HAS_ENDED)),
        (None, WantedState::Cancelled) => Err(conflict(action, "it was cancelled")),
        (None, _) => Ok(()),
    }
}
