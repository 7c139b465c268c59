//! Failures of providers and environments.

use rollout_base::shortage::Shortage;

/// Failure of a provider or environment.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Its kind.
    pub kind: FailureKind,
    /// The operation, its object and the other side's message.
    pub message: String,
    /// The cause, if it is a separate error.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Kinds of [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The request itself is permanently wrong: a Dockerfile that does not build, an image that
    /// does not exist or is denied, an instruction that is not supported.
    Refused,
    /// The task needs something that this kind of environment, or its platform, does not have.
    Unsupported,
    /// The request exceeds the platform's resources.
    Resources,
    /// The host has no open files, memory or processes left at present.
    Exhausted,
    /// The environment stopped after its start, or a command could not be started in it.
    NotStarted,
    /// The environment no longer exists.
    Gone,
    /// The kernel or the platform forbids a required operation.
    NotPermitted,
    /// A disk of the host is full.
    DiskFull,
    /// Processes in the environment wrote more than its own storage limit allows.
    StorageExceeded,
    /// Content of the environment that a task or an agent put there cannot be used: a service that
    /// ended, a file where a directory is needed.
    Unusable,
    /// No answer: the service may be down.
    Unreachable,
    /// The timeout in the request expired before the work was done.
    TimedOut,
    /// An answer that reports a problem of the service itself.
    Service,
    /// An object that should have been removed is left.
    LeftBehind,
    /// A bug in this program.
    Bug,
}

impl FailureKind {
    /// The kind of a failure caused by a shortage of the host.
    pub fn from_shortage(shortage: Option<Shortage>) -> Option<Self> {
        shortage.map(|shortage| match shortage {
            Shortage::Disk => Self::DiskFull,
            Shortage::Host => Self::Exhausted,
        })
    }
}

impl Failure {
    /// A failure without a separate cause.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// A failure caused by a local error: a shortage, else of `kind`.
    pub fn local(kind: FailureKind, message: impl Into<String>, error: std::io::Error) -> Self {
        let kind = FailureKind::from_shortage(Shortage::from_io_error(&error)).unwrap_or(kind);
        Self::new(kind, message).with_source(error)
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The message with the chain of causes, without repetitions.
    pub fn chain(&self) -> String {
        let source = self.source.as_deref().map(|source| source as _);
        rollout_base::backoff::with_causes(self.message.clone(), source)
    }
}

/// A text and what the program that it is about said, or the text alone if that is nothing.
pub fn with_words(text: String, said: &str) -> String {
    match said.trim() {
        "" => text,
        said => format!("{text}: {said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_about_silent_program_ends_without_a_colon() {
        let text = |said| with_words("it ended with code 1".to_owned(), said);
        assert_eq!(text("no such file\n"), "it ended with code 1: no such file");
        for silent in ["", " ", "\n"] {
            assert_eq!(text(silent), "it ended with code 1", "{silent:?}");
        }
    }
}
