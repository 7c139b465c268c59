//! Whether the state directory takes writes. While it takes none, the daemon is not ready and begins no
//! session, and what sessions leave to note waits in memory. Sessions that could keep no result for a
//! while are shown as failed: they go on when the directory takes writes again.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::backoff::without_place;
use rollout_base::supervise;
use rollout_base::write_check::check_writes;
use rollout_protocol::exit::ExitCode;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Daemon;
use super::failure::RunFailure;
use super::id::HostedRunId;
use super::record::RecordError;
use super::state_dir::StoredId;
use super::write_faults::WriteFaults;

/// Time between two checks of a directory that takes writes, and the same while there are sessions.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// First and longest time between two checks of a directory that takes none: clients wait for the runs.
const RECHECK_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// A check that takes longer counts as failed.
const CHECK_LIMIT: Duration = Duration::from_secs(10);

/// The hint of a failure that ends by itself.
pub(super) const CONTINUES: &str = "it continues when the disk of the server takes writes again";

/// The last known state of writes.
#[derive(Debug, Default)]
pub(super) struct WriteHealth {
    known: Mutex<KnownFault>,
    /// Notified when a write has failed.
    failed: Notify,
    run_directories: Mutex<WriteFaults>,
}

#[derive(Debug, Default)]
struct KnownFault {
    /// Why writes fail, if they do.
    text: Option<String>,
    /// Writes that failed so far.
    failures: u64,
}

/// The findings of a check: of the records, and of the run directories.
#[derive(Debug)]
struct CheckedWrites {
    records: io::Result<()>,
    run_directories: io::Result<()>,
}

/// The fault of the disk with which a session has failed.
#[derive(Debug)]
pub(super) struct DiskFault {
    /// The cause.
    pub(super) reason: String,
    /// Whether the disk takes writes again.
    pub(super) is_over: bool,
}

impl WriteHealth {
    /// Why writes fail, if they do. Names no path.
    pub(super) fn fault(&self) -> Option<String> {
        self.known().text.clone()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.known().text.is_some()
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
        let mut known = self.known();
        known.failures += 1;
        if known.text.replace(fault.clone()).is_none() {
            tracing::error!("{fault}; no run or farm is started until that is possible");
        }
    }

    /// Writes that failed so far.
    pub(super) fn failures(&self) -> u64 {
        self.known().failures
    }

    /// Notes that writes are possible, unless one has failed since there were so many `failures`. Returns
    /// whether they failed before.
    pub(super) fn recovered(&self, failures: u64) -> bool {
        let mut known = self.known();
        known.failures == failures && known.text.take().is_some()
    }

    fn known(&self) -> MutexGuard<'_, KnownFault> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_directories(&self) -> MutexGuard<'_, WriteFaults> {
        self.run_directories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn fault_text(reason: &str) -> String {
    format!("cannot write to the state directory: {reason}")
}

/// The failure of sessions that can keep no result.
fn session_failure(reason: &str) -> RunFailure {
    RunFailure {
        code: ExitCode::Failure.code(),
        message: fault_text(reason),
        details: Vec::new(),
        hints: vec![CONTINUES.to_owned()],
        is_temporary: true,
    }
}

fn silence() -> String {
    format!("it does not answer within {CHECK_LIMIT:?}")
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

/// Writes a file in a directory of records and one in that of the run directories.
fn checked(records: PathBuf, jobs: PathBuf) -> impl Future<Output = CheckedWrites> {
    supervise::blocking(move || CheckedWrites {
        records: check_writes(&records),
        run_directories: check_writes(&jobs),
    })
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
                    () = self.writes.failed.notified() => {}
                }
            }
            let failures = self.writes.failures();
            let may_begin = match self.try_writes().await {
                Ok(may_begin) => may_begin,
                Err(reason) => {
                    self.writes.failed_because(&reason);
                    continue;
                }
            };
            let has_recovered = self.writes.recovered(failures);
            if has_recovered {
                // A disk that fails again soon is tried after the longer pause.
                tracing::info!("the state directory takes writes again");
            } else {
                pause = first;
            }
            // A session that failed with the disk may have been noted after the end of the fault.
            if has_recovered || may_begin {
                self.wake.notify_one();
            }
        }
    }

    fn check_interval(&self) -> Duration {
        let has_sessions = !self.drivers().is_empty() || !self.farms.are_closed();
        if has_sessions { SESSION_CHECK_INTERVAL } else { CHECK_INTERVAL }
    }

    /// Writes a file where the records are and one where the run directories are, then what could not be
    /// noted. Returns whether sessions that failed with the disk may begin again.
    pub(super) async fn try_writes(&self) -> Result<bool, String> {
        let began = Instant::now();
        let CheckedWrites { records, run_directories } = self.check_directories(began).await;
        self.note_run_directories(began, run_directories.as_ref().err());
        run_directories.and(records).map_err(|error| without_place(&error))?;
        self.write_noted().await.map_err(|error| reason(&error))
    }

    async fn check_directories(&self, began: Instant) -> CheckedWrites {
        let check = checked(self.dir.records_of::<HostedRunId>(), self.dir.jobs());
        let mut check = std::pin::pin!(check);
        if let Ok(checked) = timeout_at(began + CHECK_LIMIT, &mut check).await {
            return checked;
        }
        let silence = silence();
        self.writes.failed_because(&silence);
        let shown_at = self.writes.run_directories().failed(began, Instant::now(), &silence);
        if let Ok(checked) = timeout_at(shown_at, &mut check).await {
            return checked;
        }
        self.show_session_fault(Some(&silence));
        // A second check would wait, too, on another thread.
        check.await
    }

    /// Shows a fault of the run directories once it lasts, and its end.
    fn note_run_directories(&self, began: Instant, fault: Option<&io::Error>) {
        match fault {
            None => {
                let had_failed = self.writes.run_directories().passed();
                if had_failed {
                    self.show_session_fault(None);
                }
            }
            Some(error) => {
                let (now, reason) = (Instant::now(), without_place(error));
                let shown_at = self.writes.run_directories().failed(began, now, &reason);
                if shown_at <= now {
                    self.show_session_fault(Some(&reason));
                }
            }
        }
    }

    /// Only the watch shows faults: another one would show a fault that has ended.
    fn show_session_fault(&self, reason: Option<&str>) {
        let failure = reason.map(session_failure);
        for run in self.table().live() {
            run.set_session_fault(failure.clone());
        }
        for farm in self.farms.all() {
            farm.set_session_fault(failure.clone());
        }
    }

    /// The fault of the disk of a session that has just failed, if there is one now or was a short time ago.
    pub(super) async fn disk_fault<I: StoredId>(&self) -> Option<DiskFault> {
        let began = Instant::now();
        let check = checked(self.dir.records_of::<I>(), self.dir.jobs());
        let (records, run_directories) = match timeout(CHECK_LIMIT, check).await {
            Ok(CheckedWrites { records, run_directories }) => (
                records.map_err(|error| without_place(&error)),
                run_directories.map_err(|error| without_place(&error)),
            ),
            Err(_elapsed) => (Ok(()), Err(silence())),
        };
        let now = Instant::now();
        if let Err(reason) = &run_directories {
            self.writes.run_directories().failed(began, now, reason);
        }
        if let Err(reason) = run_directories.and(records) {
            self.writes.failed_now(&reason);
            return Some(DiskFault { reason, is_over: false });
        }
        let reason = self.writes.run_directories().recent(now)?.to_owned();
        Some(DiskFault { reason, is_over: true })
    }

    /// Writes the ends of sessions that could not be noted. Returns whether sessions that failed with the
    /// disk may begin again.
    async fn write_noted(&self) -> Result<bool, RecordError> {
        let mut may_begin = false;
        let runs = self.table().unwritten();
        for run in runs {
            may_begin |= run.write_noted(&self.dir).await?;
        }
        let farms = self.farms.unwritten();
        for farm in farms {
            may_begin |= farm.write_noted(&self.dir).await?;
        }
        Ok(may_begin)
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
        let failures = health.failures();
        assert!(health.recovered(failures) && !health.recovered(failures));
        assert_eq!(health.fault(), None);
    }

    #[test]
    fn write_that_fails_during_a_check_is_not_forgotten_when_the_check_passes() {
        let health = WriteHealth::default();
        let before = health.failures();
        health.failed_now("No space left on device");
        assert!(!health.recovered(before) && health.is_failing());
        assert!(health.recovered(health.failures()) && !health.is_failing());
    }
}
