//! Whether the state directory takes writes. While it takes none, the daemon is not ready and begins no
//! session, what sessions leave to note waits in memory, and sessions that could keep no result are shown
//! as failed: they go on when it takes writes again.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_worker::backoff::without_place;
use rollout_worker::supervise;
use rollout_worker::write_check::check_writes;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Daemon;
use super::failure::RunFailure;
use super::record::RecordError;

/// Time between two checks of a directory that takes writes, and the same while there are sessions.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// First and longest time between two checks of a directory that takes none.
const RECHECK_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// A check that takes longer counts as failed.
const CHECK_LIMIT: Duration = Duration::from_secs(10);

/// How long a check has no answer before sessions are shown as failed: a disk that is very busy gives one
/// at last.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// Checks in a row that fail before sessions are shown as failed.
const SHOWN_AFTER: u32 = 2;

/// The last known state of writes.
#[derive(Debug, Default)]
pub(super) struct WriteHealth {
    /// Why writes fail, if they do.
    fault: Mutex<Option<String>>,
    /// Notified when a write has failed.
    failed: Notify,
    /// Checks of run directories that failed in a row.
    failed_checks: AtomicU32,
}

/// The findings of a check: of the records, and of the run directories.
#[derive(Debug)]
struct CheckedWrites {
    records: io::Result<()>,
    run_directories: io::Result<()>,
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
        self.failed_now(&reason(error));
    }

    /// A write failed: a check is due.
    fn failed_now(&self, reason: &str) {
        self.failed_because(reason);
        self.failed.notify_one();
    }

    fn failed_because(&self, reason: &str) {
        let fault = fault_text(reason);
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

fn fault_text(reason: &str) -> String {
    format!("cannot write to the state directory: {reason}")
}

/// The failure of sessions that can keep no result.
fn session_failure(reason: &str) -> RunFailure {
    RunFailure {
        code: ExitCode::Failure.code(),
        message: fault_text(reason),
        details: Vec::new(),
        hints: vec!["it goes on when the disk of the server takes writes again".to_owned()],
        is_temporary: true,
    }
}

fn silence(limit: Duration) -> String {
    format!("it does not answer within {limit:?}")
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
                    () = sleep(self.check_interval()) => {}
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

    fn check_interval(&self) -> Duration {
        let has_sessions = !self.drivers().is_empty() || !self.farms.are_closed();
        if has_sessions { SESSION_CHECK_INTERVAL } else { CHECK_INTERVAL }
    }

    /// Writes a file where the records are and one where the run directories are, then what could not be
    /// noted.
    pub(super) async fn try_writes(&self) -> Result<(), String> {
        let CheckedWrites { records, run_directories } = self.check_directories().await;
        self.note_run_directories(run_directories.as_ref().err());
        run_directories.and(records).map_err(|error| without_place(&error))?;
        self.write_noted().await.map_err(|error| reason(&error))
    }

    async fn check_directories(&self) -> CheckedWrites {
        let (records, jobs) = (self.dir.run_records(), self.dir.jobs());
        let check = supervise::blocking(move || CheckedWrites {
            records: check_writes(&records),
            run_directories: check_writes(&jobs),
        });
        let mut check = std::pin::pin!(check);
        if let Ok(checked) = timeout(CHECK_LIMIT, &mut check).await {
            return checked;
        }
        self.writes.failed_because(&silence(CHECK_LIMIT));
        if let Ok(checked) = timeout(SILENCE_LIMIT - CHECK_LIMIT, &mut check).await {
            return checked;
        }
        self.writes.failed_checks.fetch_max(SHOWN_AFTER, Ordering::Relaxed);
        self.show_session_fault(Some(&silence(SILENCE_LIMIT)));
        // A second check would wait, too, on another thread.
        check.await
    }

    /// Shows a fault of the run directories once it lasts, and its end.
    fn note_run_directories(&self, fault: Option<&io::Error>) {
        let failed = &self.writes.failed_checks;
        match fault {
            None => {
                if failed.swap(0, Ordering::Relaxed) >= SHOWN_AFTER {
                    self.show_session_fault(None);
                }
            }
            Some(error) => {
                let in_a_row = failed.fetch_add(1, Ordering::Relaxed) + 1;
                if in_a_row >= SHOWN_AFTER {
                    self.show_session_fault(Some(&without_place(error)));
                }
            }
        }
    }

    fn show_session_fault(&self, reason: Option<&str>) {
        let failure = reason.map(session_failure);
        for run in self.table().live() {
            run.set_session_fault(failure.clone());
        }
        for farm in self.farms.all() {
            farm.set_session_fault(failure.clone());
        }
    }

    /// Whether a session that has just failed is to be tried again when its disk takes writes.
    pub(super) async fn has_disk_failed(&self) -> bool {
        let jobs: PathBuf = self.dir.jobs();
        let checked = supervise::blocking(move || check_writes(&jobs)).await;
        match checked {
            Ok(()) => false,
            Err(error) => {
                self.writes.failed_now(&without_place(&error));
                true
            }
        }
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
