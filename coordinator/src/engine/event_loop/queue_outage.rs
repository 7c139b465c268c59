//! Files of the run directory that are only hints for people, and the one about an outage of the queue.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use rollout_protocol::Timestamp;
use rollout_worker::backoff::error_chain;
use rollout_worker::warning_limiter::WarningLimiter;
use serde::{Deserialize, Serialize};

use super::Engine;
use crate::engine::atomic_file;
use crate::engine::{Planner, RunError};

/// Hints that could not be written. A disk that takes no writes may have those of many runs.
static UNWRITTEN: WarningLimiter = WarningLimiter::new();

/// An outage of the queue: the run goes on when it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueOutage {
    /// Its begin.
    pub since: Timestamp,
    /// Why there is no connection.
    pub reason: String,
}

/// `no connection since 2026-11-30T06:00:00Z: not connected to the server: …`.
impl fmt::Display for QueueOutage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { since, reason } = self;
        write!(f, "no connection since {since:.0}: {reason}")
    }
}

/// The file about an outage.
#[derive(Debug, Default)]
pub(super) struct OutageFile {
    written: Option<QueueOutage>,
    /// Whether the directory is known to have that and nothing else: a session that was killed may have
    /// left a file.
    is_known: bool,
}

impl<P: Planner> Engine<P> {
    /// Shows in the run directory whether the queue is out of reach.
    pub(super) fn show_queue_outage(
        &mut self,
        outage: Option<QueueOutage>,
    ) -> Result<(), RunError> {
        if self.outage_file.is_known && self.outage_file.written == outage {
            return Ok(());
        }
        let is_known = self.write_hint(self.run.layout.queue_outage(), outage.as_ref())?;
        self.outage_file = OutageFile { written: outage, is_known };
        Ok(())
    }

    /// Removes the file, if this session has written one.
    pub(super) fn end_queue_outage(&mut self) -> Result<(), RunError> {
        match self.outage_file.written {
            Some(_) => self.show_queue_outage(None),
            None => Ok(()),
        }
    }

    /// Writes a file that is only a hint for people; without content there is none. Returns whether that
    /// was possible: callers try again.
    pub(super) fn write_hint<T: Serialize>(
        &self,
        path: PathBuf,
        content: Option<T>,
    ) -> Result<bool, RunError> {
        self.run.fence.check().map_err(RunError::LockLost)?;
        let written = match content {
            None => match std::fs::remove_file(&path) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    Err(RunError::File { action: "remove", path, source })
                }
                _ => Ok(()),
            },
            Some(content) => atomic_file::write_json(&path, &content),
        };
        if let Err(error) = &written {
            UNWRITTEN.warn(&format_args!("{}; it is tried again", error_chain(error)));
        }
        Ok(written.is_ok())
    }
}
