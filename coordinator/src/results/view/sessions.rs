//! The sessions of a run, as its journal has them.

use rollout_engine::core::{JournalRecord, SessionEnd, SessionStart};
use rollout_protocol::Timestamp;
use rollout_protocol::id::RunId;

/// The sessions up to a place in the journal.
#[derive(Debug, Default)]
pub(super) struct SessionHistory {
    /// The run, and the start of its first session.
    pub(super) first: Option<(RunId, Timestamp)>,
    /// The last session.
    pub(super) last: Option<LastSession>,
    /// Time of the last record.
    pub(super) updated_at: Option<Timestamp>,
}

/// The last session of a run.
#[derive(Debug)]
pub(super) struct LastSession {
    pub(super) epoch: u32,
    pub(super) opened_at: Timestamp,
    /// Host and process, for people.
    pub(super) owner: String,
    pub(super) version: String,
    /// The pool of its workers; `None` if they are in the owner's process.
    pub(super) pool: Option<String>,
    /// Items that it settled.
    pub(super) settled: u64,
    /// Its end, if it ended in order.
    pub(super) end: Option<SessionEnd>,
}

impl SessionHistory {
    /// Takes a record in.
    pub(super) fn add(&mut self, at: Timestamp, record: &JournalRecord) {
        self.updated_at = Some(at);
        match record {
            JournalRecord::Opened(opened) => {
                let SessionStart { run, epoch, owner, version, pool, .. } = &**opened;
                self.first.get_or_insert((*run, at));
                self.last = Some(LastSession {
                    epoch: *epoch,
                    opened_at: at,
                    owner: owner.clone(),
                    version: version.clone(),
                    pool: pool.clone(),
                    settled: 0,
                    end: None,
                });
            }
            JournalRecord::Closed(end) => {
                if let Some(last) = &mut self.last {
                    last.end = Some(*end);
                }
            }
            _ => {}
        }
    }

    /// An item was settled.
    pub(super) fn add_settled(&mut self) {
        if let Some(last) = &mut self.last {
            last.settled += 1;
        }
    }
}
