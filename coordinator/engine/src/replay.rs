//! The state that a journal gives, record by record: shared by a session that resumes a run and by
//! readers of a run.

use std::collections::HashMap;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::retry::RetryPolicy;

use super::reopen::SupersededResults;
use crate::core::{Core, CoreEffect, CoreSettings, JournalRecord, RemoteTimeouts, SessionStart};

/// A core that replays a journal.
#[derive(Debug)]
pub struct CoreReplay {
    core: Core,
    pub(super) superseded: SupersededResults,
    effects: Vec<CoreEffect>,
}

impl CoreReplay {
    /// The replay of a session that opens the run.
    pub(super) fn new(core: Core, superseded: SupersededResults) -> Self {
        Self { core, superseded, effects: Vec::new() }
    }

    /// The replay of a reader: nothing is ever offered. `reopened` is how often each item was
    /// reopened; `planned` are the items of the plan with position and spec.
    pub fn for_reader(
        reopened: HashMap<ItemId, u32>,
        planned: impl IntoIterator<Item = (ItemId, u64, Digest)>,
    ) -> Self {
        let settings = CoreSettings {
            run: RunId::from_bytes([0; 16]),
            epoch: 0,
            permits: 1,
            retry: RetryPolicy::default(),
            timeouts: RemoteTimeouts::default(),
        };
        let mut core = Core::new(settings);
        core.assign_ordinals(planned);
        Self::new(core, SupersededResults::new(reopened, None))
    }

    /// The state so far.
    pub fn core(&self) -> &Core {
        &self.core
    }

    pub(super) fn into_parts(self) -> (Core, SupersededResults) {
        (self.core, self.superseded)
    }

    /// Applies a record, and returns its effects. [`reuse`](Self::reuse) takes the list back.
    pub(super) fn apply(&mut self, at: Timestamp, record: JournalRecord) -> Vec<CoreEffect> {
        let reopened = reopened_items(&record).to_vec();
        let mut effects = std::mem::take(&mut self.effects);
        self.core.apply(at, record, &mut effects);
        restore_executions(&mut self.core, at, &reopened, &mut self.superseded);
        effects
    }

    /// Takes an emptied list of effects back.
    pub(super) fn reuse(&mut self, effects: Vec<CoreEffect>) {
        self.effects = effects;
    }

    /// Applies a record for a reader, and passes its effects to `see`.
    pub fn read(
        &mut self,
        at: Timestamp,
        record: JournalRecord,
        mut see: impl FnMut(&Core, CoreEffect),
    ) {
        if let JournalRecord::Opened(opened) = &record {
            let SessionStart { run, retry, .. } = **opened;
            self.core.begin_session(run, retry);
        }
        // An item that was never offered is forgotten when it is reopened.
        let position = |item: &ItemId| {
            let ordinal = self.core.ordinal(item)?;
            Some((*item, ordinal, self.core.settled_spec(item)?))
        };
        let reopened: Vec<_> = reopened_items(&record).iter().filter_map(position).collect();
        let mut effects = self.apply(at, record);
        self.core.assign_ordinals(reopened);
        for effect in effects.drain(..) {
            if let CoreEffect::Settled(settled) = &effect {
                self.superseded.keep_if_reopened(settled);
            }
            see(&self.core, effect);
        }
        self.reuse(effects);
    }
}

/// The items that a record reopens.
pub fn reopened_items(record: &JournalRecord) -> &[ItemId] {
    match record {
        JournalRecord::Opened(opened) => &opened.reopened,
        JournalRecord::Reopened { items, .. } => items,
        _ => &[],
    }
}

/// Gives reopened items the executions of their superseded settlements.
pub(super) fn restore_executions(
    core: &mut Core,
    at: Timestamp,
    items: &[ItemId],
    superseded: &mut SupersededResults,
) {
    for item in items {
        core.restore_executions(*item, at, superseded.reopened(*item));
    }
}
