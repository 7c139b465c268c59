//! Model calls of a farm's samples: the state that workers must apply, and what they say of it.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::farm::FarmModelCalls;
use rollout_protocol::wire::model_calls::ModelCallState;
use tokio::sync::watch;
use tokio::time::timeout;

use super::state::FarmShared;

/// How long the answer to a pause waits for workers that do not say that they apply it.
const APPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The counts of workers at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeenCalls {
    /// The state that workers were told; absent before the first time.
    pub told: Option<ModelCallState>,
    /// Their counts.
    pub calls: FarmModelCalls,
}

/// The model calls of a farm: the wanted state, and the seen one if there is a gateway.
#[derive(Debug, Default)]
pub(super) struct SharedCalls {
    /// Unknown until the journal is replayed: a default would end the pause of a former session.
    wanted: watch::Sender<Option<ModelCallState>>,
    seen: watch::Sender<Option<SeenCalls>>,
}

impl SharedCalls {
    /// Sets the state that workers must apply.
    pub(super) fn want(&self, state: ModelCallState) {
        self.wanted.send_if_modified(|wanted| wanted.replace(state) != Some(state));
    }

    /// The counts of workers; `None` without a gateway.
    pub(super) fn counts(&self) -> Option<FarmModelCalls> {
        self.seen.borrow().map(|seen| seen.calls)
    }

    /// Waits until all workers say that they apply the wanted state, but not for ever.
    pub(super) async fn wait_until_applied(&self) {
        let is_applied = |seen: &Option<SeenCalls>| {
            let wanted = *self.wanted.borrow();
            seen.is_none_or(|seen| seen.told == wanted && seen.calls.unconfirmed_workers == 0)
        };
        let mut seen = self.seen.subscribe();
        // The status says how many workers have not answered.
        let _too_late = timeout(APPLY_TIMEOUT, seen.wait_for(is_applied)).await;
    }
}

/// The side towards workers of a farm's model calls. While it exists, a pause waits for them.
#[derive(Debug)]
pub struct FarmCalls {
    shared: Arc<FarmShared>,
}

impl FarmCalls {
    pub(super) fn new(shared: Arc<FarmShared>) -> Self {
        shared.calls.seen.send_replace(Some(SeenCalls::default()));
        Self { shared }
    }

    /// The state that workers must apply; `None` until the journal is replayed.
    pub fn wanted(&self) -> watch::Receiver<Option<ModelCallState>> {
        self.shared.calls.wanted.subscribe()
    }

    /// Shows the counts of workers.
    pub fn show(&self, seen: SeenCalls) {
        self.shared.calls.seen.send_replace(Some(seen));
    }
}

impl Drop for FarmCalls {
    fn drop(&mut self) {
        self.shared.calls.seen.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use rollout_engine::Planner as _;
    use rollout_protocol::Timestamp;
    use rollout_protocol::farm::{FarmRecord, FarmSettings};

    use super::*;
    use crate::workloads::farm::FarmPlanner;

    #[test]
    fn workers_are_told_nothing_before_pause_of_former_session_is_replayed() {
        let (mut planner, handle) = FarmPlanner::new(FarmSettings::new("f"), Vec::new());
        let wanted = handle.model_calls().wanted();
        let at = Timestamp::UNIX_EPOCH;
        planner.on_record(at, &FarmRecord::PolicyVersion { version: 3 });
        planner.on_record(at, &FarmRecord::Paused);
        assert_eq!(*wanted.borrow(), None);
        let decided = planner.decide(at);
        let paused = ModelCallState { paused: true, policy_version: 3 };
        assert_eq!(*wanted.borrow(), Some(paused));
        assert_eq!(decided.pause, Some(true), "the run offers nothing");
        assert_eq!(planner.decide(at).pause, None);
    }
}
