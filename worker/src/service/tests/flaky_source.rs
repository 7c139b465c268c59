//! A work source whose connection a test can cut.

use std::sync::Mutex;

use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{Delivery, FreeCapacity, MessageToken, PublishError};
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::report::Report;
use tokio::sync::broadcast;

use super::super::*;
use crate::queue::embedded::EmbeddedQueue;
use crate::queue::traits::{ConnectionStatus, QueueError};

/// A call that reached the queue.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SourceCall {
    Hello(Box<Heartbeat>),
    Claim(ExecId),
    Pull(FreeCapacity),
    Progress(usize),
}

/// A work source with a connection that can be cut.
#[derive(Debug)]
pub(super) struct FlakySource {
    queue: Arc<EmbeddedQueue>,
    contact: watch::Sender<ConnectionStatus>,
    pub(super) said: Mutex<Vec<SourceCall>>,
    /// Whether pulls are refused.
    denied: AtomicBool,
}

impl FlakySource {
    pub(super) fn new(queue: Arc<EmbeddedQueue>) -> Self {
        let contact = watch::Sender::new(ConnectionStatus { up: true, connections: 1 });
        Self { queue, contact, said: Mutex::default(), denied: AtomicBool::new(false) }
    }

    pub(super) fn disconnect(&self) {
        self.contact.send_modify(|contact| contact.up = false);
    }

    pub(super) fn reconnect(&self) {
        self.contact.send_modify(|contact| {
            *contact = ConnectionStatus { up: true, connections: contact.connections + 1 };
        });
    }

    pub(super) fn set_denied(&self, denied: bool) {
        self.denied.store(denied, Ordering::Relaxed);
    }

    /// The calls since the last call of this method.
    pub(super) fn take_calls(&self) -> Vec<SourceCall> {
        std::mem::take(&mut self.said.lock().expect("not poisoned"))
    }

    fn record_call(&self, said: SourceCall) -> Result<(), QueueError> {
        self.check_connected()?;
        self.said.lock().expect("not poisoned").push(said);
        Ok(())
    }

    fn check_connected(&self) -> Result<(), QueueError> {
        if self.contact.borrow().up { Ok(()) } else { Err(unreachable_error()) }
    }
}

fn unreachable_error() -> QueueError {
    QueueError::Unreachable { reason: "the connection is cut".into() }
}

#[async_trait]
impl WorkSource for FlakySource {
    async fn pull(&self, room: FreeCapacity, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        self.record_call(SourceCall::Pull(room))?;
        if self.denied.load(Ordering::Relaxed) {
            return Err(QueueError::Denied { reason: "another store".into() });
        }
        let mut contact = self.contact.subscribe();
        tokio::select! {
            pulled = self.queue.pull(room, wait) => pulled,
            _ = contact.wait_for(|contact| !contact.up) => Err(unreachable_error()),
        }
    }

    async fn progress(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.record_call(SourceCall::Progress(tokens.len()))?;
        self.queue.progress(tokens).await
    }

    async fn ack(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.check_connected()?;
        self.queue.ack(tokens).await
    }

    async fn nak(&self, tokens: &[MessageToken]) -> Result<(), QueueError> {
        self.check_connected()?;
        self.queue.nak(tokens).await
    }

    async fn claim(&self, claim: Claim) -> Result<ClaimAnswer, QueueError> {
        self.record_call(SourceCall::Claim(claim.exec))?;
        self.queue.claim(claim).await
    }

    async fn is_contested(&self, claim: &Claim) -> Result<bool, QueueError> {
        self.check_connected()?;
        self.queue.is_contested(claim).await
    }

    async fn report(
        &self,
        reports: Vec<Report>,
    ) -> Result<Vec<Result<(), PublishError>>, QueueError> {
        self.check_connected()?;
        self.queue.report(reports).await
    }

    async fn heartbeat(&self, hello: Heartbeat) -> Result<(), QueueError> {
        self.record_call(SourceCall::Hello(Box::new(hello.clone())))?;
        self.queue.heartbeat(hello).await
    }

    fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.contact.subscribe()
    }

    fn controls(&self) -> broadcast::Receiver<ControlMessage> {
        self.queue.controls()
    }
}
