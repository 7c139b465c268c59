//! What is durable, for whoever tells others.

use std::sync::Arc;

use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::ReportPosition;
use rollout_worker::queue::traits::{Dispatch, QueueError};
use tokio::sync::watch;

use super::Engine;
use crate::engine::Planner;
use crate::engine::journal::Head;
use crate::engine::open::OpenRun;

/// How far a sitting has come, durably.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// What of the journal is durable.
    pub head: Head,
    /// Place of the last report that it holds.
    pub position: Option<ReportPosition>,
    /// Items of the plan.
    pub total: u64,
    /// Of these, settled ones.
    pub settled: u64,
    /// The sitting has ended in order.
    pub closed: bool,
}

/// Who is told what is durable.
#[derive(Debug)]
pub enum Keeper {
    /// A queue inside the process: it may forget what the journal holds.
    Queue(Arc<dyn Dispatch>),
    /// The keeper of the lock, who lets the queue forget what a successor could not lack.
    Lock(watch::Sender<Option<Standing>>),
}

impl Keeper {
    /// Records became durable, with the reports up to `reached` if there were any among them.
    pub(super) async fn durable(
        &self,
        run: RunId,
        reached: Option<ReportPosition>,
        standing: impl FnOnce() -> Standing,
    ) -> Result<(), QueueError> {
        match (self, reached) {
            (Self::Queue(dispatch), Some(position)) => dispatch.journalled(run, position).await,
            (Self::Queue(_), None) => Ok(()),
            (Self::Lock(told), _) => {
                told.send_replace(Some(standing()));
                Ok(())
            }
        }
    }

    /// The sitting has ended in order.
    pub(super) fn closed(&self, standing: Standing) {
        if let Self::Lock(told) = self {
            told.send_replace(Some(Standing { closed: true, ..standing }));
        }
    }
}

impl<P: Planner> Engine<P> {
    pub(super) fn standing(&self) -> Standing {
        self.run.standing(&self.planner)
    }
}

impl OpenRun {
    pub(in crate::engine) fn standing(&self, planner: &impl Planner) -> Standing {
        Standing {
            head: self.writer.head(),
            position: self.core.position(),
            total: planner.total(),
            settled: self.core.settled() as u64,
            closed: false,
        }
    }
}
