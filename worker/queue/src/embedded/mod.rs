//! The queue inside the process: the model broker behind both queue traits.
//!
//! It does not outlive its process, so a report is acknowledged only when the coordinator's journal
//! holds it: until then the worker keeps the result.

mod durable_ack;
mod kv_store;
pub mod model;
mod requests;
mod trial_controls;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollout_protocol::id::{ItemId, RunId, TryId, WorkerId};
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{
    Delivery, FreeCapacity, MessageToken, OfferOutcome, PreviousPools, PublishError, QueuedOffer,
};
use rollout_protocol::wire::heartbeat::{Heartbeat, ReceivedHeartbeat};
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::output::TrialAnswer;
use rollout_protocol::wire::position::{Incarnation, ReportBatch, ReportPosition};
use rollout_protocol::wire::report::Report;
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlRequest};
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::{Instant, timeout_at};

use self::durable_ack::DurableAcks;
pub use self::kv_store::EmbeddedKvStore;
use self::model::{BrokerModel, BrokerModelConfig};
use self::requests::PendingRequests;
use self::trial_controls::TrialControls;
use crate::traits::{
    ConnectionStatus, Dispatch, PendingClaim, PendingCommand, PendingTrialRequest, QueueError,
    RunControl, WorkSource,
};

/// Commands that a slow worker may lag behind by. They are hints.
const CONTROL_CAPACITY: usize = 1024;

/// A queue without a server. Its state is lost with the process, and every process is a new
/// incarnation.
#[derive(Debug)]
pub struct EmbeddedQueue {
    model: Mutex<BrokerModel>,
    start: Instant,
    work: Notify,
    reports: Notify,
    /// Absent when reports are acknowledged on arrival.
    durable_acks: Option<DurableAcks>,
    claims: PendingRequests<Claim, ClaimAnswer>,
    commands: PendingRequests<RunCommand, CommandReceipt>,
    trial_controls: TrialControls,
    heartbeats: Mutex<HashMap<WorkerId, (Heartbeat, Instant)>>,
    controls: broadcast::Sender<ControlMessage>,
    status: watch::Sender<ConnectionStatus>,
}

impl EmbeddedQueue {
    /// An empty queue. Must be created inside the runtime it is used in.
    pub fn new(config: BrokerModelConfig) -> Self {
        Self::with_durable_acks(config, Some(DurableAcks::default()))
    }

    /// A queue that acknowledges reports at once, as a server with a disk does.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_immediate_acks(config: BrokerModelConfig) -> Self {
        Self::with_durable_acks(config, None)
    }

    fn with_durable_acks(config: BrokerModelConfig, durable_acks: Option<DurableAcks>) -> Self {
        let incarnation = Incarnation(rand::random());
        Self {
            model: Mutex::new(BrokerModel::new(incarnation, config)),
            start: Instant::now(),
            work: Notify::new(),
            reports: Notify::new(),
            durable_acks,
            claims: PendingRequests::default(),
            commands: PendingRequests::default(),
            trial_controls: TrialControls::default(),
            heartbeats: Mutex::default(),
            controls: broadcast::Sender::new(CONTROL_CAPACITY),
            status: watch::Sender::new(ConnectionStatus { up: true, connections: 1 }),
        }
    }

    /// Applies a fault to the broker, bypassing all clients. Clients of the queue itself see a new
    /// connection, as after every fault of a server.
    #[cfg(any(test, feature = "testing"))]
    pub fn inject_fault<T>(&self, fault: impl FnOnce(&mut BrokerModel) -> T) -> T {
        let value = fault(&mut self.model());
        if let Some(durable_acks) = &self.durable_acks {
            durable_acks.invalidate();
        }
        self.status.send_modify(|status| status.connections += 1);
        self.work.notify_waiters();
        self.reports.notify_waiters();
        value
    }

    fn model(&self) -> MutexGuard<'_, BrokerModel> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// When a waiting pull must check again without a notification.
    fn next_wakeup(&self, deadline: Instant) -> Instant {
        self.model().next_expiry().map_or(deadline, |expiry| deadline.min(self.start + expiry))
    }
}

impl Default for EmbeddedQueue {
    fn default() -> Self {
        Self::new(BrokerModelConfig::default())
    }
}

/// A pull is cancel-safe: it takes nothing before it returns.
#[async_trait]
impl WorkSource for EmbeddedQueue {
    async fn pull(
        &self,
        capacity: FreeCapacity,
        wait: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        let deadline = Instant::now() + wait;
        loop {
            let mut told = std::pin::pin!(self.work.notified());
            told.as_mut().enable();
            let deliveries = self.model().pull_fitting(self.now(), capacity);
            if !deliveries.is_empty() || capacity.slots == 0 || Instant::now() >= deadline {
                return Ok(deliveries);
            }
            let _looked_too_long = timeout_at(self.next_wakeup(deadline), told).await;
        }
    }

    async fn progress(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.model().progress(self.now(), tokens);
        Ok(())
    }

    async fn ack(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.model().ack(tokens);
        Ok(())
    }

    async fn nak(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.model().nak(tokens);
        self.work.notify_waiters();
        Ok(())
    }

    async fn claim(&self, claim: Claim) -> Result<ClaimAnswer, QueueError> {
        self.claims.ask(claim.run, claim).await
    }

    async fn report(
        &self,
        reports: Vec<Report>,
    ) -> Result<Vec<Result<(), PublishError>>, QueueError> {
        let runs: Vec<RunId> = reports.iter().map(|report| report.run).collect();
        let (answers, awaited) = {
            let mut model = self.model();
            let answers = model.report(reports);
            let awaited = self.durable_acks.as_ref().map(|j| (j, j.awaited(&runs, &answers)));
            (answers, awaited)
        };
        self.reports.notify_waiters();
        if let Some((durable_acks, awaited)) = awaited {
            durable_acks.wait(&awaited).await?;
        }
        Ok(answers.into_iter().map(|answer| answer.map(|_sequence| ())).collect())
    }

    async fn is_contested(&self, claim: &Claim) -> Result<bool, QueueError> {
        let heartbeats = self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = self.model().config().lease;
        let mut live = heartbeats.values().filter(|(_, at)| at.elapsed() < lease);
        Ok(live.any(|(heartbeat, _)| claim.is_contested_by(heartbeat)))
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<(), QueueError> {
        let mut heartbeats = self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner);
        heartbeats.insert(heartbeat.worker.clone(), (heartbeat, Instant::now()));
        Ok(())
    }

    fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    fn controls(&self) -> broadcast::Receiver<ControlMessage> {
        self.controls.subscribe()
    }

    async fn next_trial_request(&self) -> PendingTrialRequest {
        self.trial_controls.next().await
    }

    async fn answer_trial_request(
        &self,
        reply_to: String,
        answer: TrialAnswer,
    ) -> Result<(), QueueError> {
        self.trial_controls.answer(&reply_to, answer);
        Ok(())
    }
}

/// For users inside the process. Other processes do not reach this queue.
#[async_trait]
impl RunControl for EmbeddedQueue {
    async fn command(&self, run: RunId, command: RunCommand) -> Result<CommandReceipt, QueueError> {
        self.commands.ask(run, command).await
    }

    async fn trial_control(
        &self,
        request: &TrialControlRequest,
        wait: Duration,
    ) -> Result<Option<TrialControlReceipt>, QueueError> {
        self.trial_controls.ask(request.clone(), wait).await
    }
}

#[async_trait]
impl Dispatch for EmbeddedQueue {
    async fn incarnation(&self) -> Result<Incarnation, QueueError> {
        Ok(self.model().incarnation())
    }

    fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    async fn offer(
        &self,
        offers: &[Offer],
    ) -> Result<Vec<Result<OfferOutcome, PublishError>>, QueueError> {
        let answers = self.model().offer(offers);
        self.work.notify_waiters();
        Ok(answers)
    }

    async fn withdraw(&self, run: RunId, tries: &[(ItemId, TryId)]) -> Result<(), QueueError> {
        self.model().withdraw(run, tries);
        Ok(())
    }

    async fn list(&self, run: RunId) -> Result<Vec<QueuedOffer>, QueueError> {
        Ok(self.model().list(run))
    }

    /// No effect: this process is the only pool.
    fn set_previous_pools(&self, _run: RunId, _former: PreviousPools) {}

    async fn reports(
        &self,
        run: RunId,
        from: Option<ReportPosition>,
        max: usize,
        wait: Duration,
    ) -> Result<ReportBatch, QueueError> {
        let deadline = Instant::now() + wait;
        loop {
            let mut told = std::pin::pin!(self.reports.notified());
            told.as_mut().enable();
            let found = self.model().reports(run, from, max)?;
            if !found.is_empty() || max == 0 || Instant::now() >= deadline {
                return Ok(found.into());
            }
            let _waited_in_vain = timeout_at(deadline, told).await;
        }
    }

    async fn mark_journaled(&self, run: RunId, position: ReportPosition) -> Result<(), QueueError> {
        let mut model = self.model();
        if position.incarnation == model.incarnation() {
            model.purge(run, position);
            if let Some(journalled) = &self.durable_acks {
                journalled.mark_durable(run, position.sequence);
            }
        }
        Ok(())
    }

    async fn remove_reports(&self, run: RunId, last: u64) -> Result<(), QueueError> {
        self.model().remove_reports(run, last);
        Ok(())
    }

    async fn next_claim(&self, run: RunId) -> Result<PendingClaim, QueueError> {
        let (claim, reply) = self.claims.next(run).await;
        Ok(PendingClaim { claim, reply })
    }

    async fn next_command(&self, run: RunId) -> Result<PendingCommand, QueueError> {
        let (command, reply) = self.commands.next(run).await;
        Ok(PendingCommand { command, reply })
    }

    async fn last_report_sequence(&self, run: RunId) -> Result<u64, QueueError> {
        Ok(self.model().last_report_sequence(run))
    }

    async fn heartbeats(&self) -> Result<Vec<ReceivedHeartbeat>, QueueError> {
        let heartbeats = self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen: Vec<ReceivedHeartbeat> = (heartbeats.values())
            .map(|(heartbeat, at)| ReceivedHeartbeat {
                heartbeat: heartbeat.clone(),
                age: at.elapsed(),
            })
            .collect();
        seen.sort_unstable_by(|a, b| a.heartbeat.worker.cmp(&b.heartbeat.worker));
        Ok(seen)
    }

    fn heartbeat_retention(&self) -> Duration {
        self.now()
    }

    async fn control(&self, control: ControlMessage) -> Result<(), QueueError> {
        let _no_receiver = self.controls.send(control);
        Ok(())
    }
}
