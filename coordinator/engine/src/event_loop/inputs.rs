//! Inputs of the engine.

use std::time::Duration;

use rollout_protocol::id::ItemId;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::position::ReportBatch;
use rollout_protocol::wire::report::Report;
use rollout_queue::traits::{PendingClaim, PendingCommand};
use tokio::sync::{mpsc, oneshot};

use super::{PhaseHints, QueueOutage};
use crate::RunError;
use crate::reconcile::PoolCapacity;

/// All inputs of a session.
#[derive(Debug)]
pub struct EngineInputs {
    /// Batches of reports, in order.
    pub reports: mpsc::Receiver<ReportBatch>,
    /// Messages about workers, queue and users.
    pub messages: mpsc::Receiver<EngineMessage>,
    /// Stops requested by the user.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Executions of a worker in this process that entered a phase, wait for a service or continue.
    /// Only hints for the event stream.
    pub hints: PhaseHints,
    /// Where the workers are: decides how the session begins and how a stop ends.
    pub workers: WorkerLocation,
}

/// Location of the workers.
#[derive(Debug)]
pub enum WorkerLocation {
    /// In this process.
    Local {
        /// Fires once when the worker has ended its executions and handed over their reports.
        quiesced: oneshot::Receiver<()>,
        /// Fires once when the results of previous sessions are reported and these reports are
        /// handed over: the rest is lost. Nothing is offered before.
        recovered: oneshot::Receiver<()>,
        /// Fires once when no environment of previous sessions is left, as far as can be seen.
        reaped: oneshot::Receiver<()>,
    },
    /// In processes of their own, which outlive this one.
    Remote,
}

/// One message to the engine.
#[derive(Debug)]
pub enum EngineMessage {
    /// Claims, each after the reports up to its arrival were handed over. For remote workers they
    /// come with the heartbeats seen then.
    Claims(Vec<PendingClaim>, Option<(Vec<ReceivedHeartbeat>, Duration)>),
    /// The last heartbeat of every worker, and how long every heartbeat was kept.
    Heartbeats(Vec<ReceivedHeartbeat>, Duration),
    /// The capacity of the workers.
    Capacity(PoolCapacity),
    /// The outage of the queue, if there is one now. It is repeated.
    QueueOutage(Option<QueueOutage>),
    /// The queue was unreachable.
    Reconnected,
    /// A reconciliation round ended.
    Observed(Vec<QueuedOffer>),
    /// Results of a missing item found in the store.
    Found {
        /// The item.
        item: ItemId,
        /// Reports made from its result markers.
        reports: Vec<Report>,
    },
    /// A user's command.
    Command(PendingCommand),
    /// A warning for the user.
    Warning(String),
    /// The session cannot continue.
    Failed(RunError),
}

/// One-time events of a session whose worker is in this process.
#[derive(Debug, Clone, Copy)]
pub(super) enum LocalWorkerEvent {
    Recovered,
    Quiesced,
    Reaped,
}

impl WorkerLocation {
    /// The next event that did not come yet: recovered, quiesced, reaped. Cancel-safe.
    pub(super) async fn next_event(&mut self, came: [bool; 3]) -> LocalWorkerEvent {
        let [was_recovered, has_quiesced, was_reaped] = came;
        let Self::Local { quiesced, recovered, reaped } = self else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = recovered, if !was_recovered => LocalWorkerEvent::Recovered,
            _ = quiesced, if !has_quiesced => LocalWorkerEvent::Quiesced,
            _ = reaped, if !was_reaped => LocalWorkerEvent::Reaped,
            else => std::future::pending().await,
        }
    }
}
