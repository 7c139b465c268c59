//! The worker's line to the queue, which a test can cut.

use std::sync::Mutex;

use rollout_protocol::wire::claim::{ClaimAnswer, Claim};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{Delivery, PublishError, FreeCapacity, MessageToken};
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::report::Report;
use tokio::sync::broadcast;

use super::super::*;
use crate::queue::embedded::EmbeddedQueue;
use crate::queue::traits::{Contact, QueueError};

/// What went over the line.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Said {
    Hello(Box<Heartbeat>),
    Claim(ExecId),
    Pull(FreeCapacity),
    Progress(usize),
}

/// A line to the queue.
#[derive(Debug)]
pub(super) struct Cable {
    queue: Arc<EmbeddedQueue>,
    contact: watch::Sender<Contact>,
    pub(super) said: Mutex<Vec<Said>>,
    /// Whether pulls are refused.
    denied: AtomicBool,
}

impl Cable {
    pub(super) fn new(queue: Arc<EmbeddedQueue>) -> Self {
        let contact = watch::Sender::new(Contact { up: true, connections: 1 });
        Self { queue, contact, said: Mutex::default(), denied: AtomicBool::new(false) }
    }

    pub(super) fn cut(&self) {
        self.contact.send_modify(|contact| contact.up = false);
    }

    pub(super) fn mend(&self) {
        self.contact.send_modify(|contact| {
            *contact = Contact { up: true, connections: contact.connections + 1 };
        });
    }

    pub(super) fn deny(&self, denied: bool) {
        self.denied.store(denied, Ordering::Relaxed);
    }

    /// What was said since this was asked last.
    pub(super) fn said(&self) -> Vec<Said> {
        std::mem::take(&mut self.said.lock().unwrap())
    }

    fn say(&self, said: Said) -> Result<(), QueueError> {
        self.reach()?;
        self.said.lock().unwrap().push(said);
        Ok(())
    }

    fn reach(&self) -> Result<(), QueueError> {
        if self.contact.borrow().up { Ok(()) } else { Err(unreachable()) }
    }
}

fn unreachable() -> QueueError {
    QueueError::Unreachable { reason: "the cable is cut".into() }
}

#[async_trait]
impl WorkSource for Cable {
    async fn pull(&self, room: FreeCapacity, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        self.say(Said::Pull(room))?;
        if self.denied.load(Ordering::Relaxed) {
            return Err(QueueError::Denied { reason: "another store".into() });
        }
        let mut contact = self.contact.subscribe();
        tokio::select! {
            pulled = self.queue.pull(room, wait) => pulled,
            _ = contact.wait_for(|contact| !contact.up) => Err(unreachable()),
        }
    }

    async fn progress(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.say(Said::Progress(tokens.len()))?;
        self.queue.progress(tokens).await
    }

    async fn ack(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.reach()?;
        self.queue.ack(tokens).await
    }

    async fn nak(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.reach()?;
        self.queue.nak(tokens).await
    }

    async fn claim(&self, claim: Claim) -> Result<ClaimAnswer, QueueError> {
        self.say(Said::Claim(claim.exec))?;
        self.queue.claim(claim).await
    }

    async fn shown(&self, claim: &Claim) -> Result<bool, QueueError> {
        self.reach()?;
        self.queue.shown(claim).await
    }

    async fn report(&self, reports: Vec<Report>) -> Result<Vec<Result<(), PublishError>>, QueueError> {
        self.reach()?;
        self.queue.report(reports).await
    }

    async fn hello(&self, hello: Heartbeat) -> Result<(), QueueError> {
        self.say(Said::Hello(Box::new(hello.clone())))?;
        self.queue.hello(hello).await
    }

    fn contact(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    fn controls(&self) -> broadcast::Receiver<ControlMessage> {
        self.queue.controls()
    }
}
