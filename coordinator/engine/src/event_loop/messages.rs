//! Messages about workers, queue and users, as inputs of the core.

use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::event::EventKind;
use rollout_protocol::wire::command::RunCommand;
use rollout_protocol::wire::heartbeat::{ActiveExecution, ReceivedHeartbeat};
use rollout_queue::traits::{PendingClaim, PendingCommand};

use super::live::LiveExecution;
use super::run_files::read_part;
use super::{Engine, EngineMessage};
use crate::RunError;
use crate::core::CoreInput;
use crate::reconcile::PoolCapacity;

impl Engine {
    pub(super) async fn on_message(&mut self, message: EngineMessage) -> Result<(), RunError> {
        match message {
            EngineMessage::Claims(claims, heartbeats) => {
                if let Some((heartbeats, kept)) = heartbeats {
                    self.on_heartbeats(heartbeats, kept).await;
                }
                claims.into_iter().for_each(|claim| self.on_claim(claim));
            }
            EngineMessage::Heartbeats(heartbeats, kept) => {
                self.on_heartbeats(heartbeats, kept).await;
            }
            EngineMessage::Capacity(PoolCapacity { offer_limits, unplaceable, .. }) => {
                self.handle(CoreInput::OfferLimits(offer_limits));
                self.handle(CoreInput::Unplaceable(unplaceable));
                self.refresh_backlog().await?;
            }
            EngineMessage::QueueOutage(outage) => self.show_queue_outage(outage)?,
            EngineMessage::Reconnected => self.handle(CoreInput::Reconnected),
            EngineMessage::Observed(listed) => self.handle(CoreInput::Observed(listed)),
            EngineMessage::Found { item, reports } => {
                self.handle(CoreInput::Found { item, reports });
            }
            EngineMessage::Command(command) => self.on_command(command).await,
            EngineMessage::Warning(message) => {
                self.emit(vec![EventKind::Warning { message }]).await;
            }
            EngineMessage::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn on_claim(&mut self, PendingClaim { claim, reply }: PendingClaim) {
        if let Some(mark) = claim.stage {
            return self.on_stage(&claim, mark, reply);
        }
        let id = self.next_request_id();
        self.claims.insert(id, reply);
        self.handle(CoreInput::Claim { id, claim });
    }

    async fn on_command(&mut self, PendingCommand { command, reply }: PendingCommand) {
        match command {
            RunCommand::Cancel { selection } => self.on_cancel(selection, reply),
            RunCommand::Retry { request, selection } => self.on_retry(request, selection, reply),
            RunCommand::ReadFile { file, offset, max_bytes } => {
                let (layout, durable) = (self.run.layout.clone(), self.run.writer.durable_prefix());
                let read = move || read_part(&layout, durable, file, (offset, max_bytes));
                // A reader that no longer waits asks again.
                let _gone = reply.send(supervise::blocking(read).await);
            }
            RunCommand::Pause | RunCommand::Continue => {
                let id = self.next_request_id();
                self.commands.insert(id, reply);
                let is_paused = command == RunCommand::Pause;
                self.handle(CoreInput::Pause { id, is_paused });
            }
        }
    }

    pub(super) fn next_request_id(&mut self) -> u64 {
        self.next_claim_id += 1;
        self.next_claim_id
    }

    async fn on_heartbeats(&mut self, heartbeats: Vec<ReceivedHeartbeat>, kept: Duration) {
        // A worker that no longer waits asks again.
        self.claims.retain(|_, reply| !reply.is_closed());
        self.update_stages(&heartbeats);
        let shown = self.shown_executions(&heartbeats);
        self.handle(CoreInput::HeartbeatsKept(kept));
        self.handle(CoreInput::Heartbeats(heartbeats));
        // The core now knows which of these run.
        let moved = self.update_live(shown.into_iter());
        if !moved.is_empty() {
            self.emit(moved).await;
        }
    }

    /// The executions of this run that heartbeats show.
    fn shown_executions(&self, heartbeats: &[ReceivedHeartbeat]) -> Vec<LiveExecution> {
        let run = self.run.run;
        let shown = heartbeats.iter().flat_map(|seen| &seen.heartbeat.executions);
        let shown = shown.filter(|running| running.run == run && !running.claiming);
        shown
            .map(|running| {
                let ActiveExecution { item, try_id, exec, phase, parked: waiting_for, .. } =
                    *running;
                LiveExecution { item, try_id, exec, phase, waiting_for }
            })
            .collect()
    }
}
