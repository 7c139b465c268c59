//! The key-value store inside the process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use crate::queue::traits::{KvEntry, KvStore, QueueError};

/// A [`KvStore`] without a server. Its values are lost with the process.
#[derive(Debug, Default)]
pub struct EmbeddedKvStore {
    state: Mutex<EmbeddedKvState>,
}

#[derive(Debug, Default)]
struct EmbeddedKvState {
    revision: u64,
    entries: BTreeMap<String, KvEntry>,
}

impl EmbeddedKvStore {
    /// Removes everything, like a wiped server.
    #[cfg(any(test, feature = "testing"))]
    pub fn wipe(&self) {
        *self.state() = EmbeddedKvState::default();
    }

    fn state(&self) -> MutexGuard<'_, EmbeddedKvState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl KvStore for EmbeddedKvStore {
    async fn read(&self, key: &str) -> Result<Option<KvEntry>, QueueError> {
        Ok(self.state().entries.get(key).cloned())
    }

    async fn write(
        &self,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>, QueueError> {
        let mut state = self.state();
        if state.entries.get(key).map(|entry| entry.revision) != revision {
            return Ok(None);
        }
        state.revision += 1;
        let revision = state.revision;
        state.entries.insert(key.to_owned(), KvEntry { revision, value });
        Ok(Some(revision))
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<bool, QueueError> {
        let mut state = self.state();
        if state.entries.get(key).is_none_or(|entry| entry.revision != revision) {
            return Ok(false);
        }
        state.entries.remove(key);
        Ok(true)
    }

    async fn entries(&self) -> Result<Vec<(String, KvEntry)>, QueueError> {
        let state = self.state();
        Ok(state.entries.iter().map(|(key, entry)| (key.clone(), entry.clone())).collect())
    }
}
