//! Troubles of the outputs themselves, told to people through the other outputs.

use std::sync::{Arc, Mutex, PoisonError};

use rollout_protocol::item_name::ItemName;
use rollout_worker::backoff;

use crate::results::escape;

/// Trials whose trouble is told one by one; a full disk would fill the screen otherwise.
const MAX_REPORTED: u64 = 3;

/// Warnings that wait to be told. Clones share them.
#[derive(Debug, Clone, Default)]
pub(in crate::events) struct SinkWarnings(Arc<Mutex<Vec<String>>>);

impl SinkWarnings {
    /// The files of a trial could not be written; `before` counts those before it.
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
        tracing::warn!(%trial, error = %chain, "files of a trial could not be written");
        if before < MAX_REPORTED {
            self.add(format!(
                "the files of {trial} could not be written: {chain}; its result is kept"
            ));
        } else if before == MAX_REPORTED {
            self.add("the files of further trials could not be written".to_owned());
        }
    }

    /// Files of a trial are damaged where they are kept, and were left out.
    pub(in crate::events) fn add_damaged_files(
        &self,
        trial: &ItemName,
        error: &(dyn std::error::Error + 'static),
    ) {
        let trial = trial.to_string();
        let trial = escape::line(&trial);
        let chain = backoff::error_chain(error);
        let chain = escape::line(&chain);
        tracing::warn!(%trial, error = %chain, "files of a trial are left out");
        self.add(format!(
            "files of {trial} are left out: {chain}; its result is kept, and its missing.txt names \
             them"
        ));
    }

    fn add(&self, message: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }

    /// The warnings that came since the last call.
    pub(in crate::events) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
