//! Model calls of runs: pauses, policy versions, counts and leases, shared by the executions of a
//! worker.

pub(crate) mod leases;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::id::{RunId, WorkerId};
use rollout_protocol::wire::model_calls::{ModelCallState, RunModelCalls};
use rollout_protocol::wire::model_leases::{LeaseTable, LeaseUse};
use tokio::sync::watch;
use tokio::time::Instant;

use self::leases::RunLeases;

/// How long the state of a run without executions is kept after its coordinator last repeated it.
const KEPT_UNUSED: Duration = Duration::from_secs(600);

/// The model calls of the runs that a worker knows.
#[derive(Debug, Default)]
pub struct RunCallTable(Mutex<HashMap<RunId, Arc<RunCalls>>>);

impl RunCallTable {
    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, Arc<RunCalls>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model calls of a run.
    pub fn of(&self, run: RunId) -> Arc<RunCalls> {
        let mut runs = self.runs();
        if let Some(calls) = runs.get(&run) {
            return Arc::clone(calls);
        }
        runs.retain(|_, calls| Arc::strong_count(calls) > 1 || !calls.is_outdated());
        Arc::clone(runs.entry(run).or_default())
    }

    /// The counts of a run; `None` if its state is not known.
    pub fn counts(&self, run: RunId) -> Option<RunModelCalls> {
        self.runs().get(&run)?.counts(run)
    }

    /// Applies the leases of a run that its coordinator gives this worker; returns whether they are
    /// others. A worker that has none, and had none before, keeps nothing.
    pub fn set_leases(&self, run: RunId, table: &LeaseTable, worker: &WorkerId) -> bool {
        let parts = table.workers.get(worker);
        let calls = match parts {
            Some(_) => Some(self.of(run)),
            None => self.runs().get(&run).map(Arc::clone),
        };
        calls.is_some_and(|calls| {
            calls.state.send_if_modified(|state| {
                state.set_at = Instant::now();
                false
            });
            calls.leases.set(table.serial, parts.cloned().unwrap_or_default())
        })
    }

    /// How the leases of runs are used.
    pub fn lease_uses(&self) -> Vec<LeaseUse> {
        self.runs().iter().filter_map(|(run, calls)| calls.leases.used(*run)).collect()
    }
}

/// The model calls of a run.
#[derive(Debug)]
pub struct RunCalls {
    pub(crate) state: watch::Sender<CallsState>,
    /// Leases of the limits of its model servers.
    pub(crate) leases: RunLeases,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CallsState {
    /// The state that the coordinator set; absent for runs that set none.
    pub(crate) known: Option<ModelCallState>,
    /// When it, or a lease, was set last.
    set_at: Instant,
    /// Since when it is paused.
    pub(crate) paused_since: Option<Instant>,
    /// Total length of the former pauses.
    pub(crate) past_pauses: Duration,
    pub(crate) in_flight: u32,
    pub(crate) held: u32,
}

impl CallsState {
    pub(crate) fn is_paused(&self) -> bool {
        self.known.is_some_and(|known| known.paused)
    }
}

impl Default for RunCalls {
    fn default() -> Self {
        let state = CallsState {
            known: None,
            set_at: Instant::now(),
            paused_since: None,
            past_pauses: Duration::ZERO,
            in_flight: 0,
            held: 0,
        };
        Self { state: watch::Sender::new(state), leases: RunLeases::default() }
    }
}

impl RunCalls {
    /// Applies a state of the coordinator; returns whether it is another one. A policy version never
    /// becomes older.
    pub fn set(&self, state: ModelCallState) -> bool {
        self.state.send_if_modified(|calls| {
            let former = calls.known.unwrap_or_default();
            let policy_version = state.policy_version.max(former.policy_version);
            let now = Instant::now();
            calls.set_at = now;
            if state.paused {
                calls.paused_since.get_or_insert(now);
            } else if let Some(since) = calls.paused_since.take() {
                calls.past_pauses += now - since;
            }
            let known = Some(ModelCallState { policy_version, ..state });
            std::mem::replace(&mut calls.known, known) != known
        })
    }

    /// Applies the state of an offer, which may be old, if none is known.
    pub fn learn(&self, state: ModelCallState) {
        if self.state.borrow().known.is_none() {
            self.set(state);
        }
    }

    /// The newest policy version, if the run has any.
    pub fn policy_version(&self) -> Option<u64> {
        self.state.borrow().known.map(|known| known.policy_version)
    }

    /// Whether no new call may be sent.
    pub fn is_paused(&self) -> bool {
        self.state.borrow().is_paused()
    }

    fn counts(&self, run: RunId) -> Option<RunModelCalls> {
        let CallsState { known, in_flight, held, .. } = *self.state.borrow();
        Some(RunModelCalls { run, state: known?, in_flight, held })
    }

    fn is_outdated(&self) -> bool {
        self.state.borrow().set_at.elapsed() > KEPT_UNUSED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId::from_bytes([1; 16]);

    fn state(paused: bool, policy_version: u64) -> ModelCallState {
        ModelCallState { paused, policy_version }
    }

    #[test]
    fn policy_version_never_becomes_older_and_offer_changes_no_known_state() {
        let run = RunCalls::default();
        run.learn(state(true, 5));
        assert!(run.is_paused());
        run.set(state(false, 4));
        assert_eq!(run.policy_version(), Some(5));
        run.learn(state(true, 9));
        assert!(!run.is_paused());
        assert_eq!(run.policy_version(), Some(5));
    }

    #[tokio::test(start_paused = true)]
    async fn unused_run_is_forgotten_when_its_coordinator_is_silent() {
        let table = RunCallTable::default();
        let used = table.of(RUN);
        used.set(state(false, 1));
        let other = RunId::from_bytes([2; 16]);
        table.of(other).set(state(true, 1));
        tokio::time::advance(KEPT_UNUSED + Duration::from_secs(1)).await;
        drop(table.of(RunId::from_bytes([3; 16])));
        assert!(table.counts(RUN).is_some());
        assert_eq!(table.counts(other), None);
    }
}
