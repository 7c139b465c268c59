//! Warnings of the sinks themselves, shown through the other sinks.

use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::backoff;
use rollout_protocol::item_name::ItemName;

use crate::results::escape;

/// Maximum number of trials reported individually, so that a full disk does not flood the screen.
const MAX_REPORTED: u64 = 3;

/// Pending warnings. Clones share them.
#[derive(Debug, Clone, Default)]
pub(in crate::events) struct SinkWarnings(Arc<Mutex<Vec<String>>>);

impl SinkWarnings {
    /// Adds a warning that the files of a trial could not be written; `before` is the number of
    /// earlier ones.
    pub(in crate::events) fn add_unwritten_files(
        &self,
        before: u64,
        trial: &ItemName,
        error: &(dyn std::error::Error + 'static),
    ) {
        let trial = trial.to_string();
        let trial = escape::line(&trial);
        let chain = backoff::error_chain(error);
        let chain = escape::line(&chain);
        tracing::warn!(%trial, error = %chain, "cannot write the files of a trial");
        if before < MAX_REPORTED {
            self.add(format!("cannot write the files of {trial}: {chain}; its result is kept"));
        } else if before == MAX_REPORTED {
            self.add("cannot write the files of more trials; not listed individually".to_owned());
        }
    }

    /// Adds a warning that files of a trial are damaged in the store and were left out.
    pub(in crate::events) fn add_damaged_files(
        &self,
        trial: &ItemName,
        error: &(dyn std::error::Error + 'static),
    ) {
        let trial = trial.to_string();
        let trial = escape::line(&trial);
        let chain = backoff::error_chain(error);
        let chain = escape::line(&chain);
        tracing::warn!(%trial, error = %chain, "files of a trial are damaged and left out");
        self.add(format!(
            "files of {trial} are damaged and left out: {chain}; its result is kept, and its \
             missing.txt lists them"
        ));
    }

    fn add(&self, message: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }

    /// Takes the warnings added since the last call.
    pub(in crate::events) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
