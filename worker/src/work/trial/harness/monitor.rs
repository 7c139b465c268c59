//! The company of a harness while its command runs: its controls and its live events.

use std::time::Duration;

use rollout_base::secrets::Redactor;
use rollout_environment::Environment;
use rollout_protocol::spec::agent::AgentKind;

use super::control::{HarnessController, WrittenControls};
use super::input::PlacedHarness;
use super::live::LiveEvents;
use crate::work::trial::TrialContext;

/// Handles the controls of one command, and stores its events while it runs. For agents without a
/// harness it does nothing.
#[derive(Debug)]
pub(in crate::work::trial) struct HarnessMonitor<'a> {
    controller: HarnessController<'a>,
    live: Option<LiveEvents<'a>>,
}

impl<'a> HarnessMonitor<'a> {
    /// The monitor of a command that begins now, in the task's step with this index. `placed` are
    /// the documents of a harness.
    pub(in crate::work::trial) fn new(
        ctx: &'a TrialContext,
        placed: Option<&PlacedHarness>,
        step: usize,
        redactor: &Redactor,
    ) -> Self {
        let (written, agent) = (WrittenControls::default(), &ctx.agent.kind);
        let initial = placed.map(|placed| &placed.initial);
        let mailbox = &*ctx.execution.controls;
        let controller = HarnessController::new(mailbox, agent, initial, written.clone());
        let live = match (agent, placed) {
            (AgentKind::Harness(spec), Some(placed)) => spec.events_path.as_ref().map(|path| {
                let validator = placed.validator(&spec.manifest());
                let sink = &*ctx.execution.event_log;
                LiveEvents::new(path.clone(), sink, step, (validator, written), redactor)
            }),
            _ => None,
        };
        Self { controller, live }
    }

    /// Handles controls and stores events. Returns only when the command must be ended because it
    /// ignored a `stop`, with the grace time that passed. May be dropped at the end of the command.
    pub(in crate::work::trial) async fn wait_until_overdue(
        &mut self,
        environment: &dyn Environment,
    ) -> Duration {
        let Self { controller, live } = self;
        let storing = async {
            match live {
                Some(live) => live.store(environment).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            grace = controller.wait_until_overdue(environment) => grace,
            never = storing => match never {},
        }
    }

    /// Ends the controls of a command that has ended, see [`HarnessController::finish`], and gives
    /// what is known of them and of the events to `placed`.
    pub(in crate::work::trial) async fn finish(
        self,
        environment: Option<&dyn Environment>,
        placed: Option<&mut PlacedHarness>,
    ) {
        let session = self.controller.finish(environment).await;
        if let Some(placed) = placed {
            placed.session = session;
            placed.stored = self.live.map(LiveEvents::finish);
        }
    }
}
