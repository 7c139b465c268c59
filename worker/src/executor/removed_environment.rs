//! Environments that something outside removed while an execution ran. A script that failed in one says
//! nothing about the agent.

use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};

use crate::environment::{Environment, Failure};
use crate::secrets::Redactor;

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

    /// The error of an execution. `work` names its kind and `cause` is its first error. Without a
    /// cause, the type is `otherwise` and the message ends with `without_cause`.
    pub(crate) fn into_error(
        self,
        work: &str,
        cause: Option<&TrialError>,
        otherwise: ErrorType,
        without_cause: &str,
        redactor: &Redactor,
    ) -> TrialError {
        let kind = cause.map_or(otherwise, |error| error.kind);
        let phase = cause.map_or(kind.phase(), |error| error.phase);
        let rest =
            cause.map_or_else(|| without_cause.to_owned(), |error| format!(": {}", error.message));
        let message = format!("{} while the {work} ran{rest}", self.0.chain());
        TrialError::transient(kind, ErrorCode::ENVIRONMENT_LOST, redactor.text(&message))
            .in_phase(phase)
    }
}
