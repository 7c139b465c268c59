//! A worker's side.

mod acks;
mod arrivals;
mod classes;
mod credit;
mod others;

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use async_trait::async_trait;
use futures_util::StreamExt as _;
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::claim::{ClaimAnswer, Claim};
use rollout_protocol::wire::command::{RunCommand, CommandReceipt};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{Delivery, PublishError, FreeCapacity, MessageToken};
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::report::Report;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};

use self::acks::{Acks, Kind};
use self::arrivals::Arrivals;
use self::classes::Classes;
use self::others::Others;
use super::connect::Nats;
use super::fault::Fault;
use super::link::Link;
use super::names::Name;
use super::replies::Request;
use crate::queue::traits::{Contact, QueueError, WorkSource};
use crate::supervise::{self, Task};

/// Commands that a slow worker may lag behind by. They are hints.
const CONTROLS: usize = 1024;
/// Larger commands do not exist.
const CONTROL_BYTES: usize = 4096;

/// The work of a pool, for one worker.
#[derive(Debug)]
pub struct NatsSource {
    nats: Nats,
    pool: Name,
    arrivals: Arc<Arrivals>,
    acks: Arc<Acks>,
    classes: Classes,
    others: Others,
    controls: broadcast::Sender<ControlMessage>,
    _tasks: [Task<()>; 3],
}

impl NatsSource {
    pub(super) async fn new(nats: Nats, pool: Name, store: String) -> Result<Self, QueueError> {
        let link = nats.link().clone();
        let subscribe = async |subject: String| {
            let done = link.client.subscribe(subject).await;
            done.map_err(|error| QueueError::Unreachable { reason: error.to_string() })
        };
        let inbox = link.client.new_inbox();
        let arriving = subscribe(format!("{inbox}.*")).await?;
        let heard = subscribe(link.names.controls()).await?;
        // After an answer over the same connection the server knows the subscriptions. There need
        // not be any streams yet.
        let _missing = link.check_life().await;
        let acks = Arc::new(Acks::default());
        let arrivals = Arc::new(Arrivals::new(pool.clone(), inbox));
        let controls = broadcast::Sender::new(CONTROLS);
        let tasks = [
            supervise::spawn(
                "arrivals",
                arrivals.clone().receive(link.clone(), acks.clone(), arriving),
            ),
            supervise::spawn("acknowledgements", acks.clone().keep(link.clone())),
            supervise::spawn("controls", hear(heard, controls.clone())),
        ];
        let classes = Classes::new(pool.clone(), store);
        let others = Others::default();
        Ok(Self { nats, pool, arrivals, acks, classes, others, controls, _tasks: tasks })
    }

    /// The pool.
    pub fn pool(&self) -> &Name {
        &self.pool
    }

    /// Whether the pool is bound to the blob store that this worker uses, or to none yet.
    ///
    /// # Errors
    /// [`QueueError::Denied`] with both identities when it is bound to another.
    pub async fn check_binding(&self) -> Result<(), QueueError> {
        self.classes.look(self.link(), &self.arrivals).await?;
        self.classes.check_binding()
    }

    fn link(&self) -> &Link {
        self.nats.link()
    }

    async fn say(&self, kind: Kind, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.acks.say(self.link(), kind, tokens).await;
        self.link().take_refusal()
    }

    /// Waits for the life of the server; none in time when streams are missing: there is no work.
    async fn life(
        &self,
        deadline: Instant,
    ) -> Result<Option<rollout_protocol::wire::position::Incarnation>, QueueError> {
        match self.link().present_life().await {
            Ok(life) => Ok(Some(life)),
            Err(fault) if fault.is_missing() => {
                Ok(timeout_at(deadline, self.link().wait_for_life()).await.ok())
            }
            Err(fault) => Err(fault.into()),
        }
    }
}

/// A pull may be dropped while it waits: what it asked for goes to the next one, and what nobody
/// takes within a moment is given back.
#[async_trait]
impl WorkSource for NatsSource {
    async fn pull(&self, room: FreeCapacity, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        let deadline = Instant::now() + wait;
        loop {
            let Some(life) = self.life(deadline).await? else { return Ok(Vec::new()) };
            self.acks.enter(life);
            self.classes.look_if_due(self.link(), &self.arrivals).await?;
            self.classes.check_binding()?;
            self.link().take_refusal()?;
            let mut told = std::pin::pin!(self.arrivals.told());
            told.as_mut().enable();
            let turn = self.arrivals.turn(life, self.link().connection()?, room);
            for ask in turn.asks {
                self.arrivals.send(self.link(), ask).await?;
            }
            if !turn.deliveries.is_empty() || room.slots == 0 || Instant::now() >= deadline {
                return Ok(turn.deliveries);
            }
            let until = deadline.min(turn.look_again).min(self.classes.due());
            let _looked_too_long = timeout_at(until, told).await;
        }
    }

    async fn progress(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.say(Kind::Progress, tokens).await
    }

    async fn ack(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.say(Kind::Ack, tokens).await
    }

    async fn nak(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.say(Kind::Nak, tokens).await
    }

    async fn claim(&self, claim: Claim) -> Result<ClaimAnswer, QueueError> {
        question(
            self.link(),
            self.link().names.claim(self.pool.as_str(), claim.run),
            claim.run,
            &claim,
        )
        .await
    }

    async fn shown(&self, claim: &Claim) -> Result<bool, QueueError> {
        Ok(self.others.contest(self.link(), claim).await?)
    }

    async fn report(&self, reports: Vec<Report>) -> Result<Vec<Result<(), PublishError>>, QueueError> {
        let mut answers = Vec::with_capacity(reports.len());
        let mut messages = Vec::with_capacity(reports.len());
        for report in &reports {
            match report.encode() {
                Ok(payload) => {
                    let subject = self.link().names.report(self.pool.as_str(), report.run);
                    messages.push(Request::new(subject, payload));
                    answers.push(Ok(()));
                }
                Err(size_bytes) => {
                    let max_bytes = limits::REPORT_BYTES;
                    answers.push(Err(PublishError::TooLarge { size_bytes, max_bytes }));
                }
            }
        }
        let mut published = self.link().publish(messages).await?.into_iter();
        for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
            match published.next() {
                Some(Ok(sequence)) => self.link().life.saw_report(sequence),
                Some(Err(Fault::Api(error))) if error.is_full() => *answer = Err(PublishError::Full),
                Some(Err(fault)) => return Err(fault.into()),
                None => unreachable!("every message has an answer"),
            }
        }
        Ok(answers)
    }

    async fn hello(&self, hello: Heartbeat) -> Result<(), QueueError> {
        let payload = serde_json::to_vec(&hello).expect("text keys only");
        let message = Request::new(self.link().names.hello(&hello.worker), payload);
        for published in self.link().publish(vec![message]).await? {
            published?;
        }
        Ok(())
    }

    fn contact(&self) -> watch::Receiver<Contact> {
        self.link().contact()
    }

    fn controls(&self) -> broadcast::Receiver<ControlMessage> {
        self.controls.subscribe()
    }
}

impl Nats {
    /// Asks the coordinator of a run for something, from anywhere.
    ///
    /// # Errors
    /// [`QueueError::NoAnswer`] when the run has no coordinator, or it does not answer in time. The
    /// command may have been carried out then.
    pub async fn command(&self, run: RunId, command: RunCommand) -> Result<CommandReceipt, QueueError> {
        question(self.link(), self.link().names.command(run), run, &command).await
    }
}

async fn question<A: DeserializeOwned>(
    link: &Link,
    subject: String,
    run: RunId,
    question: &impl Serialize,
) -> Result<A, QueueError> {
    let payload = serde_json::to_vec(question).expect("text keys only");
    let answer = link.ask_one(Request::new(subject, payload)).await;
    let no_answer = QueueError::NoAnswer { run };
    match answer {
        Ok(answer) => serde_json::from_slice(&answer.payload).map_err(|_| no_answer),
        Err(Fault::NoResponders(_)) => Err(no_answer),
        Err(Fault::Unreachable(_)) if link.connection().is_ok() => Err(no_answer),
        Err(fault) => Err(fault.into()),
    }
}

/// Passes on what coordinators say to everybody.
async fn hear(mut heard: Subscriber, controls: broadcast::Sender<ControlMessage>) {
    while let Some(message) = heard.next().await {
        if message.payload.len() > CONTROL_BYTES {
            tracing::warn!("{}: {} bytes are no command", message.subject, message.payload.len());
            continue;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(control) => {
                let _nobody_listens = controls.send(control);
            }
            Err(error) => tracing::warn!("{}: not understood: {error}", message.subject),
        }
    }
}
