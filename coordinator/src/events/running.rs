//! The executions of a run that run at present, folded from its events.

use std::collections::BTreeMap;
use std::time::Instant;

use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::phase::Phase;

/// Running executions, by item. Their number is limited by the concurrency of the run.
#[derive(Debug, Default)]
pub(super) struct RunningExecutions(BTreeMap<(ItemId, ExecId), RunningExecution>);

/// A running execution.
#[derive(Debug, Clone)]
pub(super) struct RunningExecution {
    pub(super) name: ItemName,
    pub(super) try_number: u32,
    pub(super) phase: Phase,
    /// When its first event was seen.
    pub(super) started_at: Instant,
    /// The service that it is waiting for.
    pub(super) waiting_for: Option<Dependency>,
}

impl RunningExecutions {
    /// Applies an event.
    pub(super) fn apply(&mut self, event: &RunEvent, now: Instant) {
        match &event.kind {
            EventKind::TrialPhase { item, name, try_id, exec, phase } => {
                self.entry((*item, *exec), name, *try_id, now).phase = *phase;
            }
            EventKind::TrialParked { item, name, try_id, exec, dependency } => {
                let running = self.entry((*item, *exec), name, *try_id, now);
                running.waiting_for = Some(*dependency);
            }
            EventKind::TrialUnparked { item, exec, .. } => {
                if let Some(running) = self.0.get_mut(&(*item, *exec)) {
                    running.waiting_for = None;
                }
            }
            EventKind::ExecutionEnded { item, exec, .. }
            | EventKind::TrialLost { item, exec, .. }
            | EventKind::TrialRetry { item, exec, .. } => {
                self.0.remove(&(*item, *exec));
            }
            EventKind::TrialSettled { settlement, .. } => self.settle(settlement.item),
            EventKind::RunEnded { .. } => self.0.clear(),
            _ => {}
        }
    }

    fn entry(
        &mut self,
        key: (ItemId, ExecId),
        name: &ItemName,
        try_id: TryId,
        now: Instant,
    ) -> &mut RunningExecution {
        self.0.entry(key).or_insert_with(|| RunningExecution {
            name: name.clone(),
            try_number: try_id.n,
            phase: Phase::EnvironmentSetup,
            started_at: now,
            waiting_for: None,
        })
    }

    /// Removes every execution of an item.
    fn settle(&mut self, item: ItemId) {
        let of_item = |exec| (item, ExecId::from_bytes([exec; 16]));
        let ended: Vec<_> =
            self.0.range(of_item(0)..=of_item(u8::MAX)).map(|(key, _)| *key).collect();
        for key in ended {
            self.0.remove(&key);
        }
    }

    /// Number of running executions.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The executions.
    pub(super) fn values(&self) -> impl Iterator<Item = &RunningExecution> {
        self.0.values()
    }

    /// The items that have an execution, each once.
    pub(super) fn items(&self) -> impl Iterator<Item = ItemId> {
        let mut last = None;
        self.0.keys().filter_map(move |(item, _)| {
            let is_new = last.replace(*item) != Some(*item);
            is_new.then_some(*item)
        })
    }

    /// Whether an execution waits for this service.
    pub(super) fn waits_for(&self, dependency: Dependency) -> bool {
        self.values().any(|running| running.waiting_for == Some(dependency))
    }

    /// The service that an execution waits for.
    pub(super) fn waiting_for(&self, item: ItemId, exec: ExecId) -> Option<Dependency> {
        self.0.get(&(item, exec))?.waiting_for
    }
}
