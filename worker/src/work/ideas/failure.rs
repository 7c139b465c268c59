//! Errors that only commands for ideas have.

use rollout_base::secrets::Redactor;
use rollout_environment::with_words;
use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::name::InvalidPathComponent;

/// A directory of earlier ideas whose name is no plain file name.
pub(super) fn invalid_directory_name(why: &InvalidPathComponent) -> TrialError {
    let message = format!("the name of a directory of earlier ideas {why}");
    TrialError::new(Type::TaskInvalid, Code::REFUSED, Class::Task, Retry::Permanent, message)
}

/// A command that wrote no idea; with the number of files that are not ideas, and the end of its
/// output.
pub(super) fn no_ideas(left_out: usize, last_words: &str, redactor: &Redactor) -> TrialError {
    let beside = match left_out {
        0 => String::new(),
        _ => format!("; left out: {left_out} (see left_out.txt)"),
    };
    let text = format!("the command wrote no idea{beside}");
    let message = redactor.text(&with_words(text, last_words));
    let kind = Type::AgentExecutionFailed;
    TrialError::new(kind, Code::REWARD_MISSING, Class::Agent, Retry::Permanent, message)
}

/// Ideas that could not be read to their end. Only the agent can have exceeded a limit.
pub(super) fn unreadable(why: &str, exceeds_limit: bool, redactor: &Redactor) -> TrialError {
    let (kind, code) = (Type::AgentExecutionFailed, Code::COLLECTION_FAILED);
    let message = redactor.text(&format!("cannot read the ideas: {why}"));
    match exceeds_limit {
        true => TrialError::new(kind, code, Class::Agent, Retry::Permanent, message),
        false => TrialError::transient(kind, code, message),
    }
}

/// Ideas that could not be unpacked or packed on this host.
pub(super) fn sort_failed(why: &str, redactor: &Redactor) -> TrialError {
    let message = redactor.text(why);
    TrialError::transient(Type::InternalError, Code::COLLECTION_FAILED, message)
}
