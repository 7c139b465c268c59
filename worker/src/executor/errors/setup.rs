//! Errors of an environment that did not come up.

use std::time::Duration;

use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::phase::Phase;

use super::{BUG, OURS, Reason, UNSUPPORTED, error, panicked, place, shortage_code};
use crate::environment::{Failure, FailureKind as Kind};
use crate::executor::environment::NotCreated;
use crate::executor::files::FilesError;
use crate::secrets::Redactor;
use crate::shortage::Shortage;

/// Why there is no environment to run in.
#[derive(Debug)]
pub(crate) enum SetupError {
    /// A variable that was not exported to trials.
    Unset(rollout_protocol::template::UnsetVariable),
    /// This worker has no such provider.
    NoProvider(String),
    /// The worker's disk takes no scratch directory.
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
    pub(crate) fn into_error(self, redactor: &Redactor) -> TrialError {
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
                error(disk(start, &source), &format!("preparing the execution: {source}"), redactor)
            }
            Self::Files(files) => error(files.as_reason(start), &files.chain(), redactor),
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

impl NotCreated {
    /// The error of an environment that was not created.
    pub(crate) fn into_error(self, redactor: &Redactor) -> TrialError {
        match self {
            Self::Failed(failure) => SetupError::Create(failure).into_error(redactor),
            Self::Panicked(message) => panicked(&message, Phase::EnvironmentSetup, redactor),
        }
    }
}
