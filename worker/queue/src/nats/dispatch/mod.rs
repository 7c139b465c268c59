//! The coordinator's side of the queue.

mod ensure_streams;
mod heartbeats;
mod list;
mod offers;
mod old_reports;
mod pools;
mod purge;
mod reports;
pub(super) mod requests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::supervise::{self, Task};
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{OfferOutcome, PreviousPools, PublishError, QueuedOffer};
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::offer::{Offer, SizeClass};
use rollout_protocol::wire::position::{Incarnation, ReportBatch, ReportPosition};
use tokio::sync::watch;
use tokio::time::Instant;

use self::ensure_streams::StreamMaintainer;
use self::heartbeats::HeartbeatWatch;
use self::pools::ExpectedPools;
use self::purge::ReportPurger;
use self::reports::NatsReportReaders;
use self::requests::IncomingRequests;
use super::client::NatsClient;
use super::connect::Nats;
use super::names::NatsName;
use super::setup::NatsSetupError;
use crate::traits::{ConnectionStatus, Dispatch, PendingClaim, PendingCommand, QueueError};

/// Sends a request, and once more after creating what was missing. Not a function: closures over
/// borrowed futures are not `Send`.
macro_rules! repairing {
    ($self:ident, $what:expr) => {
        match $what.await {
            Err(fault) if fault.is_missing() => {
                $self.repair().await?;
                $what.await
            }
            done => done,
        }
    };
}

/// The coordinator's side of a pool. Missing streams, consumers and buckets are created again.
#[derive(Debug)]
pub struct NatsDispatch {
    nats: Nats,
    pool: NatsName,
    streams: Arc<StreamMaintainer>,
    pools: Arc<ExpectedPools>,
    readers: NatsReportReaders,
    purges: ReportPurger,
    requests: IncomingRequests,
    heartbeats: HeartbeatWatch,
    /// Attempts to create what is missing. A server without its cluster fails at that all the time.
    repairs: WarningLimiter,
    _stream_task: Task<()>,
}

impl NatsDispatch {
    pub(super) async fn new(
        nats: Nats,
        pool: NatsName,
        classes: Vec<SizeClass>,
    ) -> Result<Self, NatsSetupError> {
        let client = nats.client();
        offers::check_permission(client, &pool).await?;
        let heartbeats = HeartbeatWatch::watch(client.clone()).await?;
        old_reports::move_old_reports(client).await?;
        let pools = Arc::new(ExpectedPools::new(pool.clone()));
        let requests = IncomingRequests::start(client.clone(), pools.clone());
        let purges = ReportPurger::start(client.clone());
        let streams = Arc::new(StreamMaintainer::new(nats.clone(), pool.clone(), classes));
        let stream_task = supervise::spawn("premises", streams.clone().run());
        let readers = NatsReportReaders::new(pools.clone());
        Ok(Self {
            nats,
            pool,
            streams,
            pools,
            readers,
            purges,
            requests,
            heartbeats,
            repairs: WarningLimiter::default(),
            _stream_task: stream_task,
        })
    }

    fn client(&self) -> &NatsClient {
        self.nats.client()
    }

    async fn repair(&self) -> Result<(), QueueError> {
        let message = "a stream, consumer or bucket is missing on the server: creating it again";
        self.repairs.warn(&message);
        self.streams.prepare().await
    }
}

#[async_trait]
impl Dispatch for NatsDispatch {
    async fn incarnation(&self) -> Result<Incarnation, QueueError> {
        Ok(repairing!(self, self.client().current_incarnation())?)
    }

    fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.client().connection_status()
    }

    async fn offer(
        &self,
        offers: &[Offer],
    ) -> Result<Vec<Result<OfferOutcome, PublishError>>, QueueError> {
        let mut answers = offers::publish_offers(self.client(), &self.pool, offers).await?;
        let missing: Vec<usize> = (0..offers.len())
            .filter(|i| matches!(&answers[*i], Err(fault) if fault.is_missing()))
            .collect();
        if !missing.is_empty() {
            self.repair().await?;
            let again: Vec<Offer> = missing.iter().map(|i| offers[*i]).collect();
            let more = offers::publish_offers(self.client(), &self.pool, &again).await?;
            for (index, answer) in missing.into_iter().zip(more) {
                answers[index] = answer;
            }
        }
        answers.into_iter().map(offers::offer_outcome).collect()
    }

    async fn withdraw(&self, run: RunId, tries: &[(ItemId, TryId)]) -> Result<(), QueueError> {
        Ok(repairing!(self, offers::delete_offers(self.client(), run, tries))?)
    }

    async fn list(&self, run: RunId) -> Result<Vec<QueuedOffer>, QueueError> {
        Ok(repairing!(self, list::list_offers(self.client(), run))?)
    }

    fn set_previous_pools(&self, run: RunId, former: PreviousPools) {
        self.pools.set_previous(run, former);
    }

    async fn reports(
        &self,
        run: RunId,
        from: Option<ReportPosition>,
        max: usize,
        wait: Duration,
    ) -> Result<ReportBatch, QueueError> {
        let deadline = Instant::now() + wait;
        let found = repairing!(self, self.readers.read(self.client(), run, from, max, deadline))?;
        found.ok_or(QueueError::Position)
    }

    async fn mark_journaled(&self, run: RunId, position: ReportPosition) -> Result<(), QueueError> {
        self.purges.purge_up_to(run, position);
        Ok(())
    }

    async fn remove_reports(&self, run: RunId, last: u64) -> Result<(), QueueError> {
        Ok(purge::purge_below(self.client(), run, last.saturating_add(1)).await?)
    }

    async fn next_claim(&self, run: RunId) -> Result<PendingClaim, QueueError> {
        self.requests.next_claim(run).await
    }

    async fn heartbeats(&self) -> Result<Vec<ReceivedHeartbeat>, QueueError> {
        Ok(self.heartbeats.heartbeats())
    }

    fn heartbeat_retention(&self) -> Duration {
        self.heartbeats.retention()
    }

    async fn next_command(&self, run: RunId) -> Result<PendingCommand, QueueError> {
        self.requests.next_command(run).await
    }

    async fn last_report_sequence(&self, run: RunId) -> Result<u64, QueueError> {
        let (stream, subject) =
            (&self.client().names.reports, self.client().names.run_reports(run));
        let last = repairing!(self, self.client().last_message(stream, &subject))?;
        Ok(last.map_or(0, |stored| stored.sequence))
    }

    async fn control(&self, control: ControlMessage) -> Result<(), QueueError> {
        let run = control.run();
        let payload = serde_json::to_vec(&control).expect("text keys only");
        Ok(self.client().send(self.client().names.control(run), payload.into()).await?)
    }
}
