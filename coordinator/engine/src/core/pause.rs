//! Pauses: a user holds a run back without ending anything.

use rollout_protocol::wire::command::CommandReceipt;

use super::Core;
use super::effect::CoreEffect;
use super::handle::CoreOutput;
use super::input::InputTime;
use super::item::ItemEntry;
use super::record::JournalRecord;

impl Core {
    /// Begins or ends a pause. Offers that no worker has started are withdrawn, and their items stay
    /// ready; running executions and their results are as before.
    pub(super) fn pause(
        &mut self,
        now: InputTime,
        id: u64,
        is_paused: bool,
        out: &mut impl CoreOutput,
    ) {
        if self.paused != is_paused && self.stop.is_none() {
            self.commit(now, JournalRecord::Paused { is_paused }, out);
            if is_paused {
                let unstarted = self.offered(|row| !row.has_open());
                if !unstarted.is_empty() {
                    self.withdraw(now, unstarted, out);
                }
                self.answer_deferred_claims(now, out);
            } else {
                self.restart_unplaceable(now);
            }
            out.effects().push(CoreEffect::Paused(is_paused));
        }
        let running = self.offered(ItemEntry::has_open).len() as u64;
        let receipt = CommandReceipt {
            named: self.unsettled as u64,
            running: Some(running),
            refused: self.stop.map(|_| "the run is stopping".to_owned()),
            ..CommandReceipt::default()
        };
        out.effects().push(CoreEffect::Receipt { id, receipt });
    }
}
