//! Files of the run directory that are only hints for people, and the one about an outage of the queue.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use rollout_base::backoff::OutageLog;
use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::Engine;
use crate::RunError;
use crate::atomic_file;

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
#[derive(Debug)]
pub(super) struct OutageFile {
    written: Option<QueueOutage>,
    /// Whether the directory is known to have that and nothing else: a session that was killed may have
    /// left a file.
    is_known: bool,
    /// Whether it can be written.
    log: OutageLog,
}

impl Default for OutageFile {
    fn default() -> Self {
        let log = OutageLog::new("the file about the outage of the queue");
        Self { written: None, is_known: false, log }
    }
}

impl Engine {
    /// Shows in the run directory whether the queue is out of reach.
    pub(super) fn show_queue_outage(
        &mut self,
        outage: Option<QueueOutage>,
    ) -> Result<(), RunError> {
        if self.outage_file.is_known && self.outage_file.written == outage {
            return Ok(());
        }
        let path = self.run.layout.queue_outage();
        let is_known = self.write_hint(path, outage.as_ref(), &self.outage_file.log)?;
        (self.outage_file.written, self.outage_file.is_known) = (outage, is_known);
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
        log: &OutageLog,
    ) -> Result<bool, RunError> {
        self.run.fence.check().map_err(RunError::LockLost)?;
        Ok(write_or_remove(path, content, log))
    }
}

/// Writes a file, or removes it. Returns whether that was possible. Callers try again, so the log says
/// only when that changes.
fn write_or_remove<T: Serialize>(path: PathBuf, content: Option<T>, log: &OutageLog) -> bool {
    let written = match content {
        None => match std::fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(RunError::File { action: "remove", path, source })
            }
            _ => Ok(()),
        },
        Some(content) => atomic_file::write_json(&path, &content),
    };
    match &written {
        Ok(()) => log.mark_recovered(),
        Err(error) => log.mark_failed(error),
    }
    written.is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn file_that_cannot_be_written_is_warned_of_once_until_it_can() {
        let temp = tempfile::tempdir().expect("a directory");
        let (path, logged) = (temp.path().join("outage.json"), temp.path().join("log"));
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(fs::File::create(&logged).expect("created"))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let log = OutageLog::new("the file");
            for _ in 0..2 {
                fs::create_dir_all(path.join("in its place")).expect("created");
                for content in [Some("text"), Some("text"), None] {
                    assert!(!write_or_remove(path.clone(), content, &log), "{content:?}");
                }
                fs::remove_dir_all(&path).expect("removed");
                for content in [Some("text"), None] {
                    assert!(write_or_remove(path.clone(), content, &log), "{content:?}");
                }
            }
        });
        let text = fs::read_to_string(&logged).expect("readable");
        assert_eq!(text.matches("WARN").count(), 2, "{text}");
        assert!(text.contains("the file: cannot write"), "{text}");
    }
}
