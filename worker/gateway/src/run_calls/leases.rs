//! Leases of the limits of a run's model servers.

use rollout_protocol::id::RunId;
use rollout_protocol::wire::model_leases::{LeaseUse, LimitParts, ServerUse};
use tokio::sync::watch;

/// The leases of this worker for a run. Without a table of the coordinator it has nothing.
#[derive(Debug, Default)]
pub(crate) struct RunLeases(pub(crate) watch::Sender<LeaseState>);

#[derive(Debug, Clone, Default)]
pub(crate) struct LeaseState {
    serial: u64,
    pub(crate) parts: Vec<LimitParts>,
    /// Calls in flight and waiting calls, of each server that was used.
    pub(crate) calls: Vec<(u32, u32)>,
}

impl RunLeases {
    /// Applies the parts of a table; returns whether it is another one. Older tables have no effect.
    pub(crate) fn set(&self, serial: u64, parts: Vec<LimitParts>) -> bool {
        self.0.send_if_modified(|state| {
            let is_newer = serial > state.serial;
            if is_newer {
                state.serial = serial;
                state.parts = parts;
            }
            is_newer
        })
    }

    /// How they are used; `None` without a table and without a server.
    pub(crate) fn used(&self, run: RunId) -> Option<LeaseUse> {
        let state = self.0.borrow();
        if state.serial == 0 && state.calls.is_empty() {
            return None;
        }
        let places = state.calls.len().max(state.parts.len());
        let used = |place: usize| {
            let (in_flight, waiting) = state.calls.get(place).copied().unwrap_or_default();
            let lease = state.parts.get(place).copied().unwrap_or_default();
            ServerUse { lease, in_flight, waiting }
        };
        Some(LeaseUse { run, serial: state.serial, servers: (0..places).map(used).collect() })
    }
}
