//! Tasks that cannot be read, or that their repository lacks: each settles as a failure of its own, and
//! the others run. A strict run, and a run of which no task is left, is refused instead.

use std::collections::HashSet;
use std::path::Path;

use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};

use super::task::invalid;
use crate::config::{ConfigError, ConfigWarning, Diagnostics};

/// Errors named in the error of a trial; the others are only counted.
const MAX_NAMED_ERRORS: usize = 5;

/// The faulty tasks of a job so far.
#[derive(Debug, Default)]
pub(super) struct FaultyTasks {
    errors: Vec<ConfigError>,
    tasks: usize,
}

impl FaultyTasks {
    /// The error of the trials of the task `shown` in `dir`, from the errors of its files. Warnings are
    /// recorded.
    pub(super) fn settle(
        &mut self,
        shown: &str,
        dir: &Path,
        own: Diagnostics,
        problems: &mut Diagnostics,
    ) -> TrialError {
        let (errors, warnings) = own.into_parts();
        warnings.into_iter().for_each(|warning| problems.warning(warning));
        let fault = file_fault(shown, dir, &errors);
        self.add(errors);
        fault
    }

    /// The error of the trials of the task `shown`, which cannot be fetched.
    pub(super) fn settle_unfetched(&mut self, shown: &str, error: ConfigError) -> TrialError {
        let message = format!("the task {shown} cannot be fetched: {}", summary(&error, None));
        self.add(vec![error]);
        invalid(ErrorType::TaskNotFound, ErrorCode::REFUSED, message)
    }

    /// The error of the trials of a task whose name is too long, told under the name `shown`.
    pub(super) fn settle_misnamed(&mut self, shown: &str, error: ConfigError) -> TrialError {
        let message = format!("the task {shown} cannot run: {}", summary(&error, None));
        self.add(vec![error]);
        invalid(ErrorType::TaskInvalid, ErrorCode::REFUSED, message)
    }

    fn add(&mut self, errors: Vec<ConfigError>) {
        self.errors.extend(errors);
        self.tasks += 1;
    }

    /// Records the errors: as warnings if other tasks of the job, which has `tasks`, can run.
    pub(super) fn finish(self, tasks: usize, problems: &mut Diagnostics) {
        let others_run = tasks > self.tasks;
        let mut seen = HashSet::new();
        for error in self.errors {
            if others_run {
                problems.warning(warning(error));
            } else if seen.insert(error.to_string()) {
                // Tasks of one repository have the same error.
                problems.error(error);
            }
        }
    }
}

/// The error of the trials of a task with errors in its files.
pub(super) fn file_fault(shown: &str, dir: &Path, errors: &[ConfigError]) -> TrialError {
    let mut named: Vec<String> = errors.iter().map(|error| summary(error, Some(dir))).collect();
    let more = named.len().saturating_sub(MAX_NAMED_ERRORS);
    named.truncate(MAX_NAMED_ERRORS);
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    let message = format!("the task {shown} cannot be read: {}", named.join("; "));
    let is_gone = !dir.exists();
    let kind = if is_gone { ErrorType::TaskNotFound } else { ErrorType::TaskInvalid };
    invalid(kind, ErrorCode::REFUSED, message)
}

/// An error in one line, with its file as a path in `dir`; without its place if there is no `dir`.
fn summary(error: &ConfigError, dir: Option<&Path>) -> String {
    let hint = error.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    let Some(dir) = dir else { return format!("{}{hint}", error.found) };
    let file = error.file.strip_prefix(dir).unwrap_or(&error.file).to_owned();
    let placed = ConfigError { file, hint: None, ..error.clone() };
    format!("{placed}{hint}")
}

/// The warning of an error that only some trials have.
pub(super) fn warning(error: ConfigError) -> ConfigWarning {
    let ConfigError { file, line, key, found, expected, hint, .. } = error;
    let what = match expected.as_str() {
        "" => found,
        expected => format!("found {found}, expected {expected}"),
    };
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    let message = format!("{what}{hint}: the task fails, the others run");
    ConfigWarning { file, line, key, message }
}
