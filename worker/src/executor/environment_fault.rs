//! Faults of this host that environments met while an execution ran: something outside removed one, or the
//! proxy of its allowed hosts failed. A command that failed in one says nothing about the agent or the task.

use rollout_environment::Failure;
use rollout_protocol::error::{ErrorCode, TrialError};

use super::environment::ManagedEnvironment;
use super::host_fault::FaultedExecution;

/// A fault that an environment met.
#[derive(Debug)]
pub(crate) enum EnvironmentFault {
    /// It was removed.
    Removed(Failure),
    /// The proxy of this process did not serve the hosts of one of its allowlists.
    Unserved(String),
}

impl EnvironmentFault {
    /// The first fault of these environments.
    pub(crate) async fn detect(environments: Vec<&ManagedEnvironment>) -> Option<Self> {
        for running in environments.iter().copied().filter_map(ManagedEnvironment::running) {
            if let Err(failure) = running.check_exists().await {
                return Some(Self::Removed(failure));
            }
        }
        let unserved = environments.into_iter().find_map(ManagedEnvironment::any_access_fault);
        unserved.map(Self::Unserved)
    }

    /// The fault that an environment has at present: it was removed, or the allowlist in force is not served.
    pub(crate) async fn at_present(environment: &ManagedEnvironment) -> Option<Self> {
        match environment.running()?.check_exists().await {
            Err(failure) => Some(Self::Removed(failure)),
            Ok(()) => environment.access_fault().map(Self::Unserved),
        }
    }

    /// The error of an execution.
    pub(crate) fn error(&self, execution: FaultedExecution<'_>) -> TrialError {
        match self {
            Self::Removed(failure) => {
                execution.blame_host(&failure.chain(), ErrorCode::ENVIRONMENT_LOST)
            }
            Self::Unserved(why) => {
                let fault = format!("the proxy of the allowed hosts failed ({why})");
                execution.blame_host(&fault, ErrorCode::PROVIDER_ERROR)
            }
        }
    }
}
