//! End of all processes that commands started.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rollout_environment::{Failure, FailureKind};
use tokio::time::Instant;

use super::pod::KubePod;
use super::{scripts, stream};

/// Time for commands that are being started to have started.
const LAUNCHED_WITHIN: Duration = Duration::from_secs(10);

/// Timeout of one sweep: with 3,000 processes it took 3 seconds in a measurement.
const SWEEP_WITHIN: Duration = Duration::from_secs(20);

/// Fewest attempts of a sweep. Its result can be lost with its connection, and it may be repeated.
const SWEEPS: u32 = 4;

/// Time in which sweeps are repeated: a killed process that waits for a disk ends only after it.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

/// Text that a sweep which left nothing prints.
const NOTHING_LEFT: &str = "left=0 ";

impl KubePod {
    /// Ends every process but the first one. The script depends on the container's shell; nothing
    /// outside of a pod can list its processes.
    pub(super) async fn kill_processes(&self) -> Result<(), Failure> {
        self.sweep(scripts::sweep(self.shell, self.has_own_process)).await
    }

    /// Ends the processes of commands in the container of a service, and none of the service.
    pub(super) async fn kill_commands(&self) -> Result<(), Failure> {
        self.sweep(scripts::kill_commands(self.shell)).await
    }

    async fn sweep(&self, script: Vec<String>) -> Result<(), Failure> {
        // A command that is being started would survive otherwise.
        let launched = tokio::time::timeout(LAUNCHED_WITHIN, self.launching.write()).await;
        let (deadline, mut sweeps, mut last) = (Instant::now() + ENDED_WITHIN, 0, None);
        while sweeps < SWEEPS || Instant::now() < deadline {
            sweeps += 1;
            let sweeping = stream::run_unframed(self.target(), script.clone());
            let swept = tokio::select! {
                swept = tokio::time::timeout(SWEEP_WITHIN, sweeping) => swept,
                lost = self.lost() => return without_processes(lost.failure),
            };
            match swept {
                Ok(Ok(printed)) if printed.contains(NOTHING_LEFT) => return Ok(()),
                Ok(Ok(printed)) => last = Some(format!("the sweep printed `{}`", printed.trim())),
                Ok(Err(failure)) if failure.kind == FailureKind::NotPermitted => {
                    return Err(failure);
                }
                Ok(Err(failure)) => last = Some(failure.chain()),
                Err(_) => last = Some(format!("the sweep took longer than {SWEEP_WITHIN:?}")),
            }
            if let Err(lost) = self.check().await {
                return without_processes(lost.failure);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        drop(launched);
        let kind = if self.cluster.service().is_down() {
            FailureKind::Unreachable
        } else {
            FailureKind::LeftBehind
        };
        let why = last.unwrap_or_default();
        let text = format!("cannot end the processes of the pod {}: {why}", self.name);
        Err(Failure::new(kind, text))
    }

    /// Ends all processes for good. The container stays, so that its files can be read.
    pub(super) async fn stop(&self) -> Result<(), Failure> {
        self.is_stopped.store(true, Ordering::Release);
        self.kill_processes().await
    }
}

/// The result for a pod that was lost: a container that has ended has no process left.
fn without_processes(failure: Failure) -> Result<(), Failure> {
    match failure.kind {
        FailureKind::NotStarted | FailureKind::StorageExceeded | FailureKind::Unusable => Ok(()),
        _ => Err(failure),
    }
}
