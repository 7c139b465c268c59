//! Environments that something outside removed while an execution ran. A script that failed in one says
//! nothing about the agent.

use rollout_protocol::error::{ErrorCode, TrialError};

use super::host_fault::FaultedExecution;
use crate::environment::{Environment, Failure};

/// An environment that was removed.
#[derive(Debug)]
pub(crate) struct RemovedEnvironment(Failure);

impl RemovedEnvironment {
    /// The first of these environments that was removed.
    pub(crate) async fn detect(environments: Vec<&dyn Environment>) -> Option<Self> {
        for environment in environments {
            if let Err(failure) = environment.check_exists().await {
                return Some(Self(failure));
            }
        }
        None
    }

    /// The error of an execution.
    pub(crate) fn error(&self, execution: FaultedExecution<'_>) -> TrialError {
        execution.blame_host(&self.0.chain(), ErrorCode::ENVIRONMENT_LOST)
    }
}
