//! Exit code of a finished run, of a command and of a daemon.

use rollout_protocol::exit::ExitCode;

use crate::results::metrics::{Tally, ThresholdOutcome};

/// The exit code of a finished run. With a threshold, failures of the infrastructure and of tasks
/// matter only where they could change the result.
pub fn for_run(cancelled: bool, tally: &Tally, fail_under: Option<f64>) -> ExitCode {
    if cancelled {
        return ExitCode::Cancelled;
    }
    let score = tally.score();
    match fail_under.map(|least| score.compare_with_threshold(least)) {
        Some(ThresholdOutcome::Missed) => ExitCode::FailUnder,
        Some(ThresholdOutcome::Undecided) => ExitCode::Infrastructure,
        Some(ThresholdOutcome::NothingScored) => ExitCode::NothingMeasured,
        None if tally.failures.infrastructure > 0 => ExitCode::Infrastructure,
        // A job that disables verification asks for no score, and an executor may start no trial.
        None if score.trials == 0 && tally.settled() > tally.unverified => {
            ExitCode::NothingMeasured
        }
        Some(ThresholdOutcome::Reached) | None => ExitCode::Success,
    }
}
