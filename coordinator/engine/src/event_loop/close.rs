//! The manifest, and the end of a session.

use std::time::Duration;

use rollout_base::backoff::error_chain;
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::Timestamp;
use rollout_protocol::event::EventKind;
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Engine, EngineOutcome, MANIFEST_INTERVAL};
use crate::RunError;
use crate::core::{JournalRecord, SessionEnd};
use crate::journal::{JournalError, MirrorError};
use crate::manifest::{JournalExtent, RunManifest, RunState};
use crate::open::OpenRun;
use crate::records::RecordsFileSet;

/// How long the end of a session waits for the queue to take the remaining messages, and a stopped
/// one for its catalog.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of a session waits until the catalog has its last record. The next session
/// stores it.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Manifests that could not be replaced. A disk that takes no writes may have those of many runs.
static UNWRITTEN: WarningLimiter = WarningLimiter::new();

impl Engine {
    /// Replaces the manifest if it is due; whether it was.
    pub(super) fn refresh_manifest(&mut self) -> bool {
        if Instant::now() < self.manifest_due {
            return false;
        }
        if let Err(error) = self.write_manifest(RunState::Running) {
            let reason = error_chain(&error);
            UNWRITTEN.warn(&format_args!(
                "{reason}; the journal holds the same data, and the write is retried"
            ));
        }
        true
    }

    pub(super) fn write_manifest(&mut self, state: RunState) -> Result<(), RunError> {
        self.manifest_due = Instant::now() + MANIFEST_INTERVAL;
        self.run.fence.check().map_err(RunError::LockLost)?;
        self.manifest(state, self.run.record_files.clone()).write(&self.run.layout)
    }

    fn manifest(&self, state: RunState, written: RecordsFileSet) -> RunManifest {
        let run = &self.run;
        let head = run.writer.durable_prefix();
        RunManifest {
            format: rollout_protocol::version::RUN_FORMAT,
            run: run.run,
            job: run.job.clone(),
            created_at: run.created_at,
            updated_at: Timestamp::now(),
            plan: run.plan,
            epoch: run.epoch,
            state,
            total: self.planner.total(),
            settled: run.core.settled() as u64,
            in_flight: run.core.in_flight() as u64,
            journal: JournalExtent { epoch: head.epoch, durable_bytes: head.bytes },
            sealed: written.sealed,
            unsealed: written.unsealed,
            reopened: Some(run.reopenings.iter().copied().collect()),
            digest: None,
        }
    }

    /// Ends the session when its records are durable, and leaves offers and executions to the next
    /// one: it finds them as after the death of this process, and need not wait for the lock.
    pub(super) async fn hand_over(
        mut self,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<EngineOutcome, RunError> {
        let message = "the session hands the run over: trials on workers continue, and the next \
                       session takes their results"
            .to_owned();
        self.emit(vec![EventKind::Warning { message }]).await;
        while !(self.waiting.is_empty() && self.run.writer.is_idle()) {
            self.wait_durable(stops).await?;
            self.on_durable().await?;
            self.flush().await?;
        }
        self.close(stops).await
    }

    /// Waits until the records so far are durable. After a stop that comes meanwhile, a catalog is
    /// waited for only a little longer.
    async fn wait_durable(
        &mut self,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<(), RunError> {
        if !self.run.writer.is_mirrored() {
            self.run.writer.durable().await?;
            return Ok(());
        }
        let stopped = async {
            match stops.recv().await {
                Some(_) => tokio::time::sleep(CLOSE_TIMEOUT).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            written = self.run.writer.durable() => drop(written?),
            () = stopped => return Err(abandoned()),
            () = tokio::time::sleep(JOURNAL_TIMEOUT) => return Err(abandoned()),
        }
        Ok(())
    }

    /// Ends the session: closing record, records, manifest.
    pub(super) async fn close(
        mut self,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<EngineOutcome, RunError> {
        self.cancellations.refuse();
        let pending = self.planner.total() - self.run.core.settled() as u64;
        let is_over_budget = self.is_over_budget && pending > 0;
        // More items may come in the next session.
        let cancelled = pending > 0 || self.planner.is_open();
        let ended = EngineOutcome { cancelled, pending, is_over_budget };
        let closed =
            JournalRecord::Closed(SessionEnd { cancelled: ended.cancelled, owed: pending });
        self.run.writer.record(Timestamp::now(), &closed);
        self.run.writer.submit();
        self.wait_durable(stops).await?;
        self.durable_position = self.run.core.position();
        self.listener.notify_closed(self.durable_state());
        self.write_waiting(&[])?;
        self.end_queue_outage()?;
        self.emit(vec![EventKind::RunEnded { cancelled: ended.cancelled, owed: pending }]).await;
        let state = if cancelled { RunState::Stopped } else { RunState::Completed };
        let manifest = self.manifest(state, RecordsFileSet::default());
        let Self { run, publisher, .. } = self;
        if !publisher.finish(CLOSE_TIMEOUT).await {
            let message = "cannot reach the queue: some offers were not withdrawn; the next \
                           session withdraws them";
            tracing::warn!("{message}");
        }
        let OpenRun { layout, records, writer, fence, .. } = run;
        drop(writer);
        fence.check().map_err(RunError::LockLost)?;
        let RecordsFileSet { sealed, unsealed } = records.finish()?;
        RunManifest { sealed, unsealed, ..manifest }.write(&layout)?;
        Ok(ended)
    }
}

/// The error of a session that ends while its catalog does not answer.
pub(super) fn abandoned() -> RunError {
    RunError::Journal(JournalError::Mirror(MirrorError::Abandoned))
}
