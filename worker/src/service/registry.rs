//! The registry of executions whose report is not acknowledged, and of pending claims.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_base::traces::Tracer;
use rollout_protocol::id::{ExecId, ItemId, RunId};
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::delivery::Delivery;
use tokio::sync::{Notify, watch};

use super::execution::{Execution, TryKey};

#[derive(Debug, Default)]
pub(super) struct ExecutionRegistry {
    state: Mutex<RegistryState>,
    shrunk: Notify,
    /// Notified of changes that the coordinator learns soon.
    changes: watch::Sender<()>,
    /// Takes the spans of the executions.
    tracer: Tracer,
}

#[derive(Debug, Default)]
struct RegistryState {
    held: HashMap<TryKey, Arc<Execution>>,
    /// The stop level of all executions, new ones included.
    stop: Option<StopLevel>,
    /// Whether an execution was added or removed since the last heartbeat.
    changed: bool,
}

impl ExecutionRegistry {
    pub(super) fn new(tracer: Tracer) -> Self {
        Self { tracer, ..Self::default() }
    }

    /// A new execution for a delivery, or `None` when its try is held already: then the held
    /// execution takes over this delivery.
    pub(super) fn admit(&self, delivery: &Delivery) -> Option<Arc<Execution>> {
        let mut state = self.state();
        let stop = state.stop;
        let offer = &delivery.offer;
        match state.held.entry((offer.run, offer.item, offer.try_id)) {
            Entry::Occupied(held) => {
                held.get().replace_token(delivery.token);
                None
            }
            Entry::Vacant(free) => {
                let execution = Arc::new(Execution::new(delivery, stop, &self.tracer));
                Some(free.insert(execution).clone())
            }
        }
    }

    /// Removes executions.
    pub(super) fn remove<'a>(&self, removed: impl Iterator<Item = &'a Arc<Execution>>) {
        let mut state = self.state();
        for execution in removed {
            state.held.remove(&execution.key());
        }
        state.changed = true;
        drop(state);
        self.shrunk.notify_waiters();
    }

    pub(super) fn len(&self) -> usize {
        self.state().held.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until fewer than `bound` are held; returns how many fewer.
    pub(super) async fn wait_below(&self, bound: usize) -> usize {
        loop {
            let mut shrunk = std::pin::pin!(self.shrunk.notified());
            shrunk.as_mut().enable();
            match bound.saturating_sub(self.len()) {
                0 => shrunk.await,
                free => return free,
            }
        }
    }

    /// Waits until an execution is no longer held.
    pub(super) async fn wait_until_removed(&self, execution: &Arc<Execution>) {
        loop {
            let mut shrunk = std::pin::pin!(self.shrunk.notified());
            shrunk.as_mut().enable();
            let held = self.state().held.get(&execution.key()).cloned();
            if held.is_none_or(|held| !Arc::ptr_eq(&held, execution)) {
                return;
            }
            shrunk.await;
        }
    }

    /// Waits until nothing is held.
    pub(super) async fn wait_until_empty(&self) {
        self.wait_below(1).await;
    }

    pub(super) fn all(&self) -> Vec<Arc<Execution>> {
        self.state().held.values().cloned().collect()
    }

    /// Whether something changed since the last call.
    pub(super) fn take_change(&self) -> bool {
        std::mem::take(&mut self.state().changed)
    }

    /// Records a change.
    pub(super) fn note_change(&self) {
        self.state().changed = true;
        self.changes.send_replace(());
    }

    /// A receiver of the changes that are recorded from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(super) fn stop_all(&self, level: StopLevel) {
        let mut state = self.state();
        state.stop = state.stop.max(Some(level));
        state.held.values().for_each(|execution| execution.stop(level));
    }

    pub(super) fn stop_run(&self, run: RunId, level: StopLevel) {
        let state = self.state();
        let of_run = state.held.values().filter(|execution| execution.offer.run == run);
        of_run.for_each(|execution| execution.stop(level));
    }

    pub(super) fn stop_execution(&self, exec: ExecId, level: StopLevel) {
        let state = self.state();
        let named = state.held.values().find(|execution| execution.exec == exec);
        named.into_iter().for_each(|execution| execution.stop(level));
    }

    /// The execution of an item that runs.
    pub(super) fn find_running(&self, run: RunId, item: ItemId) -> Option<Arc<Execution>> {
        let state = self.state();
        let mut held = state.held.values();
        let of_item = |held: &&Arc<Execution>| (held.offer.run, held.offer.item) == (run, item);
        held.find(|held| of_item(held) && held.is_running()).cloned()
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
