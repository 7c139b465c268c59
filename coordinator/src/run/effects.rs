//! Carries out effects whose records are durable.

use std::sync::Arc;

use rollout_protocol::event::EventKind;
use rollout_protocol::id::{ItemId, TryId};
use rollout_protocol::wire::control::Control;
use rollout_worker::port::{Offered, Refused};

use super::engine::Engine;
use super::open::settlement;
use super::{Planner, RunError};
use crate::core::{Effect, Retry, Settled};

impl<P: Planner> Engine<P> {
    pub(super) async fn perform(&mut self, effects: Vec<Effect>) -> Result<(), RunError> {
        let mut offers = Vec::new();
        let mut withdrawn: Vec<(ItemId, TryId)> = Vec::new();
        let mut events = Vec::new();
        let mut settlements = Vec::new();
        for effect in effects {
            match effect {
                Effect::Offer { item, try_id, ordinal } => {
                    offers.push(self.planner.offer(self.run.run, item, try_id, ordinal));
                }
                Effect::Withdraw { item, try_id } => withdrawn.push((item, try_id)),
                Effect::Answer { id, answer } => {
                    if let Some(reply) = self.claims.remove(&id) {
                        // A worker that no longer waits asks again.
                        let _no_longer_waiting = reply.send(answer);
                    }
                }
                Effect::Settled(settled) => {
                    let event = self.settled(*settled);
                    if let Some(EventKind::TrialSettled { settlement, .. }) = &event {
                        settlements.push(Arc::clone(settlement));
                    }
                    events.extend(event);
                }
                Effect::Retry(retry) => events.push(self.retry(*retry)),
                Effect::Lost { item, ordinal, try_id, exec } => {
                    let trial = self.planner.name(ordinal);
                    events.push(EventKind::TrialLost { item, trial, try_id, exec });
                }
                Effect::LookForResults { .. }
                | Effect::StopExecution { .. }
                | Effect::Receipt { .. } => {}
                Effect::Stop(level) => {
                    self.dispatch.control(Control::StopRun { run: self.run.run, level }).await?;
                    events.push(EventKind::RunStopping { level });
                }
            }
        }
        if !withdrawn.is_empty() {
            self.dispatch.withdraw(self.run.run, &withdrawn).await?;
        }
        if !offers.is_empty() {
            let answers = self.dispatch.offer(&offers).await?;
            debug_assert!(
                answers.iter().all(is_in_queue),
                "an embedded queue has room: {answers:?}"
            );
        }
        if !settlements.is_empty() {
            self.run.records.add(settlements);
        }
        if !events.is_empty() {
            self.emit(events).await;
        }
        Ok(())
    }

    fn settled(&self, settled: Settled) -> Option<EventKind> {
        let ordinal = settled.ordinal?;
        let trial = self.planner.name(ordinal);
        let settlement = Arc::new(settlement(settled, trial));
        Some(EventKind::TrialSettled { ordinal, replayed: false, settlement })
    }

    fn retry(&self, retry: Retry) -> EventKind {
        let Retry { item, ordinal, try_id, error, wait_ms } = retry;
        let trial = self.planner.name(ordinal);
        EventKind::TrialRetry { item, trial, try_id, error, wait_ms }
    }
}

fn is_in_queue(answer: &Result<Offered, Refused>) -> bool {
    answer.is_ok()
}
