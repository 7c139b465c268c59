//! The coordinator's side.

mod asked;
mod hellos;
mod list;
mod offers;
mod old_reports;
mod pools;
mod premises;
mod purge;
mod reports;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{PreviousPools, QueuedOffer, OfferOutcome, PublishError};
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::offer::{Offer, SizeClass};
use rollout_protocol::wire::position::{Incarnation, ReportPosition, ReportBatch};
use tokio::sync::watch;
use tokio::time::Instant;

use self::asked::Asked;
use self::hellos::Hellos;
use self::pools::Pools;
use self::premises::Premises;
use self::purge::Purges;
use self::reports::Readers;
use super::connect::Nats;
use super::link::Link;
use super::names::Name;
use super::setup::SetupError;
use crate::queue::traits::{Contact, Dispatch, PendingClaim, PendingCommand, QueueError};
use crate::supervise::{self, Task};

/// Does something, and once more after making what was missing. No function: closures over
/// borrowed futures cannot be sent.
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

/// The coordinator's side of a pool. Streams, consumers and buckets that it misses are made again.
#[derive(Debug)]
pub struct NatsDispatch {
    nats: Nats,
    pool: Name,
    premises: Arc<Premises>,
    pools: Arc<Pools>,
    readers: Readers,
    purges: Purges,
    asked: Asked,
    hellos: Hellos,
    _keeper: Task<()>,
}

impl NatsDispatch {
    pub(super) async fn new(
        nats: Nats,
        pool: Name,
        classes: Vec<SizeClass>,
    ) -> Result<Self, SetupError> {
        let link = nats.link();
        let hellos = Hellos::watch(link.clone()).await?;
        old_reports::move_old_reports(link).await?;
        let pools = Arc::new(Pools::new(pool.clone()));
        let asked = Asked::start(link.clone(), pools.clone());
        let purges = Purges::start(link.clone());
        let premises = Arc::new(Premises::new(nats.clone(), pool.clone(), classes));
        let keeper = supervise::spawn("premises", premises.clone().keep());
        let readers = Readers::new(pools.clone());
        Ok(Self { nats, pool, premises, pools, readers, purges, asked, hellos, _keeper: keeper })
    }

    fn link(&self) -> &Link {
        self.nats.link()
    }

    async fn repair(&self) -> Result<(), QueueError> {
        tracing::warn!("something is missing on the server: making it again");
        self.premises.prepare().await
    }
}

#[async_trait]
impl Dispatch for NatsDispatch {
    async fn incarnation(&self) -> Result<Incarnation, QueueError> {
        Ok(repairing!(self, self.link().present_life())?)
    }

    fn contact(&self) -> watch::Receiver<Contact> {
        self.link().contact()
    }

    async fn offer(&self, offers: &[Offer]) -> Result<Vec<Result<OfferOutcome, PublishError>>, QueueError> {
        let mut answers = offers::offer(self.link(), &self.pool, offers).await?;
        let missing: Vec<usize> = (0..offers.len())
            .filter(|i| matches!(&answers[*i], Err(fault) if fault.is_missing()))
            .collect();
        if !missing.is_empty() {
            self.repair().await?;
            let again: Vec<Offer> = missing.iter().map(|i| offers[*i]).collect();
            let more = offers::offer(self.link(), &self.pool, &again).await?;
            for (index, answer) in missing.into_iter().zip(more) {
                answers[index] = answer;
            }
        }
        answers.into_iter().map(offers::outcome).collect()
    }

    async fn withdraw(&self, run: RunId, tries: &[(ItemId, TryId)]) -> Result<(), QueueError> {
        Ok(repairing!(self, offers::withdraw(self.link(), run, tries))?)
    }

    async fn list(&self, run: RunId) -> Result<Vec<QueuedOffer>, QueueError> {
        Ok(repairing!(self, list::list(self.link(), run))?)
    }

    fn expect_pools(&self, run: RunId, former: PreviousPools) {
        self.pools.expect(run, former);
    }

    async fn reports(
        &self,
        run: RunId,
        from: Option<ReportPosition>,
        max: usize,
        wait: Duration,
    ) -> Result<ReportBatch, QueueError> {
        let deadline = Instant::now() + wait;
        let found = repairing!(self, self.readers.read(self.link(), run, from, max, deadline))?;
        found.ok_or(QueueError::Position)
    }

    async fn journalled(&self, run: RunId, position: ReportPosition) -> Result<(), QueueError> {
        self.purges.up_to(run, position);
        Ok(())
    }

    async fn next_claim(&self, run: RunId) -> Result<PendingClaim, QueueError> {
        self.asked.next_claim(run).await
    }

    async fn hellos(&self) -> Result<Vec<ReceivedHeartbeat>, QueueError> {
        Ok(self.hellos.seen())
    }

    fn hellos_kept(&self) -> Duration {
        self.hellos.kept()
    }

    async fn next_command(&self, run: RunId) -> Result<PendingCommand, QueueError> {
        self.asked.next_command(run).await
    }

    async fn reports_head(&self, run: RunId) -> Result<u64, QueueError> {
        let (stream, subject) = (&self.link().names.reports, self.link().names.run_reports(run));
        let last = repairing!(self, self.link().last(stream, &subject))?;
        Ok(last.map_or(0, |stored| stored.sequence))
    }

    async fn control(&self, control: ControlMessage) -> Result<(), QueueError> {
        let run = match control {
            ControlMessage::StopRun { run, .. } | ControlMessage::StopExecution { run, .. } => run,
        };
        let payload = serde_json::to_vec(&control).expect("text keys only");
        Ok(self.link().say(self.link().names.control(run), payload.into()).await?)
    }
}
