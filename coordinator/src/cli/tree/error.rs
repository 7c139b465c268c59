//! Errors of searches as words.

use rollout_protocol::exit::ExitCode;

use crate::cli::error::CliError;
use crate::run::LockError;
use crate::tree::run::{TreeError, WorkError};

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
