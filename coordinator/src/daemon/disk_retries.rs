//! Sessions that fail with the disk of the server. Each is tried again when the disk takes writes, until
//! that was of no use several times: a run or a farm may fill the disk itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::failure::RunFailure;
use super::write_health::{CONTINUES, fault_text};

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
    /// The failure of a session that failed with its disk, for this `reason`, when there were so many
    /// results; without a number, none is new.
    pub(super) fn failure(
        &self,
        reason: &str,
        cause: RunFailure,
        results: Option<u64>,
    ) -> RunFailure {
        let is_temporary = self.row().allows_retry(results);
        let RunFailure { code, message, mut details, mut hints, .. } = cause;
        details.insert(0, message);
        let hint = if is_temporary {
            CONTINUES.to_owned()
        } else {
            format!(
                "{MOST_RETRIES} retries gave no result: make room on the disk of the server or \
                 repair it, then continue"
            )
        };
        hints.insert(0, hint);
        RunFailure { code, message: fault_text(reason), details, hints, is_temporary }
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
        let (message, details) = ("cannot write the journal".to_owned(), vec!["more".to_owned()]);
        let cause =
            RunFailure { code: 1, message, details, hints: Vec::new(), is_temporary: false };
        retries.failure("No space left on device", cause, results)
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
