//! How a run that came to its end maps to an exit code.

use rollout_protocol::exit::ExitCode;

use crate::metrics::Tally;

/// The code of a run that ended.
pub(super) fn of_run(cancelled: bool, tally: &Tally, fail_under: Option<f64>) -> ExitCode {
    // With nothing completed there is nothing that passed.
    let under = fail_under.is_some_and(|least| tally.pass_rate().unwrap_or(0.0) < least);
    if cancelled {
        ExitCode::Cancelled
    } else if tally.infrastructure > 0 {
        ExitCode::Infrastructure
    } else if under {
        ExitCode::FailUnder
    } else {
        ExitCode::Success
    }
}
