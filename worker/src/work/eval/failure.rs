//! Errors that only evals have.

use rollout_base::secrets::Redactor;
use rollout_base::shortage::Shortage;
use rollout_environment::Failure;
use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::spec::eval::{EvalSpec, EvalStage};

use super::EvalFilesError;
use crate::executor::errors::{self, ScriptError, ScriptStage, ScriptSubject, shortage_code};

const INFRASTRUCTURE: Class = Class::Infrastructure;

/// The error of a failed command: the agent's for the command that implements the idea, the
/// verifier's for every other one.
pub(in crate::work) fn command_error(
    error: ScriptError,
    stage: EvalStage,
    redactor: &Redactor,
) -> TrialError {
    let whose = match stage {
        EvalStage::Implement | EvalStage::Ideas => ScriptStage::Execute,
        EvalStage::Tests | EvalStage::Review | EvalStage::Sweep => ScriptStage::Verify,
    };
    let script = match (stage, &error) {
        (EvalStage::Review, ScriptError::Exit { .. }) => {
            "the review did not approve the change: it"
        }
        _ => "the command",
    };
    let prefix = format!("{}: ", stage.as_str());
    error.into_error_for(whose, ScriptSubject { prefix: &prefix, script }, redactor)
}

/// A review that rejected the change.
pub(super) fn rejected(reason: &str, redactor: &Redactor) -> TrialError {
    let said = if reason.is_empty() { "" } else { ": " };
    let message = format!("review: the review did not approve the change{said}{reason}");
    review_error(Code::NON_ZERO_EXIT, &message, redactor)
}

/// A review that ended without a decision.
pub(super) fn no_decision(why: &str, redactor: &Redactor) -> TrialError {
    let message = format!("review: the agent left no decision: {why}");
    review_error(Code::REWARD_MISSING, &message, redactor)
}

fn review_error(code: Code, message: &str, redactor: &Redactor) -> TrialError {
    let message = redactor.text(message);
    TrialError::new(Type::VerifierFailed, code, Class::Verifier, Retry::Permanent, message)
}

/// Leftovers of an environment occupy the resources of the next one: another try may succeed.
pub(super) fn leftover_environment(failure: &Failure, redactor: &Redactor) -> TrialError {
    TrialError { retry: Retry::Transient, ..errors::teardown_failed(failure, redactor) }
}

fn disk_code(source: &std::io::Error) -> Code {
    shortage_code(Shortage::from_io_error(source)).unwrap_or(Code::DISK_FAILED)
}

/// Refuses settings that evals do not support.
pub(super) fn check_supported(eval: &EvalSpec) -> Result<(), TrialError> {
    let refuse = |what: &str| {
        let message = format!("an eval's environment cannot have {what}");
        let (class, retry) = (Class::Task, Retry::Permanent);
        TrialError::new(Type::TaskInvalid, Code::REFUSED, class, retry, message)
    };
    let own = eval.sweep_environment.as_deref().map(|own| &own.environment);
    for environment in [Some(&eval.environment), own].into_iter().flatten() {
        if environment.compose.is_some() {
            return Err(refuse("sidecar services"));
        }
        if environment.healthcheck.is_some() {
            return Err(refuse("a healthcheck"));
        }
    }
    Ok(())
}

/// The error of the repository, the checkout or the commit.
pub(in crate::work) fn files_error(error: &EvalFilesError, redactor: &Redactor) -> TrialError {
    let message = redactor.text(&error.chain());
    let kind = Type::AgentExecutionFailed;
    match error {
        EvalFilesError::NotCommittable { .. } => {
            let (code, class) = (Code::REFUSED, Class::Agent);
            TrialError::new(kind, code, class, Retry::Permanent, message)
        }
        EvalFilesError::Unreadable { .. } => {
            TrialError::transient(kind, Code::COLLECTION_FAILED, message)
        }
        EvalFilesError::Store { source, .. } => {
            let retry = if source.is_transient() { Retry::Transient } else { Retry::Permanent };
            let kind = Type::EnvironmentStartFailed;
            TrialError::new(kind, Code::STORE_FAILED, INFRASTRUCTURE, retry, message)
        }
        EvalFilesError::BrokenChain { .. } | EvalFilesError::TooLarge { .. } => {
            let (kind, code) = (Type::EnvironmentStartFailed, Code::REFUSED);
            TrialError::new(kind, code, Class::Task, Retry::Permanent, message)
        }
        EvalFilesError::Disk { source, .. } => {
            TrialError::transient(Type::InternalError, disk_code(source), message)
        }
        EvalFilesError::Git(error) => {
            let code = shortage_code(error.shortage()).unwrap_or(Code::PROVIDER_ERROR);
            TrialError::transient(Type::InternalError, code, message)
        }
        EvalFilesError::Archive { source, .. } => {
            let code = shortage_code(Shortage::from_error(source)).unwrap_or(Code::PROVIDER_ERROR);
            TrialError::transient(Type::InternalError, code, message)
        }
    }
}

/// The agent removed the checkout.
pub(super) fn missing_checkout() -> TrialError {
    let (kind, code) = (Type::AgentExecutionFailed, Code::REFUSED);
    TrialError::new(kind, code, Class::Agent, Retry::Permanent, "the agent removed the checkout")
}
