//! A work source whose connection a test can cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollout_protocol::id::ExecId;
use rollout_queue::embedded::EmbeddedQueue;
use rollout_queue::traits::{ConnectionStatus, QueueError, WorkSource};

use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::delivery::{Delivery, FreeCapacity, MessageToken, PublishError};
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::report::Report;
use tokio::sync::{broadcast, watch};

/// A call that reached the queue.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceCall {
    /// [`WorkSource::heartbeat`].
    Heartbeat(Box<Heartbeat>),
    /// [`WorkSource::claim`] of an execution.
    Claim(ExecId),
    /// [`WorkSource::pull`].
    Pull(FreeCapacity),
    /// [`WorkSource::progress`] of this many deliveries.
    Progress(usize),
}

/// An embedded queue behind a connection that can be cut.
#[derive(Debug)]
pub struct FlakySource {
    queue: Arc<EmbeddedQueue>,
    status: watch::Sender<ConnectionStatus>,
    calls: Mutex<Vec<SourceCall>>,
    /// Whether pulls are refused.
    denied: AtomicBool,
    /// Whether reports have no answer. They subscribe while they wait.
    held: watch::Sender<bool>,
}

impl FlakySource {
    /// A connected source.
    pub fn new(queue: Arc<EmbeddedQueue>) -> Self {
        let status = watch::Sender::new(ConnectionStatus { up: true, connections: 1 });
        let (calls, denied) = (Mutex::default(), AtomicBool::new(false));
        Self { queue, status, calls, denied, held: watch::Sender::new(false) }
    }

    /// Cuts the connection: calls fail, also those that wait.
    pub fn disconnect(&self) {
        self.status.send_modify(|status| status.up = false);
    }

    /// Connects again, or anew.
    pub fn reconnect(&self) {
        self.status.send_modify(|status| {
            *status = ConnectionStatus { up: true, connections: status.connections + 1 };
        });
    }

    /// Refuses pulls, as a server does when the pool is bound to another store.
    pub fn set_denied(&self, denied: bool) {
        self.denied.store(denied, Ordering::Relaxed);
    }

    /// Lets reports wait, as for a server that does not answer, until this is set to `false`.
    pub fn set_held(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Whether a report waits.
    pub fn holds_report(&self) -> bool {
        *self.held.borrow() && self.held.receiver_count() > 0
    }

    /// The calls since the last call of this method.
    pub fn take_calls(&self) -> Vec<SourceCall> {
        std::mem::take(&mut self.lock())
    }

    /// Whether a call of this kind was made since the last [`FlakySource::take_calls`].
    pub fn has_call(&self, kind: impl Fn(&SourceCall) -> bool) -> bool {
        self.lock().iter().any(kind)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SourceCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_call(&self, call: SourceCall) -> Result<(), QueueError> {
        self.check_connected()?;
        self.lock().push(call);
        Ok(())
    }

    fn check_connected(&self) -> Result<(), QueueError> {
        if self.status.borrow().up { Ok(()) } else { Err(unreachable_error()) }
    }
}

fn unreachable_error() -> QueueError {
    QueueError::Unreachable { reason: "the connection is cut".into() }
}

#[async_trait]
impl WorkSource for FlakySource {
    async fn pull(
        &self,
        capacity: FreeCapacity,
        wait: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        self.record_call(SourceCall::Pull(capacity))?;
        if self.denied.load(Ordering::Relaxed) {
            return Err(QueueError::Denied { reason: "another store".into() });
        }
        let mut status = self.status.subscribe();
        tokio::select! {
            pulled = self.queue.pull(capacity, wait) => pulled,
            _ = status.wait_for(|status| !status.up) => Err(unreachable_error()),
        }
    }

    async fn end_pulls(&self) {
        self.queue.end_pulls().await;
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
        let mut held = self.held.subscribe();
        let is_released = held.wait_for(|held| !*held).await.is_ok();
        debug_assert!(is_released, "this holds the sender");
        self.queue.report(reports).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<(), QueueError> {
        self.record_call(SourceCall::Heartbeat(Box::new(heartbeat.clone())))?;
        self.queue.heartbeat(heartbeat).await
    }

    fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    fn controls(&self) -> broadcast::Receiver<ControlMessage> {
        self.queue.controls()
    }
}
