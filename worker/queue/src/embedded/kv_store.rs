//! The key-value store inside the process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use crate::traits::{KvEntry, KvStore, ListedKvEntry, QueueError};

/// A [`KvStore`] without a server. Its values are lost with the process.
#[derive(Debug, Default)]
pub struct EmbeddedKvStore {
    state: Mutex<EmbeddedKvState>,
}

#[derive(Debug, Default)]
struct EmbeddedKvState {
    revision: u64,
    /// Entries, and when they were written.
    entries: BTreeMap<String, (KvEntry, Instant)>,
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
        Ok(self.state().entries.get(key).map(|(entry, _)| entry.clone()))
    }

    async fn write(
        &self,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>, QueueError> {
        let mut state = self.state();
        if state.entries.get(key).map(|(entry, _)| entry.revision) != revision {
            return Ok(None);
        }
        state.revision += 1;
        let revision = state.revision;
        let entry = KvEntry { revision, value };
        state.entries.insert(key.to_owned(), (entry, Instant::now()));
        Ok(Some(revision))
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<bool, QueueError> {
        let mut state = self.state();
        if state.entries.get(key).is_none_or(|(entry, _)| entry.revision != revision) {
            return Ok(false);
        }
        state.entries.remove(key);
        Ok(true)
    }

    async fn entries(&self) -> Result<Vec<ListedKvEntry>, QueueError> {
        let state = self.state();
        let listed = state.entries.iter().map(|(key, (entry, written))| ListedKvEntry {
            key: key.clone(),
            entry: entry.clone(),
            age: written.elapsed(),
        });
        Ok(listed.collect())
    }
}
