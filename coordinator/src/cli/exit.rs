//! Exit code of a finished run.

use rollout_protocol::exit::ExitCode;

use crate::results::metrics::{Tally, ThresholdOutcome};

/// The exit code of a finished run. With a threshold, infrastructure failures matter only where
/// they could change the result.
pub(super) fn for_run(cancelled: bool, tally: &Tally, fail_under: Option<f64>) -> ExitCode {
    if cancelled {
        return ExitCode::Cancelled;
    }
    match fail_under.map(|least| tally.score().compare_with_threshold(least)) {
        Some(ThresholdOutcome::Missed) => ExitCode::FailUnder,
        Some(ThresholdOutcome::Undecided) => ExitCode::Infrastructure,
        None if tally.failures.infrastructure > 0 => ExitCode::Infrastructure,
        Some(ThresholdOutcome::Reached) | None => ExitCode::Success,
    }
}
