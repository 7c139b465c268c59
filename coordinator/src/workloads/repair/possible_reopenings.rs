//! Results that may be from before a retry.
//!
//! The opening of a session names the settled items that the session runs again. If an opening is
//! lost, that session may have superseded any result from before it.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use rollout_engine::RunManifest;
use rollout_engine::core::JournalRecord;
use rollout_engine::journal::{JournalError, JournalSalvage};
use rollout_protocol::id::ItemId;

/// Reopenings that may have been lost.
#[derive(Debug, Default, Clone)]
pub(super) struct PossibleReopenings {
    /// Epochs whose openings may be lost.
    lost: Vec<RangeInclusive<u32>>,
    /// Epochs whose openings were read.
    read: BTreeSet<u32>,
    /// Epoch of the manifest, up to which only the sessions in `reopened` reopened anything.
    known_until: u32,
    reopened: BTreeSet<u32>,
    /// Items that a rebuilt segment reopens more often than its records do, with its epoch.
    items: HashMap<ItemId, u32>,
}

impl PossibleReopenings {
    /// Reads which reopenings a journal may have lost.
    pub(super) fn read(
        salvage: &JournalSalvage,
        manifest: Option<&RunManifest>,
    ) -> Result<Self, JournalError> {
        let recorded = manifest.and_then(|m| Some((m.epoch, m.reopened.as_ref()?)));
        let (known_until, reopened) = recorded.map_or((0, BTreeSet::new()), |(epoch, reopened)| {
            (epoch, reopened.iter().copied().collect())
        });
        let mut read = BTreeSet::new();
        let mut times: HashMap<ItemId, (i64, u32)> = HashMap::new();
        for opened in salvage.every_opening() {
            for item in opened.reopened.iter().chain(&opened.reopened_within) {
                let (count, epoch) = times.entry(*item).or_default();
                (*count, *epoch) = (*count + 1, opened.epoch);
            }
        }
        // Only the opening of a rebuilt segment lists what its records reopen.
        let mut is_rebuilt = false;
        salvage.records(|_, record| {
            let reopened = match record {
                JournalRecord::Opened(opened) => {
                    read.insert(opened.epoch);
                    is_rebuilt = !opened.reopened_within.is_empty();
                    opened.reopened
                }
                JournalRecord::Reopened { items, .. } if is_rebuilt => items,
                _ => return,
            };
            for item in reopened {
                times.entry(item).or_default().0 -= 1;
            }
        })?;
        let items = times.into_iter().filter(|(_, (count, _))| *count > 0);
        let items = items.map(|(item, (_, epoch))| (item, epoch)).collect();
        Ok(Self { lost: salvage.lost_openings(), read, known_until, reopened, items })
    }

    /// The newest session after `epoch`, and not after `last`, that may have reopened an item.
    pub(super) fn newest_reopening(&self, item: &ItemId, epoch: u32, last: u32) -> Option<u32> {
        if epoch >= last {
            return None;
        }
        let is_lost = |epoch: &u32| {
            !self.read.contains(epoch) && self.lost.iter().any(|range| range.contains(epoch))
        };
        let recorded = self.reopened.range(epoch + 1..=last).rev().find(|epoch| is_lost(epoch));
        let of_item = self.items.get(item).filter(|of| (epoch + 1..=last).contains(*of));
        let unrecorded = self.lost.iter().filter_map(|range| {
            let first = (*range.start()).max(epoch + 1).max(self.known_until.saturating_add(1));
            (first..=last.min(*range.end())).rev().find(|epoch| !self.read.contains(epoch))
        });
        recorded.into_iter().chain(of_item).copied().chain(unrecorded).max()
    }
}
