//! Errors of searches as words.

use rollout_protocol::exit::ExitCode;

use crate::cli::error::{CliError, from_lock};
use crate::engine::LockError;
use crate::workloads::search::driver::{BackendError, SearchError};

/// How a search is gone on with that has a name.
const RESUME_HINT: &str = "the same command";

impl CliError {
    /// The error of a search of this name which only its directory says: hints tell it.
    pub(super) fn for_unnamed_search(mut self, name: &str) -> Self {
        let named = format!("{RESUME_HINT} with `--tree-run-id {name}`");
        for hint in &mut self.hints {
            *hint = hint.replace(RESUME_HINT, &named);
        }
        self
    }

    /// Only a search that has a name can be gone on with.
    pub(super) fn name_required(what: &str) -> Self {
        let message = format!(
            "{what} needs the name of a search: without `tree_run_id` every search has the name \
             of the time at which it begins"
        );
        Self::new(ExitCode::Config, message)
            .hint("give `--tree-run-id`, the name of the search's directory below `runs_root`")
    }
}

impl From<SearchError> for CliError {
    fn from(error: SearchError) -> Self {
        let error = match error {
            SearchError::Run(error) => return (*error).into(),
            error => error,
        };
        let what = "the search cannot go on";
        match &error {
            SearchError::Lock(LockError::Held { .. } | LockError::Elsewhere { .. }) => {
                Self::from_cause(ExitCode::LockHeld, what, &error).hint(
                    "wait for its owner to end, or give `--tree-run-id` for another search; \
                     `--force` takes this one over",
                )
            }
            SearchError::Lock(LockError::Interrupted)
            | SearchError::Work(BackendError::Stopped) => {
                Self::new(ExitCode::Cancelled, "the search was stopped on request")
                    .hint("the same command goes on with it")
            }
            SearchError::Lost(_) => {
                Self::from_cause(ExitCode::LockLost, "the search was interrupted", &error)
                    .hint("what this process did since does not count; the new owner goes on")
            }
            SearchError::Damaged { .. } => Self::from_cause(ExitCode::RunDamaged, what, &error),
            SearchError::Lock(
                lock @ (LockError::Journal(_) | LockError::Copy { .. } | LockError::Unreadable),
            ) => from_lock(what, lock),
            SearchError::Nothing { .. } => Self::new(ExitCode::Config, error.to_string()),
            SearchError::Exists { .. } => Self::new(ExitCode::Config, error.to_string())
                .hint("give `--tree-run-id` for another search, or go on with this one"),
            SearchError::Changed { differences, .. } => {
                let mut refused = Self::from_cause(ExitCode::PlanMismatch, what, &error);
                refused.details.clone_from(differences);
                refused.hint(
                    "give `--tree-run-id` for another search, or undo the changes to go on with \
                     this one",
                )
            }
            SearchError::Baseline { missing, .. } => {
                let mut refused =
                    Self::from_cause(ExitCode::Config, "the search cannot begin", &error);
                refused.details.clone_from(missing);
                refused.hint(
                    "run the sweep on the root commit, and name the file that it writes in \
                     `root_baseline_csv`",
                )
            }
            SearchError::Work(BackendError::Unable { evals }) => {
                let mut failed = Self::failure(what, &error);
                failed.details.clone_from(evals);
                failed.hint(
                    "the same command tries them again; with `--fail-unable-evals` they count as \
                     failed",
                )
            }
            SearchError::Ideas { .. } | SearchError::Work(_) => Self::failure(what, &error)
                .hint("the same command goes on with it when the cause is gone"),
            SearchError::Lock(_)
            | SearchError::File { .. }
            | SearchError::Plan(_)
            | SearchError::Run(_) => Self::failure(what, &error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_search_without_name_hints_generated_tree_run_id() {
        let stopped = || CliError::from(SearchError::Work(BackendError::Stopped));
        assert_eq!(stopped().hints, ["the same command goes on with it"]);
        let hints = stopped().for_unnamed_search("20260101_000000").hints;
        assert_eq!(
            hints,
            ["the same command with `--tree-run-id 20260101_000000` goes on with it"]
        );
    }
}
