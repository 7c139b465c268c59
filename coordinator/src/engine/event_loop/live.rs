//! The executions that the event stream shows as running: each one that it shows, it also ends.

use std::collections::HashMap;

use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::EventKind;
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::phase::Phase;

use super::Engine;
use crate::engine::Planner;

/// The executions whose end the event stream still owes.
#[derive(Debug, Default)]
pub(super) struct LiveExecutions {
    items: HashMap<ItemId, Vec<LiveExecution>>,
}

/// An execution that is shown as running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LiveExecution {
    pub(super) item: ItemId,
    pub(super) try_id: TryId,
    pub(super) exec: ExecId,
    pub(super) phase: Phase,
    /// What it waits for, as its worker says.
    pub(super) parked: Option<Dependency>,
}

impl LiveExecutions {
    /// Takes in an execution that runs. Whether it, or its phase, is new.
    fn show(&mut self, seen: LiveExecution) -> bool {
        let executions = self.items.entry(seen.item).or_default();
        match executions.iter_mut().find(|known| known.exec == seen.exec) {
            Some(known) if *known == seen => false,
            Some(known) => {
                *known = seen;
                true
            }
            None => {
                executions.push(seen);
                true
            }
        }
    }

    /// What an execution waits for, as far as it was shown.
    fn parked(&self, item: &ItemId, exec: &ExecId) -> Option<Dependency> {
        let known = self.items.get(item)?.iter().find(|known| known.exec == *exec)?;
        known.parked
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

    /// Removes the executions that run no more, and returns them in a stable order.
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

impl<P: Planner> Engine<P> {
    /// A hint of a worker in this process. One that is late is dropped: the execution that it is
    /// about has ended.
    pub(super) async fn on_hint(&mut self, hint: EventKind) {
        match hint {
            EventKind::TrialPhase { item, try_id, exec, phase, .. } => {
                let seen = LiveExecution { item, try_id, exec, phase, parked: None };
                if !self.is_running(&seen) || !self.live.show(seen) {
                    return;
                }
            }
            EventKind::TrialParked { item, try_id, exec, .. }
            | EventKind::TrialUnparked { item, try_id, exec, .. } => {
                let now = self.monotonic_ms();
                if !self.run.core.is_running(now, &item, try_id, &exec) {
                    return;
                }
            }
            _ => {}
        }
        self.emit(vec![hint]).await;
    }

    /// The events that follow from the executions that workers show: those that run in another
    /// phase than before, and the ends of those that no longer run.
    pub(super) fn moved(&mut self, shown: impl Iterator<Item = LiveExecution>) -> Vec<EventKind> {
        let mut events = Vec::new();
        for seen in shown {
            let LiveExecution { item, try_id, exec, phase, parked } = seen;
            let former = self.live.parked(&item, &exec);
            if !self.is_running(&seen) || !self.live.show(seen) {
                continue;
            }
            let Some(ordinal) = self.run.core.ordinal(&item) else { continue };
            let trial = self.planner.name(ordinal);
            events.push(EventKind::TrialPhase { item, trial: trial.clone(), try_id, exec, phase });
            events.extend(match parked {
                same if same == former => None,
                Some(dependency) => {
                    Some(EventKind::TrialParked { item, trial, try_id, exec, dependency })
                }
                None => Some(EventKind::TrialUnparked { item, trial, try_id, exec }),
            });
        }
        let (core, now) = (&self.run.core, self.monotonic_ms());
        let ended =
            self.live.end_others(|live| core.is_running(now, &live.item, live.try_id, &live.exec));
        for LiveExecution { item, try_id, exec, .. } in ended {
            if let Some(ordinal) = core.ordinal(&item) {
                let trial = self.planner.name(ordinal);
                events.push(EventKind::ExecutionEnded { item, trial, try_id, exec });
            }
        }
        events
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
        LiveExecution { item, try_id: TryId::first(1), exec, phase, parked: None }
    }

    #[test]
    fn execution_is_news_when_it_begins_and_when_its_phase_changes() {
        let mut live = LiveExecutions::default();
        let [setup, agent] =
            [Phase::EnvironmentSetup, Phase::AgentExecution].map(|phase| execution(1, 1, phase));
        assert!(live.show(setup) && !live.show(setup) && live.show(agent));
        live.end(&agent.item, &agent.exec);
        assert!(live.show(agent), "it is shown again");
    }

    #[test]
    fn execution_that_ends_without_an_event_is_ended_once() {
        let mut live = LiveExecutions::default();
        let all = [(1, 1), (1, 2), (2, 3), (3, 4), (4, 5)];
        let all = all.map(|(item, exec)| execution(item, exec, Phase::AgentExecution));
        all.iter().for_each(|seen| assert!(live.show(*seen)));
        live.settle(&all[2].item);
        live.end(&all[3].item, &all[3].exec);
        let runs = |known: &LiveExecution| known.exec == all[1].exec;
        assert_eq!(live.end_others(runs), [all[0], all[4]]);
        assert_eq!(live.end_others(runs), []);
        assert_eq!(live.end_others(|_| false), [all[1]]);
    }
}
