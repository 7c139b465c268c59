//! From what went wrong in a phase to the error that stands in the record: one exhaustive table per
//! phase and nothing elsewhere.
//!
//! An environment that disappears under a script is the infrastructure's failure: it gets the type
//! of the phase, class `infrastructure`, code `environment_lost`, may be retried and never scores.
//! Errors that have no type of their own among the seventeen (collection, processes that survive
//! every attempt to end them) are `internal_error` with a code that says more.

use std::time::Duration;

use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::phase::Phase;

use super::artifacts::Lack;
use crate::archive::ArchiveError;
use crate::environment::{Failure, FailureKind as Kind};
use crate::executor::FilesError;
use crate::secrets::Redactor;
use crate::shortage::Shortage;

/// Type, code, class and retry class of an error.
type Reason = (Type, Code, Class, Retry);

const OURS: Class = Class::Infrastructure;
/// As [`TrialError::unsupported`]: seen in the environment, not in the plan.
const UNSUPPORTED: Reason =
    (Type::TaskInvalid, Code::UNSUPPORTED_BY_ENVIRONMENT, Class::Task, Retry::Permanent);
const BUG: Reason = (Type::InternalError, Code::BUG, OURS, Retry::Permanent);

/// An error whose message shows no secrets.
fn error((kind, code, class, retry): Reason, message: &str, redactor: &Redactor) -> TrialError {
    TrialError::new(kind, code, class, retry, redactor.text(message))
}

/// Why there is no environment to run in.
#[derive(Debug)]
pub(super) enum SetupError {
    /// A variable that was not exported to trials.
    Unset(rollout_protocol::template::Unset),
    /// This worker has no such provider.
    NoProvider(String),
    /// Something on the worker's disk.
    Disk(std::io::Error),
    /// Files of the task.
    Files(FilesError),
    /// The image; whether it was named rather than built.
    Image { named: bool, limit: Duration, failure: Failure },
    /// Creation and start.
    Create(Failure),
    /// Files of a step that could not be placed.
    Place(Failure),
    /// It is there, but its own check says that it never became ready.
    Unhealthy { failures: u32, why: String },
}

impl SetupError {
    pub(super) fn into_error(self, redactor: &Redactor) -> TrialError {
        let start = Type::EnvironmentStartFailed;
        match self {
            Self::Unset(unset) => {
                let hint = "export it to trials where the worker runs, or give it a default";
                // Another worker may have what this one has not.
                let reason = (start, Code::VARIABLE_UNSET, OURS, Retry::Transient);
                error(reason, &format!("{unset}: {hint}"), redactor)
            }
            Self::NoProvider(provider) => {
                let reason = (start, Code::UNPLACEABLE, OURS, Retry::Transient);
                error(reason, &format!("this worker has no provider `{provider}`"), redactor)
            }
            Self::Disk(source) => {
                error(disk(start, &source), &format!("preparing the trial: {source}"), redactor)
            }
            Self::Files(files) => files.into_error(start, redactor),
            Self::Image { named, limit, failure } => {
                let (what, hint) = if named {
                    ("pulling the image", "")
                } else {
                    ("building the image", "; environment.build_timeout_sec is the limit")
                };
                let message = match failure.kind {
                    Kind::TimedOut => format!("{what} took longer than {limit:?}{hint}"),
                    _ => failure.chain(),
                };
                error(image(named, failure.kind), &message, redactor)
            }
            Self::Create(failure) => error(create(failure.kind), &failure.chain(), redactor),
            Self::Place(failure) => {
                let message = format!("placing the step's files: {}", failure.chain());
                error(place(start, failure.kind), &message, redactor)
            }
            Self::Unhealthy { failures, why } => {
                // What runs in the environment, and what asks it, are the task's own: the same
                // image would start the same way once more.
                let reason = (start, Code::UNHEALTHY, Class::Task, Retry::Permanent);
                let message = format!("the healthcheck failed {failures} times in a row: {why}");
                error(reason, &message, redactor)
            }
        }
    }
}

fn image(named: bool, kind: Kind) -> Reason {
    let (failed, late) = if named {
        (Type::EnvironmentImagePullFailed, Type::EnvironmentImagePullFailed)
    } else {
        (Type::EnvironmentBuildFailed, Type::EnvironmentBuildTimeout)
    };
    match kind {
        Kind::Refused | Kind::Unusable => (failed, Code::REFUSED, Class::Task, Retry::Permanent),
        Kind::Unsupported => UNSUPPORTED,
        Kind::Resources => resources(),
        Kind::NotPermitted => not_permitted(),
        Kind::DiskFull => (failed, Code::DISK_FULL, OURS, Retry::Transient),
        Kind::Exhausted => (failed, Code::HOST_EXHAUSTED, OURS, Retry::Transient),
        Kind::Unreachable => (failed, Code::UNREACHABLE, OURS, Retry::Transient),
        Kind::TimedOut => (late, Code::TIMED_OUT, OURS, Retry::Transient),
        Kind::NotStarted
        | Kind::Gone
        | Kind::Service
        | Kind::LeftBehind
        // Of environments only: there is none yet.
        | Kind::StorageExceeded => (failed, Code::PROVIDER_ERROR, OURS, Retry::Transient),
        Kind::Bug => BUG,
    }
}

fn create(kind: Kind) -> Reason {
    let failed = Type::EnvironmentStartFailed;
    match kind {
        Kind::Refused => (failed, Code::REFUSED, Class::Task, Retry::Permanent),
        Kind::Unsupported => UNSUPPORTED,
        Kind::Resources => resources(),
        Kind::NotPermitted => not_permitted(),
        Kind::NotStarted => (failed, Code::EXEC_NOT_STARTED, OURS, Retry::Transient),
        // The task's own services: they would fail the same way once more.
        Kind::Unusable => (failed, Code::UNHEALTHY, Class::Task, Retry::Permanent),
        Kind::Gone => (failed, Code::ENVIRONMENT_LOST, OURS, Retry::Transient),
        Kind::DiskFull => (failed, Code::DISK_FULL, OURS, Retry::Transient),
        Kind::Exhausted => (failed, Code::HOST_EXHAUSTED, OURS, Retry::Transient),
        // Nothing but the task's image and files is in it yet.
        Kind::StorageExceeded => (failed, Code::STORAGE_EXCEEDED, Class::Task, Retry::Permanent),
        Kind::Unreachable => (failed, Code::UNREACHABLE, OURS, Retry::Transient),
        Kind::TimedOut => (failed, Code::TIMED_OUT, OURS, Retry::Transient),
        Kind::Service | Kind::LeftBehind => (failed, Code::PROVIDER_ERROR, OURS, Retry::Transient),
        Kind::Bug => BUG,
    }
}

fn resources() -> Reason {
    let failed = Type::EnvironmentResourceAllocationFailed;
    (failed, Code::UNPLACEABLE, OURS, Retry::Permanent)
}

fn not_permitted() -> Reason {
    (Type::EnvironmentStartFailed, Code::NOT_PERMITTED, OURS, Retry::Permanent)
}

fn disk(kind: Type, source: &std::io::Error) -> Reason {
    (
        kind,
        shortage_code(Shortage::of(source)).unwrap_or(Code::PROVIDER_ERROR),
        OURS,
        Retry::Transient,
    )
}

/// The code for what the host ran out of.
pub(crate) fn shortage_code(shortage: Option<Shortage>) -> Option<Code> {
    shortage.map(|shortage| match shortage {
        Shortage::Disk => Code::DISK_FULL,
        Shortage::Host => Code::HOST_EXHAUSTED,
    })
}

/// Whose script runs: it decides the types and the class of its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// A step's own setup.
    Prepare,
    Install,
    Execute,
    Verify,
}

impl Stage {
    const fn failed(self) -> Type {
        match self {
            Self::Prepare => Type::EnvironmentStartFailed,
            Self::Install => Type::AgentInstallFailed,
            Self::Execute => Type::AgentExecutionFailed,
            Self::Verify => Type::VerifierFailed,
        }
    }

    const fn late(self) -> Type {
        match self {
            Self::Prepare => Type::EnvironmentStartFailed,
            Self::Install => Type::AgentInstallTimeout,
            Self::Execute => Type::AgentExecutionTimeout,
            Self::Verify => Type::VerifierTimeout,
        }
    }

    const fn class(self) -> Class {
        match self {
            Self::Prepare => Class::Task,
            Self::Install | Self::Execute => Class::Agent,
            Self::Verify => Class::Verifier,
        }
    }

    const fn script(self) -> &'static str {
        match self {
            Self::Prepare => "the step's setup script",
            Self::Install => "the install script",
            Self::Execute => "the execute script",
            Self::Verify => "the test script",
        }
    }

    /// Directory of the script's output below the trial's.
    pub(super) const fn directory(self) -> &'static str {
        match self {
            Self::Prepare | Self::Install => "setup",
            Self::Execute => "command",
            Self::Verify => "logs/verifier",
        }
    }
}

/// Why a script did not end well.
#[derive(Debug)]
pub(super) enum ScriptError {
    /// It ended with a code other than 0; its last words on standard error.
    Exit { code: i32, oom_killed: bool, last_words: String },
    /// It reached its limit.
    TimedOut { limit: Duration },
    /// It could not be run, or its end is not known.
    Exec(Failure),
    /// The verifier's files could not be placed.
    Place(Failure),
    /// The task's files are not at hand.
    Files(FilesError),
    /// What the agent left running could not be ended before verification.
    Left(Failure),
    /// What it may reach could not be set.
    Network(Failure),
    /// What is to be verified is not whole.
    Lacking(Lack),
}

/// What a code other than 0 means, and how that is told behind it.
pub(crate) fn ending(code: i32, oom_killed: bool) -> (Code, String) {
    match code {
        137 if oom_killed => (Code::OOM_KILLED, " (out of memory)".to_owned()),
        129..=192 => (Code::KILLED_BY_SIGNAL, format!(" (signal {})", code - 128)),
        _ => (Code::NON_ZERO_EXIT, String::new()),
    }
}

impl ScriptError {
    pub(super) fn into_error(self, stage: Stage, redactor: &Redactor) -> TrialError {
        let (failed, class, script) = (stage.failed(), stage.class(), stage.script());
        match self {
            Self::Exit { code, oom_killed, last_words } => {
                let (end, how) = ending(code, oom_killed);
                let said = if last_words.is_empty() { "" } else { ": " };
                let message = format!("{script} ended with code {code}{how}{said}{last_words}");
                error((failed, end, class, Retry::Permanent), &message, redactor)
            }
            Self::TimedOut { limit } => {
                let reason = (stage.late(), Code::TIMED_OUT, class, Retry::Permanent);
                error(reason, &format!("{script} was ended after {limit:?}"), redactor)
            }
            Self::Exec(failure) => {
                let message = format!("{script}: {}", failure.chain());
                error(exec(stage, failure.kind), &message, redactor)
            }
            Self::Place(failure) => {
                let message = format!("placing the tests: {}", failure.chain());
                error(place(failed, failure.kind), &message, redactor)
            }
            Self::Files(files) => files.into_error(failed, redactor),
            Self::Left(failure) => {
                let message = format!("ending the agent's processes: {}", failure.chain());
                let reason = (failed, Code::PROCESSES_LEFT, OURS, Retry::Transient);
                error(reason, &message, redactor)
            }
            Self::Network(failure) => {
                let message = format!("what {script} may reach: {}", failure.chain());
                let reason = match failure.kind {
                    // Never run it with more than it may have: that the provider cannot do it is
                    // between the task and the job.
                    Kind::Refused => (failed, Code::REFUSED, Class::Task, Retry::Permanent),
                    Kind::Unsupported => UNSUPPORTED,
                    Kind::NotPermitted => (failed, Code::NOT_PERMITTED, OURS, Retry::Permanent),
                    kind => place(failed, kind),
                };
                error(reason, &message, redactor)
            }
            Self::Lacking(Lack::TooLarge(why)) => {
                let reason = (failed, Code::STORAGE_EXCEEDED, Class::Agent, Retry::Permanent);
                error(reason, &format!("what is to be verified: {why}"), redactor)
            }
            Self::Lacking(Lack::Unread(why)) => {
                let reason = (failed, Code::COLLECTION_FAILED, OURS, Retry::Transient);
                error(reason, &format!("what is to be verified: {why}"), redactor)
            }
        }
    }
}

fn exec(stage: Stage, kind: Kind) -> Reason {
    let (failed, class) = (stage.failed(), stage.class());
    match kind {
        Kind::NotStarted | Kind::Unusable => {
            (failed, Code::EXEC_NOT_STARTED, class, Retry::Permanent)
        }
        Kind::Refused => (failed, Code::REFUSED, class, Retry::Permanent),
        Kind::Unsupported => UNSUPPORTED,
        Kind::StorageExceeded => (failed, Code::STORAGE_EXCEEDED, class, Retry::Permanent),
        Kind::Gone => lost(failed),
        Kind::Unreachable => (failed, Code::UNREACHABLE, OURS, Retry::Transient),
        Kind::NotPermitted => (failed, Code::NOT_PERMITTED, OURS, Retry::Permanent),
        Kind::DiskFull => (failed, Code::DISK_FULL, OURS, Retry::Transient),
        Kind::Exhausted => (failed, Code::HOST_EXHAUSTED, OURS, Retry::Transient),
        // The environment is there: what lacks is the host's, and only just now.
        Kind::Resources | Kind::TimedOut | Kind::Service | Kind::LeftBehind => {
            (failed, Code::PROVIDER_ERROR, OURS, Retry::Transient)
        }
        Kind::Bug => BUG,
    }
}

fn place(failed: Type, kind: Kind) -> Reason {
    match kind {
        Kind::Unsupported => UNSUPPORTED,
        Kind::Refused | Kind::NotPermitted => (failed, Code::REFUSED, OURS, Retry::Permanent),
        // What fills the environment's storage before the tests come is the agent's doing.
        Kind::StorageExceeded => (failed, Code::STORAGE_EXCEEDED, Class::Agent, Retry::Permanent),
        // So is a file or link of its own where files have to be placed.
        Kind::Unusable => (failed, Code::REFUSED, Class::Agent, Retry::Permanent),
        Kind::Gone => lost(failed),
        Kind::Unreachable => (failed, Code::UNREACHABLE, OURS, Retry::Transient),
        Kind::DiskFull => (failed, Code::DISK_FULL, OURS, Retry::Transient),
        Kind::Exhausted => (failed, Code::HOST_EXHAUSTED, OURS, Retry::Transient),
        Kind::Resources | Kind::NotStarted | Kind::TimedOut | Kind::Service | Kind::LeftBehind => {
            (failed, Code::PROVIDER_ERROR, OURS, Retry::Transient)
        }
        Kind::Bug => BUG,
    }
}

fn lost(failed: Type) -> Reason {
    (failed, Code::ENVIRONMENT_LOST, OURS, Retry::Transient)
}

impl FilesError {
    fn into_error(self, failed: Type, redactor: &Redactor) -> TrialError {
        let reason = self.reason().map_or(BUG, |(code, retry)| (failed, code, OURS, retry));
        error(reason, &self.chain(), redactor)
    }

    /// Code and retry class; `None` for a defect.
    pub(crate) fn reason(&self) -> Option<(Code, Retry)> {
        if let Some(code) = shortage_code(Shortage::of_cause(self)) {
            return Some((code, Retry::Transient));
        }
        Some(match self {
            Self::Store { source, .. } if source.is_transient() => {
                (Code::STORE_FAILED, Retry::Transient)
            }
            Self::Store { .. } => (Code::STORE_FAILED, Retry::Permanent),
            Self::Unpack { source: ArchiveError::Io { .. }, .. } | Self::Disk { .. } => {
                (Code::PROVIDER_ERROR, Retry::Transient)
            }
            Self::Unpack { .. } => return None,
        })
    }
}

/// Why a verifier that ended well gave no reward.
#[derive(Debug)]
pub(super) enum RewardError {
    /// None of the files is there; the code of the test script, where it is not 0.
    Missing { files: &'static [&'static str], exit: Option<i32> },
    /// There is something else.
    Invalid { file: &'static str, why: String },
    /// It could not be read.
    Unreadable { file: &'static str, why: String },
}

impl RewardError {
    pub(super) fn into_error(self, redactor: &Redactor) -> TrialError {
        let logs = crate::verifier::VERIFIER_LOGS;
        let theirs = |kind, code| (kind, code, Class::Verifier, Retry::Permanent);
        match self {
            Self::Missing { files, exit } => {
                let reason = theirs(Type::VerifierRewardMissing, Code::REWARD_MISSING);
                let left = exit.map_or_else(
                    || "left".to_owned(),
                    |code| format!("ended with code {code} and left"),
                );
                let message = format!("the test script {left} no {logs}/{}", files.join(" or "));
                error(reason, &message, redactor)
            }
            Self::Invalid { file, why } => {
                let reason = theirs(Type::VerifierRewardInvalid, Code::REWARD_INVALID);
                error(reason, &format!("{logs}/{file} has no reward: {why}"), redactor)
            }
            Self::Unreadable { file, why } => {
                let reason =
                    (Type::VerifierFailed, Code::COLLECTION_FAILED, OURS, Retry::Transient);
                error(reason, &format!("{logs}/{file} could not be read: {why}"), redactor)
                    .in_phase(Phase::Collection)
            }
        }
    }
}

/// A command that should have made a result ready to be taken.
pub(super) fn not_ready(command: &str, why: &str, redactor: &Redactor) -> TrialError {
    let reason = (Type::InternalError, Code::COLLECTION_FAILED, Class::Task, Retry::Permanent);
    let message = format!("collecting by `{command}`: {why}");
    error(reason, &message, redactor).in_phase(Phase::Collection)
}

/// `/logs` or captured output that could not be kept, or not whole.
pub(super) fn not_collected(why: &str, redactor: &Redactor) -> TrialError {
    let reason = (Type::InternalError, Code::COLLECTION_FAILED, OURS, Retry::Permanent);
    error(reason, why, redactor).in_phase(Phase::Collection)
}

/// The same, by what the host ran out of.
pub(super) fn output_lost(
    why: &str,
    shortage: Option<Shortage>,
    redactor: &Redactor,
) -> TrialError {
    let error = not_collected(why, redactor);
    let code = shortage_code(shortage).unwrap_or_else(|| error.code.clone());
    TrialError { code, ..error }
}

/// Processes that may still be alive.
pub(super) fn processes_left(failure: &Failure, phase: Phase, redactor: &Redactor) -> TrialError {
    let reason = (Type::InternalError, Code::PROCESSES_LEFT, OURS, Retry::Permanent);
    error(reason, &failure.chain(), redactor).in_phase(phase)
}

/// A panic of ours.
pub(super) fn panicked(message: &str, phase: Phase, redactor: &Redactor) -> TrialError {
    error(BUG, &format!("a defect in phase {phase}: {message}"), redactor).in_phase(phase)
}

/// An environment that could not be stopped, kept or removed. Never a reason to try again: the
/// trial itself is over.
pub(super) fn teardown(failure: &Failure, redactor: &Redactor) -> TrialError {
    let code = match failure.kind {
        Kind::Refused => Code::REFUSED,
        Kind::Unsupported => Code::UNSUPPORTED_BY_ENVIRONMENT,
        Kind::NotPermitted => Code::NOT_PERMITTED,
        Kind::Unreachable => Code::UNREACHABLE,
        Kind::TimedOut => Code::TIMED_OUT,
        Kind::DiskFull => Code::DISK_FULL,
        Kind::Exhausted => Code::HOST_EXHAUSTED,
        Kind::StorageExceeded => Code::STORAGE_EXCEEDED,
        Kind::Gone => Code::ENVIRONMENT_LOST,
        Kind::Resources | Kind::NotStarted | Kind::Unusable | Kind::Service | Kind::LeftBehind => {
            Code::PROVIDER_ERROR
        }
        Kind::Bug => Code::BUG,
    };
    let reason = (Type::EnvironmentTeardownFailed, code, OURS, Retry::Permanent);
    error(reason, &failure.chain(), redactor)
}

/// Why a task cannot run as it is: found before any environment.
pub(super) fn task_invalid(why: &str) -> TrialError {
    let reason = (Type::TaskInvalid, Code::MISSING_FILE, Class::Task, Retry::Permanent);
    error(reason, why, &Redactor::default())
}
