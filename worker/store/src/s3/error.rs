//! Errors of the service, by what to do about them.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use rollout_base::backoff::error_chain;
use rollout_protocol::limits;

use super::super::StoreError;

/// Codes of a service that cannot answer now, whatever their status.
const TRANSIENT_CODES: [&str; 7] = [
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
];

/// The status and code of an answer that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceAnswer {
    pub(super) status: u16,
    code: String,
    message: String,
}

/// A failed request.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The service answered with an error.
    Answer(ServiceAnswer),
    /// The request has no credentials to be signed with.
    Credentials(String),
    /// There was no answer.
    Silence(Box<dyn Error + Send + Sync>),
}

impl<E> From<SdkError<E, HttpResponse>> for RequestError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    fn from(error: SdkError<E, HttpResponse>) -> Self {
        if let (Some(service), Some(response)) = (error.as_service_error(), error.raw_response()) {
            return Self::Answer(ServiceAnswer {
                status: response.status().as_u16(),
                code: limits::shorten(service.code().unwrap_or_default().to_owned(), 80),
                message: limits::shorten(service.message().unwrap_or_default().to_owned(), 500),
            });
        }
        if let Some(reason) = credentials_error(&error) {
            return Self::Credentials(reason);
        }
        Self::Silence(Box::new(error))
    }
}

impl ServiceAnswer {
    /// Whether the service could not answer now.
    fn is_transient(&self) -> bool {
        self.status >= 500
            || matches!(self.status, 408 | 425 | 429)
            || TRANSIENT_CODES.contains(&self.code.as_str())
    }

    /// Whether the object does not exist, as opposed to the bucket.
    pub(super) fn is_no_object(&self) -> bool {
        self.status == 404 && self.code != "NoSuchBucket"
    }

    /// Whether the object exists already, or another request is creating it.
    pub(super) fn is_conflict(&self) -> bool {
        self.status == 412 || (self.status == 409 && self.code == "ConditionalRequestConflict")
    }

    fn reason(&self) -> String {
        let Self { status, code, message } = self;
        match (code.as_str(), message.as_str()) {
            // An answer to HEAD has no body.
            ("", "") if *status == 403 => "access denied (status 403)".to_owned(),
            ("", "") => format!("status {status}"),
            (code, "") => format!("{code} (status {status})"),
            ("", message) => format!("{message} (status {status})"),
            (code, message) => format!("{code}: {message} (status {status})"),
        }
    }
}

impl RequestError {
    /// The answer, if there was one.
    pub(super) fn answer(&self) -> Option<&ServiceAnswer> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Credentials(_) | Self::Silence(_) => None,
        }
    }

    /// The error of a store whose request to `action` failed.
    pub(super) fn into_store_error(self, store: &str, action: &'static str) -> StoreError {
        let store = store.to_owned();
        match self {
            Self::Answer(answer) if answer.is_transient() => {
                let source = answer.reason().into();
                StoreError::Unanswered { store, action, source }
            }
            Self::Answer(answer) => StoreError::Refused { store, action, reason: answer.reason() },
            Self::Credentials(reason) => StoreError::Refused { store, action, reason },
            Self::Silence(source) => StoreError::Unanswered { store, action, source },
        }
    }

    /// The same while the store is opened. Credentials that cannot be loaded are refused: a user
    /// corrects them. For a store that was opened before, their provider may answer again.
    pub(super) fn into_opening_error(self, store: &str, action: &'static str) -> StoreError {
        if let Self::Silence(error) = &self
            && let Some(failed) = failed_provider(&**error)
        {
            let reason = format!("cannot load credentials: {}", error_chain(failed));
            return Self::Credentials(reason).into_store_error(store, action);
        }
        self.into_store_error(store, action)
    }
}

/// The error of a provider that refused to give credentials, as opposed to one that is silent.
fn failed_provider<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CredentialsError> {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<CredentialsError>() {
            Some(
                failed @ (CredentialsError::ProviderError(_) | CredentialsError::Unhandled(_)),
            ) => return Some(failed),
            _ => next = error.source(),
        }
    }
    None
}

/// Why there are no credentials, if an error means that. A provider of credentials that does not
/// answer is no such reason: it may answer later.
fn credentials_error(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<CredentialsError>() {
            Some(CredentialsError::CredentialsNotLoaded(_)) => {
                return Some("there are no credentials".to_owned());
            }
            Some(wrong @ CredentialsError::InvalidConfiguration(_)) => {
                return Some(format!("cannot load credentials: {}", error_chain(wrong)));
            }
            _ => next = error.source(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(error: CredentialsError) -> RequestError {
        RequestError::Silence(Box::new(error))
    }

    #[test]
    fn failed_provider_of_credentials_is_refusal_only_while_store_is_opened() {
        let denied = || silence(CredentialsError::provider_error("status 403"));
        let opening = denied().into_opening_error("s3://b", "open");
        let StoreError::Refused { reason, .. } = &opening else { panic!("{opening:?}") };
        assert!(reason.contains("cannot load credentials") && reason.contains("403"), "{reason}");
        let later = denied().into_store_error("s3://b", "read");
        assert!(matches!(later, StoreError::Unanswered { .. }), "{later:?}");
    }

    #[test]
    fn silent_provider_of_credentials_is_no_answer() {
        let time = std::time::Duration::from_secs(5);
        let silent = silence(CredentialsError::provider_timed_out(time));
        let opening = silent.into_opening_error("s3://b", "open");
        assert!(matches!(opening, StoreError::Unanswered { .. }), "{opening:?}");
    }
}
