//! Errors of searches as words.

use rollout_protocol::exit::ExitCode;

use crate::cli::error::{CliError, of_lock};
use crate::engine::LockError;
use crate::workloads::search::driver::{TreeError, WorkError};

/// How a search is gone on with that has a name.
const SAME: &str = "the same command";

impl CliError {
    /// The error of a search of this name which only its directory says: hints tell it.
    pub(super) fn of_unnamed(mut self, name: &str) -> Self {
        let named = format!("{SAME} with `--tree-run-id {name}`");
        for hint in &mut self.hints {
            *hint = hint.replace(SAME, &named);
        }
        self
    }

    /// Only a search that has a name can be gone on with.
    pub(super) fn nameless(what: &str) -> Self {
        let message = format!(
            "{what} needs the name of a search: without `tree_run_id` every search has the name \
             of the time at which it begins"
        );
        Self::new(ExitCode::Config, message)
            .hint("give `--tree-run-id`, the name of the search's directory below `runs_root`")
    }
}

impl From<TreeError> for CliError {
    fn from(error: TreeError) -> Self {
        let error = match error {
            TreeError::Run(error) => return (*error).into(),
            error => error,
        };
        let what = "the search cannot go on";
        match &error {
            TreeError::Lock(LockError::Held { .. } | LockError::Elsewhere { .. }) => {
                Self::of(ExitCode::LockHeld, what, &error).hint(
                    "wait for its owner to end, or give `--tree-run-id` for another search; \
                     `--force` takes this one over",
                )
            }
            TreeError::Lock(LockError::Interrupted) | TreeError::Work(WorkError::Stopped) => {
                Self::new(ExitCode::Cancelled, "the search was stopped on request")
                    .hint("the same command goes on with it")
            }
            TreeError::Lost(_) => {
                Self::of(ExitCode::LockLost, "the search was interrupted", &error)
                    .hint("what this process did since does not count; the new owner goes on")
            }
            TreeError::Damaged { .. } => Self::of(ExitCode::RunDamaged, what, &error),
            TreeError::Lock(
                lock @ (LockError::Journal(_) | LockError::Copy { .. } | LockError::Unreadable),
            ) => of_lock(what, lock),
            TreeError::Nothing { .. } => Self::new(ExitCode::Config, error.to_string()),
            TreeError::Exists { .. } => Self::new(ExitCode::Config, error.to_string())
                .hint("give `--tree-run-id` for another search, or go on with this one"),
            TreeError::Changed { differences, .. } => {
                let mut refused = Self::of(ExitCode::PlanMismatch, what, &error);
                refused.details.clone_from(differences);
                refused.hint(
                    "give `--tree-run-id` for another search, or undo the changes to go on with \
                     this one",
                )
            }
            TreeError::Baseline { missing, .. } => {
                let mut refused = Self::of(ExitCode::Config, "the search cannot begin", &error);
                refused.details.clone_from(missing);
                refused.hint(
                    "run the sweep on the root commit, and name the file that it writes in \
                     `root_baseline_csv`",
                )
            }
            TreeError::Work(WorkError::Unable { evals }) => {
                let mut failed = Self::failure(what, &error);
                failed.details.clone_from(evals);
                failed.hint(
                    "the same command tries them again; with `--fail-unable-evals` they count as \
                     failed",
                )
            }
            TreeError::Ideas { .. } | TreeError::Work(_) => Self::failure(what, &error)
                .hint("the same command goes on with it when the cause is gone"),
            TreeError::Lock(_)
            | TreeError::File { .. }
            | TreeError::Plan(_)
            | TreeError::Run(_) => Self::failure(what, &error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_without_a_name_of_its_own_is_gone_on_with_by_the_name_it_got() {
        let stopped = || CliError::from(TreeError::Work(WorkError::Stopped));
        assert_eq!(stopped().hints, ["the same command goes on with it"]);
        let hints = stopped().of_unnamed("20260101_000000").hints;
        assert_eq!(
            hints,
            ["the same command with `--tree-run-id 20260101_000000` goes on with it"]
        );
    }
}
