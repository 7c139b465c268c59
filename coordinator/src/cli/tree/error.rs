//! Conversion of the errors of searches.

use rollout_protocol::exit::ExitCode;

use crate::cli::error::{CliError, from_lock, remedy};
use crate::engine::LockError;
use crate::workloads::search::driver::{BackendError, SearchError};

/// Part of the hints that `for_unnamed_search` completes.
const RESUME_HINT: &str = "the same command again";

/// Part of hints: the option that starts another search.
const OTHER_SEARCH: &str = "`--tree-run-id` for another search";

impl CliError {
    /// Adds the search's name to the hints: the search file does not have it.
    pub(super) fn for_unnamed_search(mut self, name: &str) -> Self {
        let named = format!("{RESUME_HINT} with `--tree-run-id {name}`");
        for hint in &mut self.hints {
            *hint = hint.replace(RESUME_HINT, &named);
        }
        self
    }

    /// The error of resuming a search without a name.
    pub(super) fn name_required(what: &str) -> Self {
        let message = format!(
            "{what} needs the name of a search: without `tree_run_id` every search is named after \
             the time of its start"
        );
        Self::new(ExitCode::Config, message)
            .hint("use `--tree-run-id` with the name of the search's directory below `runs_root`")
    }
}

impl From<SearchError> for CliError {
    fn from(error: SearchError) -> Self {
        let error = match error {
            SearchError::Run(error) => return (*error).into(),
            error => error,
        };
        let what = "cannot continue the search";
        match &error {
            SearchError::Lock(LockError::Interrupted)
            | SearchError::Backend(BackendError::Stopped) => {
                Self::new(ExitCode::Cancelled, "the search was stopped on request")
                    .hint("run the same command again to resume")
            }
            SearchError::Lost(_) => Self::from_cause(
                ExitCode::LockLost,
                "the search was interrupted",
                &error,
            )
            .hint(
                "work of this process since then is discarded; the new owner continues the search",
            ),
            SearchError::Damaged { .. } => Self::from_cause(ExitCode::RunDamaged, what, &error),
            SearchError::Lock(lock) => from_lock(what, lock, OTHER_SEARCH),
            SearchError::NotFound { .. } | SearchError::Job { .. } => {
                Self::new(ExitCode::Config, error.to_string())
            }
            SearchError::Exists { .. } => Self::new(ExitCode::Config, error.to_string())
                .hint(&format!("use {OTHER_SEARCH}, or resume this one")),
            SearchError::Changed { differences, .. } => {
                let mut refused = Self::from_cause(ExitCode::PlanMismatch, what, &error);
                refused.details.clone_from(differences);
                refused.hint(&format!("use {OTHER_SEARCH}, or undo the changes to resume this one"))
            }
            SearchError::Baseline { missing, .. } => {
                let mut refused =
                    Self::from_cause(ExitCode::Config, "cannot start the search", &error);
                refused.details.clone_from(missing);
                refused.hint(
                    "run the sweep on the root commit, and set `root_baseline_csv` to the file \
                     that it writes",
                )
            }
            SearchError::Backend(BackendError::EvalsNotRun { evals }) => {
                let mut failed = Self::failure(what, &error);
                failed.details.clone_from(evals);
                failed.hint(
                    "run the same command again to retry them; with `--fail-unable-evals` they \
                     count as failed",
                )
            }
            SearchError::Ideas { .. } | SearchError::Backend(_) | SearchError::Unregistered(_) => {
                let hint = format!("{} and run the same command again to resume", remedy(&error));
                Self::failure(what, &error).hint(&hint)
            }
            SearchError::File { .. } | SearchError::Plan(_) | SearchError::Run(_) => {
                Self::failure(what, &error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::id::RunId;

    use super::*;
    use crate::engine::journal::{JournalPrefix, MissingRecords, RecordChain};

    #[test]
    fn copied_search_hints_tree_run_id() {
        let wanted =
            JournalPrefix { epoch: 3, records: 5, bytes: 700, chain: RecordChain::default() };
        let copy = LockError::Copy {
            run: RunId::from_bytes([1; 16]),
            lack: MissingRecords { wanted, found: None },
            holder: "another process".to_owned(),
        };
        let error = CliError::from(SearchError::Lock(copy));
        assert_eq!(error.code, ExitCode::StaleCopy);
        let hint =
            "resume in the directory that has them, or use `--tree-run-id` for another search";
        assert_eq!(error.hints, [hint]);
    }

    #[test]
    fn stopped_search_without_name_hints_generated_tree_run_id() {
        let stopped = || CliError::from(SearchError::Backend(BackendError::Stopped));
        assert_eq!(stopped().hints, ["run the same command again to resume"]);
        let hints = stopped().for_unnamed_search("20260101_000000").hints;
        assert_eq!(
            hints,
            ["run the same command again with `--tree-run-id 20260101_000000` to resume"]
        );
    }
}
