//! Containers whose removal failed. Their owner is alive, so no reaper would remove them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rollout_environment::Failure;

use super::client::DockerClient;
use super::{compose, container};

/// An object to remove.
#[derive(Debug)]
pub(super) enum DeferredRemoval {
    /// A container, by the engine's identifier and by name.
    Container(String, String),
    /// An environment with services, by name.
    Project(String),
}

impl DeferredRemoval {
    async fn remove(&self, client: &DockerClient) -> Result<(), Failure> {
        match self {
            Self::Container(id, name) => container::remove(client, id, name).await,
            Self::Project(name) => compose::project::remove(client, name).await,
        }
    }
}

impl fmt::Display for DeferredRemoval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(_, name) => write!(f, "the container {name}"),
            Self::Project(name) => write!(f, "the services and the container of {name}"),
        }
    }
}

/// Containers and services to remove later.
#[derive(Debug)]
pub(super) struct DeferredRemovals {
    client: Arc<DockerClient>,
    pending: Mutex<Vec<DeferredRemoval>>,
}

impl DeferredRemovals {
    /// An empty list.
    pub(super) fn new(client: Arc<DockerClient>) -> Self {
        Self { client, pending: Mutex::default() }
    }

    /// Removes it now, or later when the engine answers again.
    pub(super) async fn remove_or_defer(&self, leftover: DeferredRemoval) {
        if let Err(failure) = leftover.remove(&self.client).await {
            tracing::warn!(error = failure.chain(), "cannot remove {leftover} now, retrying later");
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).push(leftover);
        }
    }

    /// Retries the removals that failed.
    pub(super) async fn retry_all(&self) {
        let waiting =
            std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        for leftover in waiting {
            self.remove_or_defer(leftover).await;
        }
    }
}
