//! Errors of environment setup.

use std::time::Duration;

use rollout_base::secrets::Redactor;
use rollout_base::shortage::Shortage;
use rollout_environment::{Failure, FailureKind as Kind};
use rollout_gateway::GatewayError;
use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::phase::Phase;

use super::{
    BUG, ErrorReason, INFRASTRUCTURE, UNSUPPORTED, panicked, placement_reason, shortage_code,
    trial_error,
};
use crate::executor::environment::CreationFailure;
use crate::executor::files::FilesError;

/// Why an environment could not be set up.
#[derive(Debug)]
pub(crate) enum SetupError {
    /// A variable that was not exported to trials.
    Unset(rollout_protocol::template::UnsetVariable),
    /// This worker does not have the provider.
    NoProvider(String),
    /// This worker has no model gateway.
    NoGateway,
    /// The model gateway cannot be used.
    Gateway(GatewayError),
    /// The environment has no way to the model gateway.
    GatewayRoute(Failure),
    /// The scratch directory cannot be written.
    Disk(std::io::Error),
    /// Files of the task are not available.
    Files(FilesError),
    /// The trajectory that the agent is to continue cannot be read.
    Trajectory(String),
    /// The image could not be pulled (`named`) or built.
    Image { named: bool, limit: Duration, failure: Failure },
    /// The environment could not be created or started.
    Create(Failure),
    /// Files of a step that could not be placed.
    Place(Failure),
    /// The environment runs, but its healthcheck never succeeded.
    Unhealthy { check: &'static str, failures: u32, why: String, hint: &'static str },
}

impl SetupError {
    pub(crate) fn into_error(self, redactor: &Redactor) -> TrialError {
        let start = Type::EnvironmentStartFailed;
        match self {
            Self::Unset(unset) => {
                let hint = "export it to trials where the worker runs, or give it a default";
                // Another worker may have the variable.
                let reason = (start, Code::VARIABLE_UNSET, INFRASTRUCTURE, Retry::Transient);
                trial_error(reason, &format!("{unset}: {hint}"), redactor)
            }
            Self::NoProvider(provider) => {
                let reason = (start, Code::UNPLACEABLE, INFRASTRUCTURE, Retry::Transient);
                trial_error(reason, &format!("this worker has no provider `{provider}`"), redactor)
            }
            Self::NoGateway => {
                let reason = (start, Code::UNPLACEABLE, INFRASTRUCTURE, Retry::Transient);
                trial_error(reason, "this worker was built without the model gateway", redactor)
            }
            Self::Gateway(error) => trial_error(gateway_reason(&error), &error.chain(), redactor),
            Self::GatewayRoute(failure) => {
                let message = format!("cannot reach the model gateway: {}", failure.chain());
                trial_error(creation_reason(failure.kind), &message, redactor)
            }
            Self::Disk(source) => trial_error(
                disk_reason(start, &source),
                &format!("cannot write to the scratch directory: {source}"),
                redactor,
            ),
            Self::Files(files) => trial_error(files.as_reason(start), &files.chain(), redactor),
            Self::Trajectory(why) => {
                let reason = (Type::TaskInvalid, Code::MISSING_FILE, Class::Task, Retry::Permanent);
                trial_error(reason, &format!("the trajectory cannot be read: {why}"), redactor)
            }
            Self::Image { named, limit, failure } => {
                let (what, hint) = if named {
                    ("pulling the image", "")
                } else {
                    ("building the image", "; the limit is environment.build_timeout_sec")
                };
                let message = match failure.kind {
                    Kind::TimedOut => format!("{what} took longer than {limit:?}{hint}"),
                    _ => failure.chain(),
                };
                trial_error(image_reason(named, failure.kind), &message, redactor)
            }
            Self::Create(failure) => {
                trial_error(creation_reason(failure.kind), &failure.chain(), redactor)
            }
            Self::Place(failure) => {
                let message = format!("cannot place the step's files: {}", failure.chain());
                trial_error(placement_reason(start, failure.kind), &message, redactor)
            }
            Self::Unhealthy { check, failures, why, hint } => {
                // The task defines both the environment and the check: the same image would fail
                // the same way again.
                let reason = (start, Code::UNHEALTHY, Class::Task, Retry::Permanent);
                let message = format!("the {check} failed {failures} times in a row: {why}{hint}");
                trial_error(reason, &message, redactor)
            }
        }
    }
}

fn image_reason(named: bool, kind: Kind) -> ErrorReason {
    let (failed, late) = if named {
        (Type::EnvironmentImagePullFailed, Type::EnvironmentImagePullFailed)
    } else {
        (Type::EnvironmentBuildFailed, Type::EnvironmentBuildTimeout)
    };
    match kind {
        Kind::Refused | Kind::Unusable => (failed, Code::REFUSED, Class::Task, Retry::Permanent),
        Kind::Unsupported => UNSUPPORTED,
        Kind::Resources => resources_reason(),
        Kind::NotPermitted => not_permitted_reason(),
        Kind::DiskFull => (failed, Code::DISK_FULL, INFRASTRUCTURE, Retry::Transient),
        Kind::Exhausted => (failed, Code::HOST_EXHAUSTED, INFRASTRUCTURE, Retry::Transient),
        Kind::Unreachable => (failed, Code::UNREACHABLE, INFRASTRUCTURE, Retry::Transient),
        Kind::TimedOut => (late, Code::TIMED_OUT, INFRASTRUCTURE, Retry::Transient),
        Kind::NotStarted
        | Kind::Gone
        | Kind::Service
        | Kind::LeftBehind
        // Of environments only: none exists yet.
        | Kind::StorageExceeded => (failed, Code::PROVIDER_ERROR, INFRASTRUCTURE, Retry::Transient),
        Kind::Bug => BUG,
    }
}

fn creation_reason(kind: Kind) -> ErrorReason {
    let failed = Type::EnvironmentStartFailed;
    match kind {
        Kind::Refused => (failed, Code::REFUSED, Class::Task, Retry::Permanent),
        Kind::Unsupported => UNSUPPORTED,
        Kind::Resources => resources_reason(),
        Kind::NotPermitted => not_permitted_reason(),
        Kind::NotStarted => (failed, Code::EXEC_NOT_STARTED, INFRASTRUCTURE, Retry::Transient),
        // The task's own services: they would fail the same way again.
        Kind::Unusable => (failed, Code::UNHEALTHY, Class::Task, Retry::Permanent),
        Kind::Gone => (failed, Code::ENVIRONMENT_LOST, INFRASTRUCTURE, Retry::Transient),
        Kind::DiskFull => (failed, Code::DISK_FULL, INFRASTRUCTURE, Retry::Transient),
        Kind::Exhausted => (failed, Code::HOST_EXHAUSTED, INFRASTRUCTURE, Retry::Transient),
        // Only the task's image and files are in it yet.
        Kind::StorageExceeded => (failed, Code::STORAGE_EXCEEDED, Class::Task, Retry::Permanent),
        Kind::Unreachable => (failed, Code::UNREACHABLE, INFRASTRUCTURE, Retry::Transient),
        Kind::TimedOut => (failed, Code::TIMED_OUT, INFRASTRUCTURE, Retry::Transient),
        Kind::Service | Kind::LeftBehind => {
            (failed, Code::PROVIDER_ERROR, INFRASTRUCTURE, Retry::Transient)
        }
        Kind::Bug => BUG,
    }
}

fn resources_reason() -> ErrorReason {
    let failed = Type::EnvironmentResourceAllocationFailed;
    (failed, Code::UNPLACEABLE, INFRASTRUCTURE, Retry::Permanent)
}

fn not_permitted_reason() -> ErrorReason {
    (Type::EnvironmentStartFailed, Code::NOT_PERMITTED, INFRASTRUCTURE, Retry::Permanent)
}

fn gateway_reason(error: &GatewayError) -> ErrorReason {
    let failed = Type::EnvironmentStartFailed;
    match error {
        GatewayError::Records { source, .. } => disk_reason(failed, source),
        // The job or the host must be corrected.
        GatewayError::Address { .. }
        | GatewayError::Models { .. }
        | GatewayError::Key(_)
        | GatewayError::Certificates(_) => {
            (failed, Code::REFUSED, INFRASTRUCTURE, Retry::Permanent)
        }
        GatewayError::Listen { .. } => {
            (failed, Code::PROVIDER_ERROR, INFRASTRUCTURE, Retry::Transient)
        }
    }
}

fn disk_reason(kind: Type, source: &std::io::Error) -> ErrorReason {
    (
        kind,
        shortage_code(Shortage::from_io_error(source)).unwrap_or(Code::DISK_FAILED),
        INFRASTRUCTURE,
        Retry::Transient,
    )
}

impl CreationFailure {
    /// The error of an environment that was not created.
    pub(crate) fn into_error(self, redactor: &Redactor) -> TrialError {
        match self {
            Self::Failed(failure) => SetupError::Create(failure).into_error(redactor),
            Self::Panicked(message) => panicked(&message, Phase::EnvironmentSetup, redactor),
        }
    }
}
