//! Errors of using a NATS server.

use rollout_worker::queue::nats::{BindError, ConnectError, NatsSetupError};
use rollout_worker::queue::traits::QueueError;

/// Error that prevents a run from using a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No connection.
    #[error("cannot connect to NATS")]
    Connect(#[from] ConnectError),
    /// The streams of the deployment are missing or differ.
    #[error("the NATS server is not set up")]
    Setup(#[from] NatsSetupError),
    /// The pool is bound to another blob store.
    #[error("the workers of the pool use another blob store")]
    Bind(#[source] BindError),
    /// The queue failed.
    #[error("the queue failed")]
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
            Self::Setup(error) => {
                matches!(error, NatsSetupError::Queue(QueueError::Unreachable { .. }))
            }
            Self::Queue(error) => matches!(error, QueueError::Unreachable { .. }),
            Self::Bind(_) => false,
        }
    }
}
