//! What is learnt of workers, queue and users, as inputs of the core.

use std::time::Duration;

use rollout_protocol::event::EventKind;
use rollout_protocol::wire::command::{RunCommand, CommandReceipt};
use rollout_protocol::wire::heartbeat::{ActiveExecution, ReceivedHeartbeat};
use rollout_worker::queue::traits::{PendingClaim, PendingCommand};

use super::live::LiveExecution;
use super::{Engine, News};
use crate::engine::core::Input;
use crate::engine::reconcile::Capacity;
use crate::engine::{Planner, RunError};

impl<P: Planner> Engine<P> {
    pub(super) async fn on_news(&mut self, news: News) -> Result<(), RunError> {
        match news {
            News::Claims(claims, hellos) => {
                if let Some((hellos, kept)) = hellos {
                    self.on_hellos(hellos, kept).await;
                }
                claims.into_iter().for_each(|claim| self.on_claim(claim));
            }
            News::Hellos(hellos, kept) => self.on_hellos(hellos, kept).await,
            News::Capacity(Capacity { room, unplaceable, .. }) => {
                self.handle(Input::Room(room));
                self.handle(Input::Unplaceable(unplaceable));
            }
            News::Reconnected => self.handle(Input::Reconnected),
            News::Observed(listed) => self.handle(Input::Observed(listed)),
            News::Found { item, reports } => self.handle(Input::Found { item, reports }),
            News::Command(command) => self.on_command(command),
            News::Warning(message) => self.emit(vec![EventKind::Warning { message }]).await,
            News::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn on_claim(&mut self, PendingClaim { claim, reply }: PendingClaim) {
        if let Some(mark) = claim.stage {
            return self.on_stage(&claim, mark, reply);
        }
        let id = self.question();
        self.claims.insert(id, reply);
        self.handle(Input::Claim { id, claim });
    }

    fn on_command(&mut self, PendingCommand { command, reply }: PendingCommand) {
        match command {
            RunCommand::Cancel { selection } => {
                let items = self.planner.select(&selection);
                if items.is_empty() {
                    let refused = Some("the run has no such trial".to_owned());
                    // Whoever no longer waits can ask again.
                    let _gone = reply.send(CommandReceipt { refused, ..CommandReceipt::default() });
                    return;
                }
                let id = self.question();
                self.commands.insert(id, reply);
                self.handle(Input::Cancel { id, items });
            }
            RunCommand::Stop { level } => {
                self.stop(level);
                let owed = self.planner.total() - self.run.core.settled() as u64;
                let _gone = reply.send(CommandReceipt {
                    named: self.planner.total(),
                    settled: self.planner.total() - owed,
                    ended: owed,
                    refused: None,
                });
            }
        }
    }

    fn question(&mut self) -> u64 {
        self.next_question += 1;
        self.next_question
    }

    async fn on_hellos(&mut self, hellos: Vec<ReceivedHeartbeat>, kept: Duration) {
        // Who asked and no longer waits asks again.
        self.claims.retain(|_, reply| !reply.is_closed());
        self.show_stages(&hellos);
        let shown = self.shown(&hellos);
        self.handle(Input::HellosKept(kept));
        self.handle(Input::Hellos(hellos));
        // The core knows now which of these run.
        let moved = self.moved(shown.into_iter());
        if !moved.is_empty() {
            self.emit(moved).await;
        }
    }

    /// The executions of this run that hellos show.
    fn shown(&self, hellos: &[ReceivedHeartbeat]) -> Vec<LiveExecution> {
        let run = self.run.run;
        let shown = hellos.iter().flat_map(|seen| &seen.hello.executions);
        let shown = shown.filter(|running| running.run == run && !running.claiming);
        shown
            .map(|running| {
                let ActiveExecution { item, try_id, exec, phase, parked, .. } = *running;
                LiveExecution { item, try_id, exec, phase, parked }
            })
            .collect()
    }
}
