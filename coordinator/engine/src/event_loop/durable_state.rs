//! Durable state of a run session, and its listeners.

use std::sync::Arc;

use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::ReportPosition;
use rollout_queue::traits::{Dispatch, QueueError};
use tokio::sync::watch;

use super::Engine;
use crate::Planner;
use crate::journal::JournalPrefix;
use crate::open::OpenRun;

/// Durable progress of a session.
#[derive(Debug, Clone, Copy)]
pub struct DurableState {
    /// The durable part of the journal.
    pub prefix: JournalPrefix,
    /// Position of the last report that it holds.
    pub position: Option<ReportPosition>,
    /// Items of the plan.
    pub total: u64,
    /// Of these, settled ones.
    pub settled: u64,
    /// Whether the session has ended in order.
    pub closed: bool,
}

/// Listener for durable state.
#[derive(Debug)]
pub enum DurableStateListener {
    /// A queue inside the process: it may purge what the journal holds.
    Queue(Arc<dyn Dispatch>),
    /// The renewal of the lock, which lets the queue purge what a successor cannot lack.
    Lock(watch::Sender<Option<DurableState>>),
}

impl DurableStateListener {
    /// Records became durable, with the reports up to `reached` if there were any among them.
    pub(super) async fn notify_durable(
        &self,
        run: RunId,
        reached: Option<ReportPosition>,
        state: impl FnOnce() -> DurableState,
    ) -> Result<(), QueueError> {
        match (self, reached) {
            (Self::Queue(dispatch), Some(position)) => dispatch.mark_journaled(run, position).await,
            (Self::Queue(_), None) => Ok(()),
            (Self::Lock(told), _) => {
                told.send_replace(Some(state()));
                Ok(())
            }
        }
    }

    /// The session has ended in order.
    pub(super) fn notify_closed(&self, state: DurableState) {
        if let Self::Lock(told) = self {
            told.send_replace(Some(DurableState { closed: true, ..state }));
        }
    }
}

impl Engine {
    pub(super) fn durable_state(&self) -> DurableState {
        self.run.durable_state(&*self.planner)
    }
}

impl OpenRun {
    pub(crate) fn durable_state(&self, planner: &dyn Planner) -> DurableState {
        DurableState {
            prefix: self.writer.durable_prefix(),
            position: self.core.position(),
            total: planner.total(),
            settled: self.core.settled() as u64,
            closed: false,
        }
    }
}
