//! Errors of using a NATS server.

use std::time::Duration;

use rollout_queue::nats::{BindError, ConnectError, NatsSetupError};
use rollout_queue::traits::QueueError;

/// Error that prevents a run from using a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The streams of the deployment are missing or differ.
    #[error(transparent)]
    Setup(#[from] NatsSetupError),
    /// The pool is bound to another blob store.
    #[error("the workers of the pool use another blob store")]
    Bind(#[source] BindError),
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<BindError> for ServerError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Queue(error) => Self::Queue(error),
            error @ BindError::OtherStore { .. } => Self::Bind(error),
        }
    }
}

impl ServerError {
    /// Whether another attempt may succeed.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Connect(error) => matches!(error, ConnectError::Unreachable { .. }),
            Self::Setup(error) => error.is_passing(),
            Self::Queue(error) => matches!(error, QueueError::Unreachable { .. }),
            Self::Bind(_) => false,
        }
    }

    /// The error of the last attempt of this period.
    pub(super) fn after_attempts(mut self, period: Duration) -> Self {
        if let Self::Connect(ConnectError::Unreachable { reason, .. })
        | Self::Setup(
            NatsSetupError::Queue(QueueError::Unreachable { reason })
            | NatsSetupError::Copies { reason, .. },
        )
        | Self::Queue(QueueError::Unreachable { reason }) = &mut self
        {
            reason.push_str(&format!(" (tried for {period:?})"));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_without_all_its_servers_is_waited_for() {
        let copies = |reason: &str| {
            let (name, reason) = ("WORK".to_owned(), reason.to_owned());
            ServerError::from(NatsSetupError::Copies { name, wanted: 3, reason })
        };
        let starting = copies("no suitable peers for placement, peer offline");
        assert!(starting.is_passing());
        let text = starting.after_attempts(Duration::from_secs(60)).to_string();
        assert!(text.ends_with("peer offline (tried for 60s)"), "{text}");
        assert!(!copies("replicas > 1 not supported in non-clustered mode").is_passing());
    }

    #[test]
    fn server_unreachable_error_states_period_of_attempts() {
        let (address, reason) = ("nats://h:1".to_owned(), "timed out".to_owned());
        let error = ServerError::from(ConnectError::Unreachable { address, reason });
        assert_eq!(
            error.after_attempts(Duration::from_secs(60)).to_string(),
            "cannot reach the NATS server nats://h:1: timed out (tried for 60s)"
        );
        let error = ServerError::from(QueueError::Unreachable { reason: "lost".to_owned() });
        let text = error.after_attempts(Duration::from_secs(60)).to_string();
        assert!(text.ends_with("lost (tried for 60s)"), "{text}");
    }
}
