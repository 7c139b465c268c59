//! Whether the state directory takes writes. While it takes none, the daemon is not ready and begins no
//! session, and what sessions leave to note waits in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_worker::backoff::without_place;
use rollout_worker::supervise;
use rollout_worker::write_check::check_writes;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Daemon;
use super::record::RecordError;

/// Time between two checks of a directory that takes writes.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// First and longest time between two checks of a directory that takes none.
const RECHECK_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// A check that takes longer counts as failed.
const CHECK_LIMIT: Duration = Duration::from_secs(10);

/// The last known state of writes.
#[derive(Debug, Default)]
pub(super) struct WriteHealth {
    /// Why writes fail, if they do.
    fault: Mutex<Option<String>>,
    /// Notified when a write has failed.
    failed: Notify,
}

impl WriteHealth {
    /// Why writes fail, if they do. Names no path.
    pub(super) fn fault(&self) -> Option<String> {
        self.locked().clone()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.locked().is_some()
    }

    /// A record could not be written.
    pub(super) fn record_failed(&self, error: &RecordError) {
        self.failed_because(&reason(error));
        self.failed.notify_one();
    }

    fn failed_because(&self, reason: &str) {
        let fault = format!("cannot write to the state directory: {reason}");
        if self.locked().replace(fault.clone()).is_none() {
            tracing::error!("{fault}; no run or farm is started until that is possible");
        }
    }

    /// Returns whether writes failed before.
    fn recovered(&self) -> bool {
        self.locked().take().is_some()
    }

    fn locked(&self) -> MutexGuard<'_, Option<String>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cause of a failed write, without a path.
fn reason(error: &RecordError) -> String {
    match error {
        RecordError::File { source, .. } => without_place(source),
        RecordError::Damaged { .. } | RecordError::Newer { .. } | RecordError::InUse { .. } => {
            error.to_string()
        }
    }
}

impl Daemon {
    /// Checks the state directory repeatedly, for as long as the daemon runs. A directory that takes
    /// writes again gets what could not be noted, and sessions begin again.
    pub(super) async fn watch_writes(self: Arc<Self>) {
        let [first, longest] = RECHECK_PAUSES;
        let mut pause = first;
        loop {
            if self.writes.is_failing() {
                sleep(pause).await;
                pause = longest.min(pause * 2);
            } else {
                tokio::select! {
                    () = sleep(CHECK_INTERVAL) => {}
                    () = self.writes.failed.notified() => continue,
                }
            }
            if let Err(reason) = self.try_writes().await {
                self.writes.failed_because(&reason);
            } else if self.writes.recovered() {
                // A disk that fails again soon is tried after the longer pause.
                tracing::info!("the state directory takes writes again");
                self.wake.notify_one();
            } else {
                pause = first;
            }
        }
    }

    /// Writes a file, then what could not be noted.
    pub(super) async fn try_writes(&self) -> Result<(), String> {
        let records = self.dir.run_records();
        let check = supervise::blocking(move || check_writes(&records));
        let mut check = std::pin::pin!(check);
        let checked = match tokio::time::timeout(CHECK_LIMIT, &mut check).await {
            Ok(checked) => checked,
            Err(_elapsed) => {
                self.writes.failed_because(&format!("it does not answer within {CHECK_LIMIT:?}"));
                // A second check would wait, too, on another thread.
                check.await
            }
        };
        checked.map_err(|error| without_place(&error))?;
        self.write_noted().await.map_err(|error| reason(&error))
    }

    /// Writes the ends of sessions that could not be noted.
    async fn write_noted(&self) -> Result<(), RecordError> {
        let runs = self.table().unwritten();
        for run in runs {
            run.write_noted(&self.dir).await?;
        }
        let farms = self.farms.unwritten();
        for farm in farms {
            farm.write_noted(&self.dir).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn fault_names_the_cause_and_no_path() {
        let health = WriteHealth::default();
        assert!(!health.is_failing());
        let source = io::Error::from_raw_os_error(30);
        health.record_failed(&RecordError::file("write", "/srv/state/runs/r1.json")(source));
        let fault = health.fault().expect("a fault");
        assert!(fault.contains("Read-only file system"), "{fault}");
        assert!(!fault.contains("/srv"), "{fault}");
        assert!(health.recovered() && !health.recovered());
        assert_eq!(health.fault(), None);
    }
}
