//! Containers that should be gone, but whose removal failed: their owner lives, so that no reaper
//! would ever take them.

use std::sync::{Arc, Mutex, PoisonError};

use super::client::Client;
use super::container;

/// What is still to be removed, by the engine's identifier and by name.
#[derive(Debug)]
pub(super) struct Leftovers {
    client: Arc<Client>,
    waiting: Mutex<Vec<(String, String)>>,
}

impl Leftovers {
    /// None yet.
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self { client, waiting: Mutex::default() }
    }

    /// Removes a container now, or when the engine answers again.
    pub(super) async fn remove(&self, id: String, name: String) {
        if let Err(failure) = container::remove(&self.client, &id, &name).await {
            tracing::warn!(container = name, error = failure.chain(), "it is left for later");
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push((id, name));
        }
    }

    /// Tries again to remove what is left.
    pub(super) async fn remove_waiting(&self) {
        let waiting =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, name) in waiting {
            self.remove(id, name).await;
        }
    }
}
