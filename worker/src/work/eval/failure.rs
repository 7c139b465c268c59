//! From what went wrong to the error that stands in the record.

use std::time::Duration;

use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::eval::{EvalSpec, EvalStage};
use rollout_protocol::template::Unset;

use super::{EvalFilesError, NotThere};
use crate::environment::{Failure, FailureKind as Kind};
use crate::executor::FilesError;
use crate::secrets::Redactor;
use crate::shortage::Shortage;
use crate::work::trial::{ending, shortage_code};

const OURS: Class = Class::Infrastructure;

/// Why a command did not end well.
#[derive(Debug)]
pub(super) enum CommandError {
    /// It ended with a code other than 0; its last words on standard error.
    Exit { code: i32, oom_killed: bool, last_words: String },
    /// It reached a time limit: `whose`, and what it is as a whole. How much of it was left to this
    /// command is no part of the message, so that equal evals have equal ones.
    TimedOut { whose: &'static str, limit: Duration },
    /// It could not be placed or run, or its end is not known.
    Exec(Failure),
    /// What commands left running could not be ended.
    Left(Failure),
}

impl CommandError {
    pub(super) fn into_error(self, stage: EvalStage, redactor: &Redactor) -> TrialError {
        let is_agents = stage == EvalStage::Implement;
        let (failed, late, class) = match is_agents {
            true => (Type::AgentExecutionFailed, Type::AgentExecutionTimeout, Class::Agent),
            false => (Type::VerifierFailed, Type::VerifierTimeout, Class::Verifier),
        };
        let name = stage.as_str();
        match self {
            Self::Exit { code, oom_killed, last_words } => {
                let (end, how) = ending(code, oom_killed);
                let said = if last_words.is_empty() { "" } else { ": " };
                let what = match stage {
                    EvalStage::Review => "the review did not approve the change: it",
                    _ => "the command",
                };
                let message =
                    format!("{name}: {what} ended with code {code}{how}{said}{last_words}");
                TrialError::new(failed, end, class, Retry::Permanent, redactor.text(&message))
            }
            Self::TimedOut { whose, limit } => {
                let message =
                    format!("{name}: the command was ended at {whose} time limit of {limit:?}");
                TrialError::new(late, Code::TIMED_OUT, class, Retry::Permanent, message)
            }
            Self::Exec(failure) => {
                let message = format!("{name}: {}", failure.chain());
                let (code, mut whose, retry) = reason(failure.kind);
                if matches!(failure.kind, Kind::Refused | Kind::StorageExceeded | Kind::Unusable) {
                    whose = class;
                }
                TrialError::new(failed, code, whose, retry, redactor.text(&message))
            }
            Self::Left(failure) => {
                let message = format!("ending what commands left running: {}", failure.chain());
                TrialError::transient(failed, Code::PROCESSES_LEFT, redactor.text(&message))
            }
        }
    }
}

/// Code, class and retry class of what an environment could not do.
fn reason(kind: Kind) -> (Code, Class, Retry) {
    match kind {
        Kind::Refused => (Code::REFUSED, Class::Task, Retry::Permanent),
        Kind::Unsupported => (Code::UNSUPPORTED_BY_ENVIRONMENT, Class::Task, Retry::Permanent),
        Kind::StorageExceeded => (Code::STORAGE_EXCEEDED, Class::Task, Retry::Permanent),
        Kind::Unusable => (Code::UNHEALTHY, Class::Task, Retry::Permanent),
        Kind::Resources => (Code::UNPLACEABLE, OURS, Retry::Permanent),
        Kind::NotPermitted => (Code::NOT_PERMITTED, OURS, Retry::Permanent),
        Kind::NotStarted => (Code::EXEC_NOT_STARTED, OURS, Retry::Transient),
        Kind::Gone => (Code::ENVIRONMENT_LOST, OURS, Retry::Transient),
        Kind::DiskFull => (Code::DISK_FULL, OURS, Retry::Transient),
        Kind::Exhausted => (Code::HOST_EXHAUSTED, OURS, Retry::Transient),
        Kind::Unreachable => (Code::UNREACHABLE, OURS, Retry::Transient),
        Kind::TimedOut => (Code::TIMED_OUT, OURS, Retry::Transient),
        Kind::Service | Kind::LeftBehind => (Code::PROVIDER_ERROR, OURS, Retry::Transient),
        Kind::Bug => (Code::BUG, OURS, Retry::Permanent),
    }
}

fn of_failure(kind: Type, failure: &Failure, redactor: &Redactor) -> TrialError {
    let (code, class, retry) = reason(failure.kind);
    TrialError::new(kind, code, class, retry, redactor.text(&failure.chain()))
}

pub(super) fn image(failure: &Failure, redactor: &Redactor) -> TrialError {
    of_failure(Type::EnvironmentBuildFailed, failure, redactor)
}

/// An environment that did not come up.
pub(super) fn not_there(why: NotThere, redactor: &Redactor) -> TrialError {
    match why {
        NotThere::Failed(failure) => create(&failure, redactor),
        NotThere::Panicked(message) => panicked(&message, Phase::EnvironmentSetup, redactor),
    }
}

fn create(failure: &Failure, redactor: &Redactor) -> TrialError {
    let kind = match failure.kind {
        Kind::Resources => Type::EnvironmentResourceAllocationFailed,
        _ => Type::EnvironmentStartFailed,
    };
    of_failure(kind, failure, redactor)
}

/// Never a reason to try again: the eval itself is over.
pub(super) fn teardown(failure: &Failure, redactor: &Redactor) -> TrialError {
    let error = of_failure(Type::EnvironmentTeardownFailed, failure, redactor);
    TrialError { class: OURS, retry: Retry::Permanent, ..error }
}

/// What is left of an environment takes the room of the next one.
pub(super) fn in_the_way(failure: &Failure, redactor: &Redactor) -> TrialError {
    TrialError { retry: Retry::Transient, ..teardown(failure, redactor) }
}

/// The worker's own disk.
pub(super) fn disk(source: &std::io::Error) -> TrialError {
    let message = format!("preparing the eval: {source}");
    TrialError::transient(Type::EnvironmentStartFailed, disk_code(source), message)
}

/// What ended an eval while a disk was full: the disk, or the excess of the eval itself.
pub(super) fn disk_was_full(
    former: Option<&TrialError>,
    excess: Option<String>,
    full: &str,
    redactor: &Redactor,
) -> TrialError {
    let kind = former.map_or(Type::AgentExecutionFailed, |error| error.kind);
    let phase = former.map_or(kind.phase(), |error| error.phase);
    let error = match excess {
        Some(excess) => {
            let (code, retry) = (Code::STORAGE_EXCEEDED, Retry::Permanent);
            TrialError::new(kind, code, Class::Agent, retry, redactor.text(&excess))
        }
        None => {
            let said = former.map_or("it changed nothing", |error| error.message.as_str());
            let message = redactor.text(&format!("{full} while the eval ran: {said}"));
            TrialError::transient(kind, Code::DISK_FULL, message)
        }
    };
    error.in_phase(phase)
}

fn disk_code(source: &std::io::Error) -> Code {
    shortage_code(Shortage::of(source)).unwrap_or(Code::PROVIDER_ERROR)
}

pub(super) fn unset(unset: &Unset) -> TrialError {
    let hint = "export it to trials where the worker runs, or give it a default";
    // Another worker may have what this one has not.
    let message = format!("{unset}: {hint}");
    TrialError::transient(Type::EnvironmentStartFailed, Code::VARIABLE_UNSET, message)
}

pub(super) fn no_provider(kind: ProviderKind) -> TrialError {
    let message = format!("this worker has no provider `{kind}`");
    TrialError::transient(Type::EnvironmentStartFailed, Code::UNPLACEABLE, message)
}

/// Refuses what evals have no use for.
pub(super) fn supported(eval: &EvalSpec) -> Result<(), TrialError> {
    let refuse = |what: &str| {
        let message = format!("an eval's environment has no {what}");
        let (class, retry) = (Class::Task, Retry::Permanent);
        TrialError::new(Type::TaskInvalid, Code::REFUSED, class, retry, message)
    };
    let own = eval.sweep_environment.as_deref().map(|own| &own.environment);
    for environment in [Some(&eval.environment), own].into_iter().flatten() {
        if environment.compose.is_some() {
            return Err(refuse("services beside it"));
        }
        if environment.healthcheck.is_some() {
            return Err(refuse("health check"));
        }
    }
    Ok(())
}

/// Files that every trial may have, too.
pub(super) fn task_files(error: &FilesError) -> TrialError {
    let (code, retry) = error.reason().unwrap_or((Code::STORE_FAILED, Retry::Transient));
    TrialError::new(Type::EnvironmentStartFailed, code, OURS, retry, error.chain())
}

/// The repository, the checkout, the commit.
pub(super) fn files(error: &EvalFilesError, redactor: &Redactor) -> TrialError {
    let message = redactor.text(&error.chain());
    let kind = Type::AgentExecutionFailed;
    match error {
        EvalFilesError::NotCommittable { .. } => {
            let (code, class) = (Code::REFUSED, Class::Agent);
            TrialError::new(kind, code, class, Retry::Permanent, message)
        }
        EvalFilesError::Torn { .. } => {
            TrialError::transient(kind, Code::COLLECTION_FAILED, message)
        }
        EvalFilesError::Store { source, .. } => {
            let retry = if source.is_transient() { Retry::Transient } else { Retry::Permanent };
            let kind = Type::EnvironmentStartFailed;
            TrialError::new(kind, Code::STORE_FAILED, OURS, retry, message)
        }
        EvalFilesError::Chain { .. } | EvalFilesError::TooLarge { .. } => {
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
            let code = shortage_code(Shortage::of_cause(source)).unwrap_or(Code::PROVIDER_ERROR);
            TrialError::transient(Type::InternalError, code, message)
        }
    }
}

/// The agent removed the checkout.
pub(super) fn no_checkout() -> TrialError {
    let (kind, code) = (Type::AgentExecutionFailed, Code::REFUSED);
    TrialError::new(kind, code, Class::Agent, Retry::Permanent, "the checkout is gone")
}

/// The sweep ended well, and there are no results.
pub(super) fn no_results(code: Code, why: &str, redactor: &Redactor) -> TrialError {
    let missing = code == Code::REWARD_MISSING;
    let kind = if missing { Type::VerifierRewardMissing } else { Type::VerifierRewardInvalid };
    let message = redactor.text(why);
    TrialError::new(kind, code, Class::Verifier, Retry::Permanent, message)
}

/// Results that could not be read.
pub(super) fn unreadable(why: &str, redactor: &Redactor) -> TrialError {
    let message = redactor.text(why);
    let error = TrialError::transient(Type::VerifierFailed, Code::COLLECTION_FAILED, message);
    error.in_phase(Phase::Collection)
}

/// Logs or captured output that could not be kept, or not whole.
pub(super) fn not_collected(why: &str, redactor: &Redactor) -> TrialError {
    let (kind, code) = (Type::InternalError, Code::COLLECTION_FAILED);
    let error = TrialError::new(kind, code, OURS, Retry::Permanent, redactor.text(why));
    error.in_phase(Phase::Collection)
}

/// Processes that may still be alive.
pub(super) fn processes_left(failure: &Failure, phase: Phase, redactor: &Redactor) -> TrialError {
    let (kind, code) = (Type::InternalError, Code::PROCESSES_LEFT);
    let message = redactor.text(&failure.chain());
    TrialError::new(kind, code, OURS, Retry::Permanent, message).in_phase(phase)
}

/// A panic of ours.
pub(super) fn panicked(message: &str, phase: Phase, redactor: &Redactor) -> TrialError {
    let message = redactor.text(&format!("a defect in phase {phase}: {message}"));
    let error = TrialError::new(Type::InternalError, Code::BUG, OURS, Retry::Permanent, message);
    error.in_phase(phase)
}
