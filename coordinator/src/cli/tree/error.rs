//! Conversion of the errors of searches.

use std::path::Path;

use rollout_engine::{LockError, LockLostError};
use rollout_protocol::exit::ExitCode;

use crate::cli::error::{CliError, DIRECTORY_GONE_HINT, from_lock, remedy};
use crate::cli::hint_command::CommandHint;
use crate::workloads::search::driver::{BackendError, SearchError};

/// Part of hints: the option that starts another search.
const OTHER_SEARCH: &str = "`--tree-run-id` for another search";

/// Purpose of a session that has no result of an eval.
const REMAKE: &str = "make the result of the eval again";

impl CliError {
    /// The error of resuming a search without a name.
    pub(super) fn name_required(what: &str) -> Self {
        let message = format!(
            "{what} needs the name of a search: without `tree_run_id` every search is named after \
             the time of its start"
        );
        Self::new(ExitCode::Config, message).hint(
            "use `--tree-run-id` with the name of the search's directory below `runs_root`, or \
             `rollout resume DIR` with the directory",
        )
    }
}

/// The hint for a damaged file of a search, which may be the result of an eval: a session makes a missing
/// one again.
fn damage_hint(is_of_eval: bool, path: &Path) -> CommandHint {
    match is_of_eval {
        true if path.exists() => CommandHint::new(REMAKE).after("remove the file"),
        true => CommandHint::new(REMAKE),
        false => CommandHint::new("try again").after("restore the file from a copy"),
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
                    .command_hint(CommandHint::new("resume"))
            }
            SearchError::Lost(LockLostError::DirectoryGone { .. }) => {
                Self::failure(what, &error).hint(DIRECTORY_GONE_HINT)
            }
            SearchError::Lost(LockLostError::TakenOver { .. }) => Self::from_cause(
                ExitCode::LockLost,
                "the search was interrupted",
                &error,
            )
            .hint(
                "work of this process since then is discarded; the new owner continues the search",
            ),
            SearchError::Damaged { path, .. } => {
                // `rollout repair` makes none of these files again.
                let hint = damage_hint(error.is_of_eval_result(), path);
                Self::from_cause(ExitCode::RunDamaged, what, &error).command_hint(hint)
            }
            SearchError::Lock(lock) => from_lock(what, lock, OTHER_SEARCH),
            SearchError::NotFound { .. } | SearchError::Job { .. } => {
                Self::new(ExitCode::Config, error.to_string())
            }
            SearchError::Exists { .. } => Self::new(ExitCode::Config, error.to_string())
                .hint(&format!("use {OTHER_SEARCH}"))
                .command_hint(CommandHint::new("resume this one")),
            SearchError::Changed { differences, .. } => {
                let mut refused = Self::from_cause(ExitCode::PlanMismatch, what, &error);
                refused.details.clone_from(differences);
                refused
                    .hint(&format!("use {OTHER_SEARCH}"))
                    .command_hint(CommandHint::new("resume this one").after("undo the changes"))
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
                failed.command_hint(CommandHint::new("retry them")).command_hint(
                    CommandHint::new("count them as failed").with_options(&["--fail-unable-evals"]),
                )
            }
            SearchError::Ideas { .. } | SearchError::Backend(_) | SearchError::Unregistered(_) => {
                let hint = CommandHint::new("resume").after(remedy(&error));
                Self::failure(what, &error).command_hint(hint)
            }
            SearchError::File { .. } | SearchError::Plan(_) | SearchError::Run(_) => {
                Self::failure(what, &error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_engine::journal::{JournalPrefix, MissingRecords, RecordChain};
    use rollout_protocol::id::RunId;

    use super::*;
    use crate::cli::hint_command::HintedRun;

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
    fn damaged_file_of_a_search_is_restored_by_the_user() {
        let temp = tempfile::tempdir().expect("a directory");
        let text = r#"{"directory": "/", "command": ["tree", "run"], "arguments": ["t.yaml"]}"#;
        std::fs::write(temp.path().join("invocation.json"), text).expect("writable");
        let damaged = SearchError::Damaged { path: "artifacts/x.csv".into(), reason: "r".into() };
        let run = HintedRun::Directory(temp.path().to_owned());
        let error = CliError::from(damaged).for_run(&run);
        assert_eq!(error.code, ExitCode::RunDamaged);
        let resume = format!("cd / && rollout resume {}", temp.path().display());
        let hint = format!("restore the file from a copy, then run `{resume}` to try again");
        assert_eq!(error.hints, [hint]);
        let result = temp.path().join("eval_result.json");
        let hint = || {
            let damaged = SearchError::Damaged { path: result.clone(), reason: "r".into() };
            CliError::from(damaged).for_run(&run).hints
        };
        assert_eq!(hint(), [format!("run `{resume}` to make the result of the eval again")]);
        std::fs::write(&result, "{").expect("writable");
        let first = format!("remove the file, then run `{resume}` to make the result");
        assert!(hint()[0].starts_with(&first), "{:?}", hint());
    }

    #[test]
    fn stopped_search_hints_its_directory() {
        let temp = tempfile::tempdir().expect("a directory");
        let text = r#"{"directory": "/", "command": ["tree", "run"], "arguments": ["t.yaml"]}"#;
        std::fs::write(temp.path().join("invocation.json"), text).expect("writable");
        let run = HintedRun::Directory(temp.path().to_owned());
        let hints =
            |error: BackendError| CliError::from(SearchError::Backend(error)).for_run(&run).hints;
        let resume = format!("cd / && rollout resume {}", temp.path().display());
        assert_eq!(hints(BackendError::Stopped), [format!("run `{resume}` to resume")]);
        assert_eq!(
            hints(BackendError::EvalsNotRun { evals: Vec::new() }),
            [
                format!("run `{resume}` to retry them"),
                format!("run `{resume} -- --fail-unable-evals` to count them as failed"),
            ]
        );
    }
}
