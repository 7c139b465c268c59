//! The line to the broker: whether it is up, since when, and when it was down for too long.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{ShutdownLevel, WorkerShared};
use crate::queue::traits::{ConnectionStatus, WorkSource};

/// How long new work waits for the claims that are said on a new connection.
const CLAIM_HEAD_START: Duration = Duration::from_millis(100);

/// What the parts of a worker know of the line.
#[derive(Debug)]
pub(super) struct BrokerConnection {
    contact: watch::Receiver<ConnectionStatus>,
    /// The connection on which the last hello was said. Claims and pulls wait for it: whoever
    /// answers them must know what runs here.
    greeted: watch::Sender<Option<u64>>,
    /// The last connection that was noticed, and when.
    connected: Mutex<(u64, Instant)>,
    /// The last connection on which work was asked for.
    pulled_on: AtomicU64,
}

impl BrokerConnection {
    pub(super) fn new(source: &dyn WorkSource) -> Self {
        let contact = source.connection_status();
        let connections = contact.borrow().connections;
        Self {
            contact,
            greeted: watch::Sender::new(None),
            connected: Mutex::new((connections, Instant::now())),
            pulled_on: AtomicU64::new(connections),
        }
    }

    /// When the present connection was made.
    pub(super) fn connected_at(&self) -> Instant {
        let mut noticed = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = self.status().connections;
        if noticed.0 != connections {
            *noticed = (connections, Instant::now());
        }
        noticed.1
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        *self.contact.borrow()
    }

    /// Follows the line.
    pub(super) fn subscribe(&self) -> watch::Receiver<ConnectionStatus> {
        self.contact.clone()
    }

    pub(super) fn is_up(&self) -> bool {
        self.status().up
    }

    /// A hello was said on this connection.
    pub(super) fn mark_heartbeat_sent(&self, connection: u64) {
        self.greeted.send_if_modified(|last| last.replace(connection) != Some(connection));
    }

    /// Whether the present connection has seen no hello yet.
    pub(super) fn needs_heartbeat(&self) -> bool {
        let contact = self.status();
        contact.up && *self.greeted.borrow() != Some(contact.connections)
    }

    /// Waits until the line is up and a hello was said on it; which connection that is.
    pub(super) async fn wait_until_ready(&self) -> u64 {
        let (mut contact, mut greeted) = (self.contact.clone(), self.greeted.subscribe());
        loop {
            let now = *contact.borrow_and_update();
            if now.up && *greeted.borrow_and_update() == Some(now.connections) {
                return now.connections;
            }
            tokio::select! {
                () = wait_for_update(&mut contact) => {}
                () = wait_for_update(&mut greeted) => {}
            }
        }
    }

    /// Waits until a connection is gone.
    pub(super) async fn wait_for_change(&self, connection: u64) {
        let mut contact = self.contact.clone();
        let other = |now: &ConnectionStatus| !now.up || now.connections != connection;
        if contact.wait_for(other).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until one connection lasted so long.
    pub(super) async fn wait_until_stable(&self, long: Duration) {
        loop {
            let connection = self.wait_until_ready().await;
            if tokio::time::timeout(long, self.wait_for_change(connection)).await.is_err() {
                return;
            }
        }
    }

    /// Waits until new work may be asked for: claims that are held come first.
    pub(super) async fn wait_until_pullable(&self) {
        let connection = self.wait_until_ready().await;
        if self.pulled_on.swap(connection, Ordering::Relaxed) != connection {
            tokio::time::sleep(CLAIM_HEAD_START).await;
        }
    }
}

/// Tells the operator when the line goes down and comes back, and ends the worker when it is down
/// for longer than it may work alone.
pub(super) async fn watch_connection(shared: Arc<WorkerShared>) -> Infallible {
    let mut contact = shared.line.subscribe();
    let mut down: Option<Instant> = None;
    loop {
        let now = *contact.borrow_and_update();
        shared.line.connected_at();
        match down {
            None if !now.up => {
                down = Some(Instant::now());
                tracing::warn!("lost contact with the server: what runs goes on, and is kept");
            }
            Some(since) if now.up => {
                down = None;
                tracing::info!("in contact with the server again, after {:.0?}", since.elapsed());
            }
            _ => {}
        }
        let alone = down.zip(shared.config.max_offline).map(|(since, longest)| since + longest);
        tokio::select! {
            () = wait_for_update(&mut contact) => {}
            () = sleep_until_deadline(alone) => {
                let longest = shared.config.max_offline.unwrap_or_default();
                tracing::error!("no contact with the server for {longest:?}: giving up");
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

/// Waits for a change; for ever when there will be none.
async fn wait_for_update<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
