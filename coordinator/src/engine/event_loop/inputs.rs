//! Where the engine's inputs come from.

use std::time::Duration;

use rollout_protocol::id::ItemId;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::position::ReportBatch;
use rollout_protocol::wire::report::Report;
use rollout_worker::queue::traits::{PendingClaim, PendingCommand};
use tokio::sync::{mpsc, oneshot};

use super::PhaseHints;
use crate::engine::RunError;
use crate::engine::reconcile::PoolCapacity;

/// Everything that happens to a sitting.
#[derive(Debug)]
pub struct EngineInputs {
    /// Batches of reports, in order.
    pub reports: mpsc::Receiver<ReportBatch>,
    /// What else is learnt of workers, queue and users.
    pub news: mpsc::Receiver<EngineMessage>,
    /// Stops asked for by the user.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Executions of a worker in this process that entered a phase, wait for a service or continue.
    /// Only hints for the event stream.
    pub hints: PhaseHints,
    /// How the sitting begins and how a stop ends.
    pub workers: WorkerLocation,
}

/// Where the workers are.
#[derive(Debug)]
pub enum WorkerLocation {
    /// In this process.
    Here {
        /// Says once that the worker has ended its executions and that their reports were handed
        /// over.
        quiesced: oneshot::Receiver<()>,
        /// Says once that what former sittings executed is reported, and that the reports were
        /// handed over: the rest is lost. Nothing is offered before.
        recovered: oneshot::Receiver<()>,
        /// Says once that no environment of former sittings is left, as far as can be seen.
        reaped: oneshot::Receiver<()>,
    },
    /// In processes of their own, which live on when this one dies.
    Elsewhere,
}

/// One thing that was learnt.
#[derive(Debug)]
pub enum EngineMessage {
    /// Claims, each after the reports up to its arrival were handed over, with the hellos seen then
    /// when the workers are elsewhere.
    Claims(Vec<PendingClaim>, Option<(Vec<ReceivedHeartbeat>, Duration)>),
    /// The last hello of every worker, and for how long every hello was kept.
    Hellos(Vec<ReceivedHeartbeat>, Duration),
    /// What the workers can take.
    Capacity(PoolCapacity),
    /// The queue was out of reach.
    Reconnected,
    /// A round of reconciliation came to its end.
    Observed(Vec<QueuedOffer>),
    /// What the store has of an item that is nowhere.
    Found {
        /// The item.
        item: ItemId,
        /// Reports made from its result markers.
        reports: Vec<Report>,
    },
    /// A user's command.
    Command(PendingCommand),
    /// Something a person should know.
    Warning(String),
    /// The sitting cannot go on.
    Failed(RunError),
}

/// What happens once in a sitting whose worker is here.
#[derive(Debug, Clone, Copy)]
pub(super) enum LocalWorkerEvent {
    Recovered,
    Quiesced,
    Reaped,
}

impl WorkerLocation {
    /// The next turn after those that came: recovered, quiesced, reaped. May be dropped.
    pub(super) async fn next_event(&mut self, came: [bool; 3]) -> LocalWorkerEvent {
        let [was_recovered, has_quiesced, was_reaped] = came;
        let Self::Here { quiesced, recovered, reaped } = self else {
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
