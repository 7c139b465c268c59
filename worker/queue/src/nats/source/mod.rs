//! The worker's side of the queue.

mod acks;
mod peer_heartbeats;
mod pool_classes;
mod pull_buffer;
mod run_control;
mod slot_division;

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use async_trait::async_trait;
use futures_util::StreamExt as _;
use rollout_base::supervise::{self, Task};
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{Delivery, FreeCapacity, MessageToken, PublishError};
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::output::TrialAnswer;
use rollout_protocol::wire::report::Report;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, broadcast, mpsc, watch};
use tokio::time::{Instant, timeout_at};

use self::acks::{AckKind, DeliveryAcks};
use self::peer_heartbeats::PeerHeartbeats;
use self::pool_classes::PoolClasses;
use self::pull_buffer::PullBuffer;
use super::client::NatsClient;
use super::connect::Nats;
use super::error::NatsError;
use super::names::NatsName;
use super::replies::NatsRequest;
use crate::traits::{ConnectionStatus, PendingTrialRequest, QueueError, WorkSource};

/// Commands that a slow worker may lag behind by. They are hints.
const CONTROL_CAPACITY: usize = 1024;
/// Larger commands do not exist.
const MAX_CONTROL_BYTES: usize = 4096;

/// The work of a pool, for one worker.
#[derive(Debug)]
pub struct NatsSource {
    nats: Nats,
    pool: NatsName,
    pull_buffer: Arc<PullBuffer>,
    acks: Arc<DeliveryAcks>,
    classes: PoolClasses,
    peers: PeerHeartbeats,
    controls: broadcast::Sender<ControlMessage>,
    trial_requests: Mutex<mpsc::Receiver<PendingTrialRequest>>,
    _tasks: [Task<()>; 3],
}

impl NatsSource {
    pub(super) async fn new(nats: Nats, pool: NatsName, store: String) -> Result<Self, QueueError> {
        let client = nats.client().clone();
        let subscribe = async |subject: String| {
            let done = client.inner.subscribe(subject).await;
            done.map_err(|error| QueueError::Unreachable { reason: error.to_string() })
        };
        let inbox = client.inner.new_inbox();
        let arriving = subscribe(format!("{inbox}.*")).await?;
        let heard = subscribe(client.names.controls()).await?;
        // After a response over the same connection the server knows the subscriptions. The streams
        // may not exist yet.
        let _missing = client.check_incarnation().await;
        let acks = Arc::new(DeliveryAcks::default());
        let pull_buffer = Arc::new(PullBuffer::new(pool.clone(), inbox));
        let controls = broadcast::Sender::new(CONTROL_CAPACITY);
        let (incoming, trial_requests) = mpsc::channel(CONTROL_CAPACITY);
        let trial_requests = Mutex::new(trial_requests);
        let tasks = [
            supervise::spawn(
                "arrivals",
                pull_buffer.clone().receive_messages(client.clone(), acks.clone(), arriving),
            ),
            supervise::spawn(
                "acknowledgements",
                acks.clone().resend_after_reconnect(client.clone()),
            ),
            supervise::spawn("controls", forward_controls(heard, controls.clone(), incoming)),
        ];
        let classes = PoolClasses::new(pool.clone(), store, client.options.lease);
        let peers = PeerHeartbeats::default();
        Ok(Self {
            nats,
            pool,
            pull_buffer,
            acks,
            classes,
            peers,
            controls,
            trial_requests,
            _tasks: tasks,
        })
    }

    /// The pool.
    pub fn pool(&self) -> &NatsName {
        &self.pool
    }

    /// Checks that the pool is bound to the blob store that this worker uses, or to none yet, and
    /// that its consumers have this worker's lease.
    ///
    /// # Errors
    /// [`QueueError::Denied`] with both stores or both leases when they differ.
    pub async fn check_pool(&self) -> Result<(), QueueError> {
        self.classes.refresh(self.client(), &self.pull_buffer).await?;
        self.classes.check()
    }

    fn client(&self) -> &NatsClient {
        self.nats.client()
    }

    async fn send_acks(&self, kind: AckKind, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.acks.send(self.client(), kind, tokens).await;
        self.client().take_refusal()
    }

    /// Waits for the server's incarnation; `None` when streams are missing until the deadline:
    /// there is no work.
    async fn current_incarnation(
        &self,
        deadline: Instant,
    ) -> Result<Option<rollout_protocol::wire::position::Incarnation>, QueueError> {
        match self.client().current_incarnation().await {
            Ok(incarnation) => Ok(Some(incarnation)),
            Err(fault) if fault.is_missing() => {
                Ok(timeout_at(deadline, self.client().wait_for_incarnation()).await.ok())
            }
            Err(fault) => Err(fault.into()),
        }
    }
}

/// A pull may be dropped while it waits: offers that it requested go to the next pull, and offers
/// that no pull takes within a moment are returned.
#[async_trait]
impl WorkSource for NatsSource {
    async fn pull(
        &self,
        capacity: FreeCapacity,
        wait: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        let deadline = Instant::now() + wait;
        let mut offers = self.client().incarnation.offers();
        loop {
            let Some(incarnation) = self.current_incarnation(deadline).await? else {
                return Ok(Vec::new());
            };
            self.acks.enter_incarnation(incarnation);
            self.classes.refresh_if_due(self.client(), &self.pull_buffer).await?;
            self.classes.check()?;
            self.client().take_refusal()?;
            let mut told = std::pin::pin!(self.pull_buffer.notified());
            told.as_mut().enable();
            let turn =
                self.pull_buffer.next_step(incarnation, self.client().connection()?, capacity);
            for ask in turn.requests {
                self.pull_buffer.send_request(self.client(), ask).await?;
            }
            if !turn.deliveries.is_empty() || capacity.slots == 0 || Instant::now() >= deadline {
                return Ok(turn.deliveries);
            }
            let refresh_due = self.classes.refresh_due(*offers.borrow_and_update());
            let until = deadline.min(turn.check_again).min(refresh_due);
            tokio::select! {
                _looked_too_long = timeout_at(until, told) => {}
                Ok(()) = offers.changed() => {}
            }
        }
    }

    async fn end_pulls(&self) {
        self.pull_buffer.end().await;
    }

    async fn progress(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.send_acks(AckKind::Progress, tokens).await
    }

    async fn ack(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.send_acks(AckKind::Ack, tokens).await
    }

    async fn nak(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.send_acks(AckKind::Nak, tokens).await
    }

    async fn claim(&self, claim: Claim) -> Result<ClaimAnswer, QueueError> {
        request_coordinator(
            self.client(),
            self.client().names.claim(self.pool.as_str(), claim.run),
            claim.run,
            &claim,
        )
        .await
    }

    async fn is_contested(&self, claim: &Claim) -> Result<bool, QueueError> {
        Ok(self.peers.is_contested(self.client(), claim).await?)
    }

    async fn report(
        &self,
        reports: Vec<Report>,
    ) -> Result<Vec<Result<(), PublishError>>, QueueError> {
        let mut answers = Vec::with_capacity(reports.len());
        let mut messages = Vec::with_capacity(reports.len());
        for report in &reports {
            match report.encode() {
                Ok(payload) => {
                    let subject = self.client().names.report(self.pool.as_str(), report.run);
                    messages.push(NatsRequest::new(subject, payload));
                    answers.push(Ok(()));
                }
                Err(size_bytes) => {
                    let max_bytes = limits::REPORT_BYTES;
                    answers.push(Err(PublishError::TooLarge { size_bytes, max_bytes }));
                }
            }
        }
        let mut published = self.client().publish(messages).await?.into_iter();
        for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
            match published.next() {
                Some(Ok(sequence)) => self.client().incarnation.observe_report(sequence),
                Some(Err(NatsError::Api(error))) if error.is_full() => {
                    *answer = Err(PublishError::Full);
                }
                Some(Err(fault)) => return Err(fault.into()),
                None => unreachable!("every message has an answer"),
            }
        }
        Ok(answers)
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<(), QueueError> {
        let payload = serde_json::to_vec(&heartbeat).expect("text keys only");
        let message = NatsRequest::new(self.client().names.heartbeat(&heartbeat.worker), payload);
        for published in self.client().publish(vec![message]).await? {
            published?;
        }
        Ok(())
    }

    fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.client().connection_status()
    }

    fn controls(&self) -> broadcast::Receiver<ControlMessage> {
        self.controls.subscribe()
    }

    async fn next_trial_request(&self) -> PendingTrialRequest {
        match self.trial_requests.lock().await.recv().await {
            Some(pending) => pending,
            // The client was closed.
            None => std::future::pending().await,
        }
    }

    async fn answer_trial_request(
        &self,
        reply_to: String,
        answer: TrialAnswer,
    ) -> Result<(), QueueError> {
        let payload = serde_json::to_vec(&answer).expect("text keys only");
        Ok(self.client().send(reply_to, payload.into()).await?)
    }
}

async fn request_coordinator<A: DeserializeOwned>(
    client: &NatsClient,
    subject: String,
    run: RunId,
    request: &impl Serialize,
) -> Result<A, QueueError> {
    let payload = serde_json::to_vec(request).expect("text keys only");
    let answer = client.request(NatsRequest::new(subject, payload)).await;
    match answer {
        // It ended before it answered.
        Ok(answer) if answer.payload.is_empty() => Err(QueueError::NoAnswer { run }),
        Ok(answer) => serde_json::from_slice(&answer.payload).map_err(|error| {
            QueueError::Unreachable { reason: format!("cannot parse the answer: {error}") }
        }),
        Err(NatsError::NoResponders(_)) => Err(QueueError::NoAnswer { run }),
        Err(NatsError::Unreachable(_)) if client.connection().is_ok() => {
            Err(QueueError::NoAnswerInTime { run })
        }
        Err(fault) => Err(fault.into()),
    }
}

/// Passes on the controls that coordinators send to all workers, and the requests of users
/// about trials: those have a reply subject.
async fn forward_controls(
    mut subscriber: Subscriber,
    controls: broadcast::Sender<ControlMessage>,
    trial_requests: mpsc::Sender<PendingTrialRequest>,
) {
    while let Some(message) = subscriber.next().await {
        if message.payload.len() > MAX_CONTROL_BYTES {
            tracing::warn!(
                "{}: ignored a control of {} bytes: it is too large",
                message.subject,
                message.payload.len()
            );
            continue;
        }
        if message.reply.is_some() {
            run_control::forward(message, &trial_requests);
            continue;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(control) => {
                let _no_receiver = controls.send(control);
            }
            Err(error) => tracing::warn!("{}: cannot parse a control: {error}", message.subject),
        }
    }
}
