//! Faults of the directory of all run directories over time. One that passes soon is none of the sessions:
//! a disk that is full for a moment, or a file server that is busy.

use std::time::Duration;

use tokio::time::Instant;

/// How long writes fail, or a check has no answer, before sessions are shown as failed: a session keeps
/// what it cannot write for minutes, and a client that takes it for failed may give up a run that goes on.
const SHOWN_AFTER: Duration = Duration::from_secs(60);

/// How long after its end a fault explains the failure of a session, which takes a while to end.
const EXPLAINS_FOR: Duration = Duration::from_secs(60);

/// Results of the checks of the directory.
#[derive(Debug, Default)]
pub(super) struct WriteFaults {
    /// When the first of the failed checks in a row began.
    since: Option<Instant>,
    /// When a check failed last, and why.
    last: Option<(Instant, String)>,
}

impl WriteFaults {
    /// Notes a check that began at `began` and has failed, or has no answer yet. Returns when sessions
    /// are to be shown as failed, unless a check passes before.
    pub(super) fn failed(&mut self, began: Instant, now: Instant, reason: &str) -> Instant {
        self.last = Some((now, reason.to_owned()));
        *self.since.get_or_insert(began) + SHOWN_AFTER
    }

    /// Notes a check that passed. Returns whether the one before had failed.
    pub(super) fn passed(&mut self) -> bool {
        self.since.take().is_some()
    }

    /// Why checks failed a short time ago, if one did.
    pub(super) fn recent(&self, now: Instant) -> Option<&str> {
        let (at, reason) = self.last.as_ref()?;
        (now < *at + EXPLAINS_FOR).then_some(reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes failed checks that began so many seconds after `start`, each with its answer at once.
    /// Returns whether sessions are shown as failed after each.
    fn shown(faults: &mut WriteFaults, start: Instant, seconds: &[u64]) -> Vec<bool> {
        let checks = seconds.iter().map(|second| start + Duration::from_secs(*second));
        checks.map(|at| faults.failed(at, at, "full") <= at).collect()
    }

    #[test]
    fn fault_is_shown_after_its_time_however_many_checks_failed() {
        let (mut faults, start) = (WriteFaults::default(), Instant::now());
        assert_eq!(shown(&mut faults, start, &[0, 1, 3, 7, 15, 25]), [false; 6]);
        assert_eq!(shown(&mut faults, start, &[59, 60, 61]), [false, true, true]);
        assert!(faults.passed() && !faults.passed());
        assert_eq!(shown(&mut faults, start, &[62, 121, 122]), [false, false, true]);
    }

    #[test]
    fn check_without_an_answer_counts_from_its_begin() {
        let (mut faults, start) = (WriteFaults::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(faults.failed(after(2), after(12), "silent"), after(62));
        assert_eq!(faults.failed(after(2), after(70), "full"), after(62));
    }

    #[test]
    fn fault_explains_failures_for_a_short_time_after_its_end() {
        let (mut faults, start) = (WriteFaults::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(faults.recent(start), None);
        faults.failed(start, after(1), "full");
        faults.passed();
        assert_eq!(faults.recent(after(60)), Some("full"));
        assert_eq!(faults.recent(after(61)), None);
    }
}
