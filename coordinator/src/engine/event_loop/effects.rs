//! Execution of effects whose records are durable.

use std::sync::Arc;

use rollout_protocol::event::EventKind;
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::offer::Offer;

use super::Engine;
use super::publisher::PublishBatch;
use crate::engine::core::{CoreEffect, ItemRetry, ItemSettlement};
use crate::engine::open::settlement;
use crate::engine::{Planner, RunError};

impl<P: Planner> Engine<P> {
    pub(super) async fn perform(&mut self, effects: Vec<CoreEffect>) -> Result<(), RunError> {
        let mut out = PublishBatch::default();
        let mut events = Vec::new();
        let (mut settlements, mut reopened) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                CoreEffect::Offer { item, try_id, ordinal, class } => {
                    let offer = self.planner.offer(self.run.run, item, try_id, ordinal);
                    out.offers.push(Offer { class, ..offer });
                }
                CoreEffect::Withdraw { item, try_id } => out.withdraw(item, try_id),
                CoreEffect::Answer { id, answer } => self.answer_claim(id, answer),
                CoreEffect::Settled(settled) => {
                    let spec = self.run.core.settled_spec(&settled.item);
                    self.planner.on_settled(&settled, spec);
                    self.live.settle(&settled.item);
                    let lane = settled.ordinal.and_then(|ordinal| self.planner.lane(ordinal));
                    self.backlog.settle(lane);
                    let without_ids = settled.verdict.model_use.calls_without_ids;
                    if let Some(event) = self.settled(*settled) {
                        if let EventKind::TrialSettled { settlement, .. } = &event {
                            settlements.push(Arc::clone(settlement));
                        }
                        events.push(event);
                        events.extend(self.without_ids(without_ids));
                    }
                }
                CoreEffect::Retry(retry) => {
                    self.live.end(&retry.item, &retry.exec);
                    events.push(self.retry(*retry));
                }
                CoreEffect::Lost { item, ordinal, try_id, exec } => {
                    self.live.end(&item, &exec);
                    let name = self.planner.name(ordinal);
                    events.push(EventKind::TrialLost { item, name, try_id, exec });
                }
                CoreEffect::EventChunk(chunk) => self.planner.on_event_chunk(*chunk),
                CoreEffect::LookForResults { item } => out.lookups.push(item),
                CoreEffect::StopExecution { exec, level } => {
                    let run = self.run.run;
                    out.controls.push(ControlMessage::StopExecution { run, exec, level });
                }
                CoreEffect::Receipt { id, receipt } => self.answer_command(id, receipt),
                CoreEffect::Reopened(former) => {
                    reopened.push(former.item);
                    let ordinal = self.run.core.ordinal(&former.item);
                    self.backlog.reopen(ordinal.and_then(|ordinal| self.planner.lane(ordinal)));
                    events.extend(self.reopened(*former));
                }
                CoreEffect::Paused(true) => events.push(EventKind::RunPaused),
                CoreEffect::Paused(false) => events.push(EventKind::RunContinued),
                CoreEffect::Stop(level) => {
                    out.controls.push(ControlMessage::StopRun { run: self.run.run, level });
                }
            }
        }
        self.publisher.send(self.run.run, out).await?;
        if !settlements.is_empty() && self.planner.keeps_settlements() {
            self.run.records.add(settlements);
        }
        if !reopened.is_empty() {
            self.run.records.reopen(reopened);
        }
        if !events.is_empty() {
            self.emit(events).await;
        }
        Ok(())
    }

    fn answer_claim(&mut self, id: u64, answer: ClaimAnswer) {
        if let Some(reply) = self.claims.remove(&id) {
            // A worker that no longer waits asks again.
            let _no_longer_waiting = reply.send(answer);
        }
    }

    fn answer_command(&mut self, id: u64, receipt: CommandReceipt) {
        if let Some(reply) = self.commands.remove(&id) {
            let _no_longer_waiting = reply.send(receipt);
        } else if !self.cancellations.answer(id, &receipt) {
            self.retries.answer(id, &receipt);
            self.begin_retry();
        }
    }

    fn settled(&self, settled: ItemSettlement) -> Option<EventKind> {
        // A growing plan may have the item only since it was told of the settlement.
        let planned = || Some(self.planner.find(&settled.item)?.ordinal);
        let ordinal = settled.ordinal.or_else(planned)?;
        let name = self.planner.name(ordinal);
        let commit = self.planner.commit(ordinal);
        let settlement = Arc::new(settlement(settled, name, commit));
        Some(EventKind::TrialSettled { ordinal, replayed: false, settlement })
    }

    /// Says once that calls have no token ids, although the job asks for them.
    fn without_ids(&mut self, calls: u64) -> Option<EventKind> {
        if calls == 0 || std::mem::replace(&mut self.said_without_ids, true) {
            return None;
        }
        let message = without_ids_message(calls);
        Some(EventKind::Warning { message })
    }

    fn reopened(&self, former: ItemSettlement) -> Option<EventKind> {
        let (item, ordinal) = (former.item, self.planner.find(&former.item)?.ordinal);
        let name = self.planner.name(ordinal);
        let former = settlement(former, name.clone(), self.planner.commit(ordinal));
        Some(EventKind::TrialReopened { item, name, ordinal, former: Some(Arc::new(former)) })
    }

    fn retry(&self, retry: ItemRetry) -> EventKind {
        let ItemRetry { item, ordinal, try_id, exec, error, wait_ms } = retry;
        let name = self.planner.name(ordinal);
        EventKind::TrialRetry { item, name, try_id, exec, error, wait_ms }
    }
}

/// The warning of model calls without token ids.
fn without_ids_message(calls: u64) -> String {
    let calls = match calls {
        1 => "1 model call of the first trial concerned has".to_owned(),
        _ => format!("{calls} model calls of the first trial concerned have"),
    };
    format!(
        "{calls} no token ids, which `capture: tokens` asks for: nothing can be trained on them. The \
         server, or a router before it, does not know `return_token_ids`, or takes the ids out of its \
         replies"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_of_calls_without_token_ids_agrees_with_their_number() {
        for (calls, start) in [
            (1, "1 model call of the first trial concerned has no token ids, "),
            (2, "2 model calls of the first trial concerned have no token ids, "),
        ] {
            let message = without_ids_message(calls);
            assert!(message.starts_with(start), "{message}");
        }
    }
}
