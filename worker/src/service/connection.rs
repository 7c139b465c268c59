//! The connection to the broker: whether it is up, since when, and the limit on working offline.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollout_queue::traits::{ConnectionStatus, WorkSource};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{ShutdownLevel, WorkerShared};

/// Time by which claims precede the first pull on a new connection.
const CLAIM_HEAD_START: Duration = Duration::from_millis(100);

/// The state of the connection, shared by the parts of a worker.
#[derive(Debug)]
pub(super) struct BrokerConnection {
    status: watch::Receiver<ConnectionStatus>,
    /// The connection over which the last heartbeat was sent. Claims and pulls wait for it: the
    /// coordinator that answers them must know what runs here.
    heartbeat_sent: watch::Sender<Option<u64>>,
    /// The last connection that was noticed, and since when.
    last_connected: Mutex<(u64, Instant)>,
    /// The last connection over which work was pulled.
    last_pull_connection: AtomicU64,
}

impl BrokerConnection {
    pub(super) fn new(source: &dyn WorkSource) -> Self {
        let status = source.connection_status();
        let connections = status.borrow().connections;
        Self {
            status,
            heartbeat_sent: watch::Sender::new(None),
            last_connected: Mutex::new((connections, Instant::now())),
            last_pull_connection: AtomicU64::new(connections),
        }
    }

    /// When the current connection was made.
    pub(super) fn connected_at(&self) -> Instant {
        let mut noticed = self.last_connected.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = self.status().connections;
        if noticed.0 != connections {
            *noticed = (connections, Instant::now());
        }
        noticed.1
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        *self.status.borrow()
    }

    /// Subscribes to changes of the connection.
    pub(super) fn subscribe(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.clone()
    }

    pub(super) fn is_up(&self) -> bool {
        self.status().up
    }

    /// Records that a heartbeat was sent over this connection.
    pub(super) fn mark_heartbeat_sent(&self, connection: u64) {
        self.heartbeat_sent.send_if_modified(|last| last.replace(connection) != Some(connection));
    }

    /// Whether no heartbeat was sent over the current connection yet.
    pub(super) fn needs_heartbeat(&self) -> bool {
        let status = self.status();
        status.up && *self.heartbeat_sent.borrow() != Some(status.connections)
    }

    /// Waits until a connection is up and a heartbeat was sent over it; returns that connection.
    pub(super) async fn wait_until_ready(&self) -> u64 {
        let (mut status, mut heartbeat_sent) =
            (self.status.clone(), self.heartbeat_sent.subscribe());
        loop {
            let now = *status.borrow_and_update();
            if now.up && *heartbeat_sent.borrow_and_update() == Some(now.connections) {
                return now.connections;
            }
            tokio::select! {
                () = wait_for_update(&mut status) => {}
                () = wait_for_update(&mut heartbeat_sent) => {}
            }
        }
    }

    /// Waits until a connection is lost or replaced.
    pub(super) async fn wait_for_change(&self, connection: u64) {
        let mut status = self.status.clone();
        let other = |now: &ConnectionStatus| !now.up || now.connections != connection;
        if status.wait_for(other).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until one connection has lasted for `long`.
    pub(super) async fn wait_until_stable(&self, duration: Duration) {
        loop {
            let connection = self.wait_until_ready().await;
            if tokio::time::timeout(duration, self.wait_for_change(connection)).await.is_err() {
                return;
            }
        }
    }

    /// Waits until new work may be pulled: pending claims come first.
    pub(super) async fn wait_until_pullable(&self) {
        let connection = self.wait_until_ready().await;
        if self.last_pull_connection.swap(connection, Ordering::Relaxed) != connection {
            tokio::time::sleep(CLAIM_HEAD_START).await;
        }
    }
}

/// Logs when the connection is lost and restored, and ends the worker when it is lost for longer
/// than the worker may work offline.
pub(super) async fn watch_connection(shared: Arc<WorkerShared>) -> Infallible {
    let mut status = shared.connection.subscribe();
    let mut down: Option<Instant> = None;
    loop {
        let now = *status.borrow_and_update();
        shared.connection.connected_at();
        match down {
            None if !now.up => {
                down = Some(Instant::now());
                tracing::warn!(
                    "lost the connection to the server: executions continue, results are kept"
                );
            }
            Some(since) if now.up => {
                down = None;
                tracing::info!("connected to the server again after {:.0?}", since.elapsed());
            }
            _ => {}
        }
        let deadline = down.zip(shared.config.max_offline).map(|(since, longest)| since + longest);
        tokio::select! {
            () = wait_for_update(&mut status) => {}
            () = sleep_until_deadline(deadline) => {
                let longest = shared.config.max_offline.unwrap_or_default();
                tracing::error!("no connection to the server for {longest:?}: giving up");
                shared.offline.store(true, Ordering::Relaxed);
                shared.shut_down(ShutdownLevel::Kill);
                return std::future::pending().await;
            }
        }
    }
}

async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Waits for a change; forever when the sender is dropped.
pub(super) async fn wait_for_update<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
