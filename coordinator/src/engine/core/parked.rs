//! Executions that wait on one worker for a service that does not answer there, or for a disk, while
//! another worker has room and waits for nothing: they are returned, so that the outage of one worker does
//! not hold the permits of a run. Each item is returned once: the other worker may wait for the same
//! service.
//!
//! An item is offered again when its worker has reported the end of the returned execution. A result that
//! is found later is merged as any late one.

use std::collections::{HashMap, HashSet};

use rollout_protocol::id::{ExecId, ItemId, RunId};
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::{ActiveExecution, Heartbeat, ReceivedHeartbeat};

use super::Core;
use super::cancel::StopUrgency;
use super::handle::CoreOutput;
use super::input::InputTime;

/// How long an execution waits for a service before it is returned, in milliseconds: most outages are
/// shorter.
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
        // Few workers have such executions, so few are compared with all others.
        let parked: Vec<ParkedExecution<'_>> = workers
            .iter()
            .filter(|worker| returnable(worker, run).next().is_some())
            .filter_map(|worker| Some((worker, room_elsewhere(worker, &workers)?)))
            .flat_map(|(worker, room)| {
                let parked = returnable(worker, run);
                parked.map(move |(execution, wait)| ParkedExecution { execution, wait, room })
            })
            .collect();
        let ParkedExecutions { since, returned } = &mut remote.parked;
        let shown: HashSet<ExecId> = parked.iter().map(|parked| parked.execution.exec).collect();
        since.retain(|exec, _| shown.contains(exec));
        let items = &self.items;
        returned.retain(|item, _| items.get(item).is_some_and(|row| !row.is_settled()));
        // Those that were returned and have not ended take room as well.
        let is_returned = |parked: &&ParkedExecution<'_>| {
            returned.get(&parked.execution.item) == Some(&parked.execution.exec)
        };
        let (mut taken, mut due) = (parked.iter().filter(is_returned).count() as u64, Vec::new());
        for ParkedExecution { execution: ActiveExecution { item, exec, .. }, wait, room } in parked
        {
            let waits_since = *since.entry(*exec).or_insert(now.monotonic_ms);
            let waited = now.monotonic_ms.saturating_sub(waits_since);
            let is_new = !returned.contains_key(item);
            if waited < wait.limit_ms() || (is_new && wait.needs_room() && taken >= room) {
                continue;
            }
            taken += u64::from(is_new);
            if returned.entry(*item).or_insert(*exec) == exec {
                due.push((*exec, wait.stop_level()));
            }
        }
        for (exec, level) in due {
            // Again if its worker did not hear it.
            self.send_stop(now, exec, StopUrgency::Now(level), out);
        }
    }
}

/// An execution that waits, and the free slots of workers that could run it.
struct ParkedExecution<'a> {
    execution: &'a ActiveExecution,
    wait: ReturnableWait,
    room: u64,
}

/// What a returnable execution waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReturnableWait {
    /// A service. It has no environment that would be lost.
    Service,
    /// The disk of its worker, which says that it has waited for long enough.
    Disk,
}

impl ReturnableWait {
    fn of(worker: &Heartbeat, execution: &ActiveExecution) -> Option<Self> {
        if execution.claiming {
            return None;
        }
        if worker.returnable.contains(&execution.exec) {
            return Some(Self::Disk);
        }
        let has_begun = !matches!(execution.phase, Phase::Queued | Phase::EnvironmentSetup);
        (execution.parked.is_some() && !has_begun).then_some(Self::Service)
    }

    const fn limit_ms(self) -> u64 {
        match self {
            Self::Service => RETURN_AFTER_MS,
            Self::Disk => 0,
        }
    }

    /// Whether it is returned only if a slot is free: it may go on where it is.
    const fn needs_room(self) -> bool {
        matches!(self, Self::Disk)
    }

    /// How it is stopped. What waits for a disk could not end a phase in order.
    const fn stop_level(self) -> StopLevel {
        match self {
            Self::Service => StopLevel::Drain,
            Self::Disk => StopLevel::Kill,
        }
    }
}

/// The executions of a run that a worker may return, and what they wait for.
fn returnable(
    worker: &Heartbeat,
    run: RunId,
) -> impl Iterator<Item = (&ActiveExecution, ReturnableWait)> {
    let of_run = worker.executions.iter().filter(move |execution| execution.run == run);
    of_run.filter_map(move |execution| Some((execution, ReturnableWait::of(worker, execution)?)))
}

/// The free slots of other workers of the pool that take work and wait for nothing; `None` if there are
/// none.
fn room_elsewhere(worker: &Heartbeat, workers: &[&Heartbeat]) -> Option<u64> {
    let waits =
        |other: &Heartbeat| other.executions.iter().any(|execution| execution.parked.is_some());
    let substitutes = workers.iter().filter(|other| {
        let is_other = other.worker != worker.worker && other.pool == worker.pool;
        let takes_work = !other.draining && !other.low_disk && !other.gone;
        is_other && other.store == worker.store && takes_work && !waits(other)
    });
    Some(substitutes.map(|other| u64::from(other.free)).sum()).filter(|room| *room > 0)
}
