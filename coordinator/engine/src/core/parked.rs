//! Executions that wait on one worker for a service that does not answer there, while another worker has
//! room and waits for nothing: they are returned, so that the outage of one worker does not hold the
//! permits of a run. Each item is returned once: the other worker may wait for the same service.

use std::collections::{HashMap, HashSet};

use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::{ActiveExecution, Heartbeat, ReceivedHeartbeat};

use super::Core;
use super::cancel::StopUrgency;
use super::handle::CoreOutput;
use super::input::InputTime;

/// How long an execution waits before it is returned, in milliseconds: most outages are shorter.
const RETURN_AFTER_MS: u64 = 15_000;

/// Executions that wait while another worker could run them.
#[derive(Debug, Default)]
pub(super) struct ParkedExecutions {
    /// Since when they do.
    since: HashMap<ExecId, u64>,
    /// The execution that was returned, of each item without a result.
    returned: HashMap<ItemId, ExecId>,
}

impl Core {
    /// Returns executions that wait for too long.
    pub(super) fn return_parked(
        &mut self,
        now: InputTime,
        heartbeats: &[ReceivedHeartbeat],
        out: &mut impl CoreOutput,
    ) {
        let run = self.settings.run;
        let Some(remote) = self.remote.as_mut().filter(|_| self.stop.is_none()) else { return };
        let silence = u128::from(remote.timeouts.silence);
        let living = heartbeats.iter().filter(|seen| seen.age.as_millis() < silence);
        let workers: Vec<&Heartbeat> = living.map(|seen| &seen.heartbeat).collect();
        let may_return =
            |execution: &ActiveExecution| execution.run == run && is_returnable(execution);
        // Few workers have such executions, so few are compared with all others.
        let parked: Vec<&ActiveExecution> = workers
            .iter()
            .filter(|worker| worker.executions.iter().any(may_return))
            .filter(|worker| has_substitute(worker, &workers))
            .flat_map(|worker| &worker.executions)
            .filter(|execution| may_return(execution))
            .collect();
        let ParkedExecutions { since, returned } = &mut remote.parked;
        let shown: HashSet<ExecId> = parked.iter().map(|execution| execution.exec).collect();
        since.retain(|exec, _| shown.contains(exec));
        let items = &self.items;
        returned.retain(|item, _| items.get(item).is_some_and(|row| !row.is_settled()));
        let mut due = Vec::new();
        for ActiveExecution { item, exec, .. } in parked {
            let waits_since = *since.entry(*exec).or_insert(now.monotonic_ms);
            let waited = now.monotonic_ms.saturating_sub(waits_since);
            if waited >= RETURN_AFTER_MS && returned.entry(*item).or_insert(*exec) == exec {
                due.push(*exec);
            }
        }
        for exec in due {
            // Again if its worker did not hear it.
            self.send_stop(now, exec, StopUrgency::Now(StopLevel::Drain), out);
        }
    }
}

/// Whether an execution waits for a service and has no environment that would be lost.
fn is_returnable(execution: &ActiveExecution) -> bool {
    let has_begun = !matches!(execution.phase, Phase::Queued | Phase::EnvironmentSetup);
    execution.parked.is_some() && !execution.claiming && !has_begun
}

/// Whether another worker of the pool takes work and waits for nothing.
fn has_substitute(worker: &Heartbeat, workers: &[&Heartbeat]) -> bool {
    let waits =
        |other: &Heartbeat| other.executions.iter().any(|execution| execution.parked.is_some());
    workers.iter().any(|other| {
        let is_other = other.worker != worker.worker && other.pool == worker.pool;
        let takes_work = !other.draining && !other.low_disk && !other.gone && other.free > 0;
        is_other && other.store == worker.store && takes_work && !waits(other)
    })
}
