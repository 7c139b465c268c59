//! The error of an execution that met a fault of its host.

use rollout_base::secrets::Redactor;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::phase::Phase;

/// An execution that met a fault of its host, and has no result.
#[derive(Clone, Copy)]
pub(crate) struct FaultedExecution<'a> {
    /// Kind of the work, for the message.
    pub(crate) work: &'a str,
    /// The first error of the execution.
    pub(crate) cause: Option<&'a TrialError>,
    /// Type of the error without a cause.
    pub(crate) otherwise: ErrorType,
    /// End of the message without a cause.
    pub(crate) without_cause: &'a str,
    /// Masks secrets in the message.
    pub(crate) redactor: &'a Redactor,
}

impl FaultedExecution<'_> {
    /// The error for a fault of the host, such as `/ was full`. The execution is tried again.
    pub(super) fn blame_host(&self, fault: &str, code: ErrorCode) -> TrialError {
        let rest = self
            .cause
            .map_or_else(|| self.without_cause.to_owned(), |error| format!(": {}", error.message));
        let message = format!("{fault} while the {} ran{rest}", self.work);
        TrialError::transient(self.kind(), code, self.redactor.text(&message))
            .in_phase(self.phase())
    }

    /// The error for storage that the execution itself took beyond its limit.
    pub(super) fn blame_agent(&self, excess: &str) -> TrialError {
        TrialError::new(
            self.kind(),
            ErrorCode::STORAGE_EXCEEDED,
            ErrorClass::Agent,
            RetryClass::Permanent,
            self.redactor.text(excess),
        )
        .in_phase(self.phase())
    }

    fn kind(&self) -> ErrorType {
        self.cause.map_or(self.otherwise, |error| error.kind)
    }

    fn phase(&self) -> Phase {
        self.cause.map_or(self.kind().phase(), |error| error.phase)
    }
}
