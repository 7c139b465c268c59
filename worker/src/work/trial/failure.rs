//! Errors that only trials have.

use rollout_base::secrets::Redactor;
use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::harness::OutputError;
use rollout_protocol::phase::Phase;

use crate::executor::errors::ResultError;

/// Why a successful verifier gave no reward.
#[derive(Debug)]
pub(super) enum RewardError {
    /// None of the files exists.
    Missing { files: &'static [&'static str] },
    /// The file has no valid reward.
    Invalid { file: &'static str, why: String },
    /// The file could not be read.
    Unreadable { file: &'static str, why: String },
}

/// How the test script of a missing or invalid reward ended.
#[derive(Debug, Default)]
pub(super) struct TestEnd {
    /// Its exit code.
    pub(super) code: i32,
    /// The end of its standard error.
    pub(super) last_words: String,
}

impl RewardError {
    pub(super) fn into_error(self, end: &TestEnd, redactor: &Redactor) -> TrialError {
        let logs = crate::verifier::VERIFIER_LOGS;
        let said = match end.last_words.as_str() {
            "" => String::new(),
            words => format!("; the test script's standard error ends with: {words}"),
        };
        match self {
            Self::Missing { files } => {
                let left = match end.code {
                    0 => "left".to_owned(),
                    code => format!("ended with code {code} and left"),
                };
                let files = files.join(" or ");
                let message = format!("the test script {left} no {logs}/{files}{said}");
                ResultError::Missing.into_error(&message, redactor)
            }
            Self::Invalid { file, why } => {
                let message = format!("{logs}/{file} has no valid reward: {why}{said}");
                ResultError::Invalid.into_error(&message, redactor)
            }
            Self::Unreadable { file, why } => {
                let message = format!("cannot read {logs}/{file}: {why}");
                ResultError::Unreadable.into_error(&message, redactor)
            }
        }
    }
}

/// The error of a harness whose output states one, or that left no valid output.
pub(super) fn harness_error(error: &OutputError, redactor: &Redactor) -> TrialError {
    let kind = error.error_type.as_deref().unwrap_or("error");
    let said = error.message.as_deref().map_or_else(String::new, |said| format!(": {said}"));
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let message = format!("the output of the harness states an error: {kind}{said}");
    let message = redactor.text(&message).chars().map(shown).collect::<String>();
    let (failed, code) = (Type::AgentExecutionFailed, Code::TRIAL_OUTPUT_ERROR);
    TrialError::new(failed, code, Class::Agent, Retry::Permanent, message)
}

/// The error of a failed collect hook.
pub(super) fn not_ready(command: &str, why: &str, redactor: &Redactor) -> TrialError {
    let (kind, code) = (Type::VerifierFailed, Code::COLLECTION_FAILED);
    let message = redactor.text(&format!("collect hook `{command}` failed: {why}"));
    TrialError::new(kind, code, Class::Task, Retry::Permanent, message).in_phase(Phase::Collection)
}

/// Whether it is the error of a failed collect hook: other collections fail for a cause of the host.
pub(super) fn is_of_hook(error: &TrialError) -> bool {
    error.code == Code::COLLECTION_FAILED && error.class == Class::Task
}

/// The error of a task that cannot run: found before any environment exists.
pub(super) fn task_invalid(why: &str) -> TrialError {
    let (kind, code) = (Type::TaskInvalid, Code::MISSING_FILE);
    TrialError::new(kind, code, Class::Task, Retry::Permanent, why)
}
