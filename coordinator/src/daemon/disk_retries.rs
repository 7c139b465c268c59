//! Sessions that fail with the disk of the server. Each is tried again when the disk takes writes, until
//! that was of no use several times: a run or a farm may fill the disk itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::failure::{RunFailure, SessionFailure};
use super::write_health::{CONTINUES, DiskFault, fault_text};

/// Retries in a row without a new result. A disk that fails on its own lets a session get on between two of
/// its faults.
const MOST_RETRIES: u32 = 3;

/// The retries of a run or a farm in this process.
#[derive(Debug, Default)]
pub(super) struct DiskRetries(Mutex<RetryRow>);

/// Retries since the last new result.
#[derive(Debug, Default)]
struct RetryRow {
    retries: u32,
    /// Most results that a failed session had: one that fails while it reads its journal has fewer.
    results: u64,
}

impl DiskRetries {
    /// The failure of a session beside a fault of its disk, when there were so many results; without a
    /// number, none is new. A fault that is over is the cause of nothing but failures of files.
    pub(super) fn failure(
        &self,
        fault: &DiskFault,
        failed: SessionFailure,
        results: Option<u64>,
    ) -> RunFailure {
        let SessionFailure { mut failure, is_of_files } = failed;
        if fault.is_over {
            let reason = &fault.reason;
            failure.details.push(format!("a short time ago, {}", fault_text(reason)));
            if !is_of_files {
                return failure;
            }
        } else {
            let message = std::mem::replace(&mut failure.message, fault_text(&fault.reason));
            failure.details.insert(0, message);
        }
        let is_temporary = self.row().allows_retry(results);
        let hint = if is_temporary {
            CONTINUES.to_owned()
        } else {
            format!(
                "{MOST_RETRIES} retries gave no result: make room on the disk of the server or \
                 repair it, then continue"
            )
        };
        failure.hints.insert(0, hint);
        RunFailure { is_temporary, ..failure }
    }

    /// Forgets the retries: a user wants another one.
    pub(super) fn forget(&self) {
        *self.row() = RetryRow::default();
    }

    fn row(&self) -> MutexGuard<'_, RetryRow> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RetryRow {
    fn allows_retry(&mut self, results: Option<u64>) -> bool {
        let results = results.unwrap_or(self.results);
        if results > self.results {
            self.retries = 0;
        }
        self.results = self.results.max(results);
        let is_allowed = self.retries < MOST_RETRIES;
        self.retries += u32::from(is_allowed);
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(retries: &DiskRetries, results: Option<u64>) -> RunFailure {
        let fault = DiskFault { reason: "No space left on device".to_owned(), is_over: false };
        failure_beside(&fault, false, retries, results)
    }

    fn failure_beside(
        fault: &DiskFault,
        is_of_files: bool,
        retries: &DiskRetries,
        results: Option<u64>,
    ) -> RunFailure {
        let (message, details) = ("cannot write the journal".to_owned(), vec!["more".to_owned()]);
        let failure =
            RunFailure { code: 1, message, details, hints: Vec::new(), is_temporary: false };
        retries.failure(fault, SessionFailure { failure, is_of_files }, results)
    }

    #[test]
    fn failure_of_disk_has_its_cause_and_what_the_session_said() {
        let failure = failure(&DiskRetries::default(), Some(0));
        let expected = "cannot write to the state directory: No space left on device";
        assert_eq!((failure.message.as_str(), failure.code), (expected, 1));
        assert_eq!(failure.details, ["cannot write the journal", "more"]);
        assert!(failure.is_temporary && failure.hints == [CONTINUES], "{failure:?}");
    }

    #[test]
    fn failure_after_a_fault_keeps_its_message_and_is_retried_only_if_files_are_its_cause() {
        let (retries, reason) = (DiskRetries::default(), "No space left on device".to_owned());
        let fault = DiskFault { reason, is_over: true };
        let of_files = failure_beside(&fault, true, &retries, None);
        let other = failure_beside(&fault, false, &retries, None);
        let noted =
            "a short time ago, cannot write to the state directory: No space left on device";
        for failure in [&of_files, &other] {
            assert_eq!(failure.message, "cannot write the journal");
            assert_eq!(failure.details, ["more", noted]);
        }
        assert!(of_files.is_temporary && of_files.hints == [CONTINUES], "{of_files:?}");
        assert!(!other.is_temporary && other.hints.is_empty(), "{other:?}");
        let further = [(); 3].map(|()| failure_beside(&fault, true, &retries, None).is_temporary);
        assert_eq!(further, [true, true, false], "the other failure is no retry");
    }

    #[test]
    fn retries_without_a_new_result_end_until_there_is_one_or_a_user_asks() {
        let retries = DiskRetries::default();
        let tried = |results: &[Option<u64>]| {
            let failures = results.iter().map(|results| failure(&retries, *results));
            failures.map(|failure| failure.is_temporary).collect::<Vec<_>>()
        };
        assert_eq!(tried(&[Some(5), Some(5), None, Some(5)]), [true, true, true, false]);
        assert_eq!(tried(&[Some(6), Some(6), Some(6), Some(6)]), [true, true, true, false]);
        assert_eq!(tried(&[Some(7), Some(8), Some(9), Some(10), Some(11)]), [true; 5]);
        assert_eq!(tried(&[None, None, None]), [true, true, false]);
        let hints = failure(&retries, None).hints;
        assert!(hints[0].starts_with("3 retries gave no result"), "{hints:?}");
        retries.forget();
        assert_eq!(tried(&[None, None, None, None]), [true, true, true, false]);
        retries.forget();
        let rows = [Some(5), Some(3), Some(5), Some(3), Some(5)];
        assert_eq!(tried(&rows), [true, true, true, false, false], "a result is new once");
        retries.forget();
        assert_eq!(tried(&[Some(3), Some(4), Some(5), Some(6)]), [true; 4]);
    }
}
