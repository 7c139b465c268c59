//! Choice of what to remove from a cache, by age and by total size.

use std::time::{Duration, SystemTime};

/// Entries used within this time stay: a run may be about to use one.
pub const RECENT_USE: Duration = Duration::from_secs(3600);

/// Limits that select the entries to remove.
#[derive(Debug, Clone, Copy, Default)]
pub struct RemovalLimits {
    /// Remove the entries not used for longer than this.
    pub older_than: Option<Duration>,
    /// Remove the least recently used entries until the total size is at most this.
    pub max_bytes: Option<u64>,
    /// Remove nothing, only report.
    pub dry_run: bool,
}

/// Properties of an entry on which its removal depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryUse {
    /// Its size.
    pub bytes: u64,
    /// When it was last used.
    pub used: SystemTime,
    /// Whether it is in use now.
    pub in_use: bool,
}

impl RemovalLimits {
    /// For each of the entries, least recently used first, whether to remove it.
    pub fn choose(
        &self,
        entries: impl IntoIterator<Item = EntryUse, IntoIter: Clone>,
        now: SystemTime,
    ) -> Vec<bool> {
        let entries = entries.into_iter();
        let mut total: u64 = entries.clone().map(|entry| entry.bytes).sum();
        let choose = |entry: EntryUse| {
            let age = now.duration_since(entry.used).unwrap_or_default();
            let old = self.older_than.is_some_and(|limit| age > limit);
            let much = self.max_bytes.is_some_and(|limit| total > limit);
            let unwanted = (old || much) && age > RECENT_USE && !entry.in_use;
            if unwanted {
                total -= entry.bytes;
            }
            unwanted
        };
        entries.map(choose).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(hours: u64, in_use: bool) -> EntryUse {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * (1000 - hours));
        EntryUse { bytes: 10, used, in_use }
    }

    #[test]
    fn oldest_entries_are_removed_and_used_ones_kept() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * 1000);
        let entries =
            [entry(50, false), entry(40, true), entry(30, false), entry(2, false), entry(0, false)];
        let hours = |n: u64| Some(Duration::from_secs(3600 * n));
        for (older_than, max_bytes, expected) in [
            (None, None, [false; 5]),
            (hours(35), None, [true, false, false, false, false]),
            (hours(1), None, [true, false, true, true, false]),
            (hours(0), None, [true, false, true, true, false]),
            (None, Some(40), [true, false, false, false, false]),
            (None, Some(25), [true, false, true, true, false]),
            (None, Some(0), [true, false, true, true, false]),
            (hours(45), Some(30), [true, false, true, false, false]),
        ] {
            let limits = RemovalLimits { older_than, max_bytes, dry_run: false };
            assert_eq!(limits.choose(entries, now), expected, "{older_than:?} {max_bytes:?}");
        }
    }
}
