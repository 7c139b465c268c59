//! Granting of concurrency permits.

use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::stage::{StageProgress, StageStep};
use tokio::sync::oneshot;

use super::{Engine, WorkerLocation};
use crate::RunError;
use crate::concurrency::HolderStatus;

impl Engine {
    /// An execution reports its stage of the eval.
    pub(super) fn on_stage(
        &self,
        claim: &Claim,
        progress: StageProgress,
        reply: oneshot::Sender<ClaimAnswer>,
    ) {
        let Claim { run, item, exec, .. } = *claim;
        if run != self.run.run {
            return;
        }
        // A worker that no longer waits asks again.
        match (&self.limiter, progress.step) {
            (Some(limiter), StageStep::Waiting) => limiter.request(item, exec, progress, reply),
            (Some(limiter), StageStep::Running | StageStep::Over) => {
                limiter.end(exec, progress);
                let _no_longer_waiting = reply.send(ClaimAnswer::Run);
            }
            // A previous session had limits.
            (None, _) => {
                let _no_longer_waiting = reply.send(ClaimAnswer::Run);
            }
        }
    }

    /// Takes in the stages that heartbeats show.
    pub(super) fn update_stages(&self, heartbeats: &[ReceivedHeartbeat]) {
        let Some(limiter) = &self.limiter else { return };
        let lines = heartbeats.iter().filter(|seen| !seen.heartbeat.gone).flat_map(|seen| {
            let lives = self.run.core.counts_as_alive(seen.age);
            seen.heartbeat.executions.iter().map(move |execution| (execution, lives))
        });
        let of_run = lines.filter(|(line, _)| line.run == self.run.run);
        limiter.update_from_heartbeats(of_run.filter_map(|(line, lives)| {
            let mark = line.stage?;
            Some((line.item, line.exec, mark, lives))
        }));
    }

    /// Grants permits once it is known which ones previous sessions granted.
    pub(super) fn grant_permits(&mut self, workers: &WorkerLocation) -> Result<(), RunError> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let core = &self.run.core;
        if !limiter.is_open() {
            let is_first = self.run.epoch == 1;
            let is_known = match workers {
                WorkerLocation::Local { .. } => self.recovered && self.reaped,
                WorkerLocation::Remote => is_first || core.is_watched(self.monotonic_ms()),
            };
            if is_known {
                limiter.open(is_first);
            }
        }
        if core.stopping().is_some() || !limiter.is_wanted() {
            return Ok(());
        }
        // A process that was suspended may have a successor that grants permits, too.
        self.run.fence.check_when_due().map_err(RunError::LockLost)?;
        limiter.grant(|item, exec| match core.is_open(item, exec) {
            None => HolderStatus::Unknown,
            Some(true) => HolderStatus::Open,
            Some(false) => HolderStatus::Closed,
        });
        Ok(())
    }
}
