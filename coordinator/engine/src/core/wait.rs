//! Waits between the tries of an item. They follow from the journal: the time of the failure, the
//! number of failures, and a jitter derived from the run and the item. A session that begins during
//! a wait therefore waits only for the rest of it.

use std::cmp::Reverse;

use rollout_protocol::digest::Digest;
use rollout_protocol::id::ItemId;

use super::Core;
use super::input::InputTime;
use super::item::ItemStatus;

impl Core {
    /// How long an item waits after its last failure, in milliseconds.
    pub fn wait_ms(&self, item: &ItemId) -> u64 {
        let failures = self.items.get(item).map_or(1, |row| row.failures);
        let jitter = self.jitter(item, failures);
        let wait = self.settings.retry.delay(failures, jitter).unwrap_or_default();
        u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
    }

    /// Uniform in [0, 1) over items, runs and failures.
    fn jitter(&self, item: &ItemId, failures: u32) -> f64 {
        let text = format!("retry {} {item} {failures}", self.settings.run);
        let digest = Digest::sha256(text.as_bytes());
        let bits =
            digest.as_bytes().iter().take(6).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        bits as f64 / (1_u64 << 48) as f64
    }

    /// Whether an item that waited when the last session ended must still wait; it is woken later
    /// then. A wall clock that was set back costs at most one more full wait.
    pub(super) fn waits_on(&mut self, now: InputTime, item: &ItemId) -> bool {
        let waiting = self.items.get(item).is_some_and(|row| row.state == ItemStatus::Waiting);
        let Some(failed_at) = self.failed_at.get(item).filter(|_| waiting) else { return false };
        let passed = now.wall.as_millisecond().saturating_sub(failed_at.as_millisecond());
        let left = self.wait_ms(item).saturating_sub(u64::try_from(passed).unwrap_or(0));
        if left > 0 {
            self.waiting.push(Reverse((now.monotonic_ms.saturating_add(left), *item)));
        }
        left > 0
    }
}
