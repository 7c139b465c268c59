//! Executions that the event stream shows as running: each one that it shows, it also ends.

use std::collections::HashMap;
use std::time::Duration;

use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::EventKind;
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::phase::Phase;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::Engine;

/// The executions whose end the event stream must still show.
#[derive(Debug, Default)]
pub(super) struct LiveExecutions {
    items: HashMap<ItemId, Vec<LiveExecution>>,
}

/// An execution that is shown as running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveExecution {
    /// Item.
    pub item: ItemId,
    /// Try.
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Current phase.
    pub phase: Phase,
    /// Service that it waits for, as its worker reports.
    pub waiting_for: Option<Dependency>,
}

/// Hints that wait for the engine. Beyond them the worker's next ones are lost.
const MAX_QUEUED_HINTS: usize = 4096;

/// Least time between two batches of hints: trials that last less do not wake the engine for each
/// of their phases.
const HINT_INTERVAL: Duration = Duration::from_millis(20);

/// Phases of the executions of a worker in this process, taken in batches.
#[derive(Debug)]
pub struct PhaseHints {
    receiver: mpsc::Receiver<LiveExecution>,
    not_before: Instant,
}

impl PhaseHints {
    /// Hints, and where a worker sends them.
    pub fn channel() -> (mpsc::Sender<LiveExecution>, Self) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_HINTS);
        (sender, Self { receiver, not_before: Instant::now() })
    }

    /// The hints since the last call; `None` once every sender is gone. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Vec<LiveExecution>> {
        if self.not_before > Instant::now() {
            sleep_until(self.not_before).await;
        }
        let mut hints = Vec::new();
        let count = self.receiver.recv_many(&mut hints, MAX_QUEUED_HINTS).await;
        self.not_before = Instant::now() + HINT_INTERVAL;
        (count > 0).then_some(hints)
    }
}

/// Differences between an execution and how it was shown before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LiveExecutionChange {
    phase: bool,
    waiting_for: bool,
}

impl LiveExecutions {
    /// Takes in a running execution, and returns what changed.
    fn show(&mut self, seen: LiveExecution) -> LiveExecutionChange {
        let executions = self.items.entry(seen.item).or_default();
        match executions.iter_mut().find(|known| known.exec == seen.exec) {
            Some(known) => {
                let former = std::mem::replace(known, seen);
                LiveExecutionChange {
                    phase: former.phase != seen.phase,
                    waiting_for: former.waiting_for != seen.waiting_for,
                }
            }
            None => {
                executions.push(seen);
                LiveExecutionChange { phase: true, waiting_for: seen.waiting_for.is_some() }
            }
        }
    }

    /// An event ended this execution.
    pub(super) fn end(&mut self, item: &ItemId, exec: &ExecId) {
        if let Some(executions) = self.items.get_mut(item) {
            executions.retain(|known| known.exec != *exec);
            if executions.is_empty() {
                self.items.remove(item);
            }
        }
    }

    /// An event ended every execution of this item.
    pub(super) fn settle(&mut self, item: &ItemId) {
        self.items.remove(item);
    }

    /// Removes the executions that no longer run, and returns them in a stable order.
    fn end_others(&mut self, runs: impl Fn(&LiveExecution) -> bool) -> Vec<LiveExecution> {
        let mut ended = Vec::new();
        self.items.retain(|_, executions| {
            ended.extend(executions.extract_if(.., |known| !runs(known)));
            !executions.is_empty()
        });
        ended.sort_unstable_by_key(|known| (known.item, known.exec));
        ended
    }
}

impl Engine {
    /// Takes in hints of a worker in this process. A late hint is dropped: its execution has
    /// ended.
    pub(super) async fn on_hints(&mut self, hints: Vec<LiveExecution>) {
        let mut events = Vec::with_capacity(hints.len());
        hints.into_iter().for_each(|seen| self.show(seen, &mut events));
        if !events.is_empty() {
            self.emit(events).await;
        }
    }

    /// The events that follow from the executions that workers show: changes of phase, and ends of
    /// executions that no longer run.
    pub(super) fn update_live(
        &mut self,
        shown: impl Iterator<Item = LiveExecution>,
    ) -> Vec<EventKind> {
        let mut events = Vec::new();
        shown.for_each(|seen| self.show(seen, &mut events));
        let (core, now) = (&self.run.core, self.monotonic_ms());
        let ended =
            self.live.end_others(|live| core.is_running(now, &live.item, live.try_id, &live.exec));
        for LiveExecution { item, try_id, exec, .. } in ended {
            if let Some(ordinal) = core.ordinal(&item) {
                let name = self.planner.name(ordinal);
                events.push(EventKind::ExecutionEnded { item, name, try_id, exec });
            }
        }
        events
    }

    /// Adds the events that follow from one execution that a worker shows.
    fn show(&mut self, seen: LiveExecution, events: &mut Vec<EventKind>) {
        let LiveExecution { item, try_id, exec, phase, waiting_for } = seen;
        if !self.is_running(&seen) {
            return;
        }
        let change = self.live.show(seen);
        let Some(ordinal) =
            self.run.core.ordinal(&item).filter(|_| change.phase || change.waiting_for)
        else {
            return;
        };
        let name = self.planner.name(ordinal);
        if change.phase {
            let name = name.clone();
            events.push(EventKind::TrialPhase { item, name, try_id, exec, phase });
        }
        if change.waiting_for {
            events.push(match waiting_for {
                Some(dependency) => EventKind::TrialParked { item, name, try_id, exec, dependency },
                None => EventKind::TrialUnparked { item, name, try_id, exec },
            });
        }
    }

    fn is_running(&self, seen: &LiveExecution) -> bool {
        self.run.core.is_running(self.monotonic_ms(), &seen.item, seen.try_id, &seen.exec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution(item: u8, exec: u8, phase: Phase) -> LiveExecution {
        let (item, exec) = (ItemId::from_bytes([item; 16]), ExecId::from_bytes([exec; 16]));
        LiveExecution { item, try_id: TryId::first(1), exec, phase, waiting_for: None }
    }

    #[test]
    fn execution_event_is_sent_on_start_and_on_phase_change() {
        let mut live = LiveExecutions::default();
        let [setup, agent] =
            [Phase::EnvironmentSetup, Phase::AgentExecution].map(|phase| execution(1, 1, phase));
        let change = |phase, waiting_for| LiveExecutionChange { phase, waiting_for };
        assert_eq!(live.show(setup), change(true, false));
        assert_eq!(live.show(setup), change(false, false));
        assert_eq!(live.show(agent), change(true, false));
        let parked = LiveExecution { waiting_for: Some(Dependency::ContainerEngine), ..agent };
        assert_eq!(live.show(parked), change(false, true));
        assert_eq!(live.show(agent), change(false, true));
        live.end(&agent.item, &agent.exec);
        assert_eq!(live.show(agent), change(true, false), "it is shown again");
    }

    #[test]
    fn execution_ended_without_event_is_ended_once() {
        let mut live = LiveExecutions::default();
        let all = [(1, 1), (1, 2), (2, 3), (3, 4), (4, 5)];
        let all = all.map(|(item, exec)| execution(item, exec, Phase::AgentExecution));
        all.iter().for_each(|seen| assert!(live.show(*seen).phase));
        live.settle(&all[2].item);
        live.end(&all[3].item, &all[3].exec);
        let runs = |known: &LiveExecution| known.exec == all[1].exec;
        assert_eq!(live.end_others(runs), [all[0], all[4]]);
        assert_eq!(live.end_others(runs), []);
        assert_eq!(live.end_others(|_| false), [all[1]]);
    }
}
