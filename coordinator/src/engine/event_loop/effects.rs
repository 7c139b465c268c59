//! Carries out effects whose records are durable.

use std::sync::Arc;

use rollout_protocol::event::EventKind;
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::offer::Offer;

use super::Engine;
use super::outlet::Outgoing;
use crate::engine::core::{Effect, Retry, Settled};
use crate::engine::open::settlement;
use crate::engine::{Planner, RunError};

impl<P: Planner> Engine<P> {
    pub(super) async fn perform(&mut self, effects: Vec<Effect>) -> Result<(), RunError> {
        let mut out = Outgoing::default();
        let mut events = Vec::new();
        let mut settlements = Vec::new();
        for effect in effects {
            match effect {
                Effect::Offer { item, try_id, ordinal, class } => {
                    let offer = self.planner.offer(self.run.run, item, try_id, ordinal);
                    out.offers.push(Offer { class, ..offer });
                }
                Effect::Withdraw { item, try_id } => out.withdraw(item, try_id),
                Effect::Answer { id, answer } => {
                    if let Some(reply) = self.claims.remove(&id) {
                        // A worker that no longer waits asks again.
                        let _no_longer_waiting = reply.send(answer);
                    }
                }
                Effect::Settled(settled) => {
                    let spec = self.run.core.settled_spec(&settled.item);
                    self.planner.settled(&settled, spec);
                    self.live.settle(&settled.item);
                    let event = self.settled(*settled);
                    if let Some(EventKind::TrialSettled { settlement, .. }) = &event {
                        settlements.push(Arc::clone(settlement));
                    }
                    events.extend(event);
                }
                Effect::Retry(retry) => {
                    self.live.end(&retry.item, &retry.exec);
                    events.push(self.retry(*retry));
                }
                Effect::Lost { item, ordinal, try_id, exec } => {
                    self.live.end(&item, &exec);
                    let name = self.planner.name(ordinal);
                    events.push(EventKind::TrialLost { item, name, try_id, exec });
                }
                Effect::LookForResults { item } => out.lookups.push(item),
                Effect::StopExecution { exec, level } => {
                    let run = self.run.run;
                    out.controls.push(ControlMessage::StopExecution { run, exec, level });
                }
                Effect::Receipt { id, receipt } => {
                    if let Some(reply) = self.commands.remove(&id) {
                        let _no_longer_waiting = reply.send(receipt);
                    }
                }
                Effect::Stop(level) => {
                    out.controls.push(ControlMessage::StopRun { run: self.run.run, level });
                    events.push(EventKind::RunStopping { level });
                }
            }
        }
        self.outlet.send(self.run.run, out).await?;
        if !settlements.is_empty() {
            self.run.records.add(settlements);
        }
        if !events.is_empty() {
            self.emit(events).await;
        }
        Ok(())
    }

    fn settled(&self, settled: Settled) -> Option<EventKind> {
        // A plan that grows may have the item only since it heard of the settlement.
        let planned = || Some(self.planner.find(&settled.item)?.ordinal);
        let ordinal = settled.ordinal.or_else(planned)?;
        let name = self.planner.name(ordinal);
        let commit = self.planner.commit(ordinal);
        let settlement = Arc::new(settlement(settled, name, commit));
        Some(EventKind::TrialSettled { ordinal, replayed: false, settlement })
    }

    fn retry(&self, retry: Retry) -> EventKind {
        let Retry { item, ordinal, try_id, exec, error, wait_ms } = retry;
        let name = self.planner.name(ordinal);
        EventKind::TrialRetry { item, name, try_id, exec, error, wait_ms }
    }
}
