//! The worker's end of the control socket.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::supervise::{self, Task};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::message::{self, PACKET_BYTES, SetupStepError, SupervisorEvent, SupervisorRequest};

/// Outcome of a command.
#[derive(Debug)]
pub(super) enum SpawnOutcome {
    /// It ended with this code.
    Exited(i32),
    /// It never started; the system's error, if there was one.
    NotStarted(String, Option<i32>),
}

/// A connection to a supervisor. Dropping it ends the sandbox.
#[derive(Debug)]
pub(super) struct SupervisorConnection {
    shared: Arc<ConnectionState>,
    _reader: Task<()>,
}

#[derive(Debug)]
struct ConnectionState {
    /// A socket that keeps packet boundaries: each packet is sent and received in one call.
    socket: UnixStream,
    pending: Mutex<PendingReplies>,
    next: AtomicU64,
}

/// Pending replies. A dropped sender means that there will be no answer.
#[derive(Debug, Default)]
struct PendingReplies {
    closed: bool,
    ready: Option<oneshot::Sender<Result<(), SetupStepError>>>,
    exits: HashMap<u64, oneshot::Sender<SpawnOutcome>>,
    kills: HashMap<u64, oneshot::Sender<bool>>,
    listeners: HashMap<u64, oneshot::Sender<io::Result<OwnedFd>>>,
}

/// Receives whether the sandbox started.
pub(super) type ReadyReceiver = oneshot::Receiver<Result<(), SetupStepError>>;

/// The two ends of a control socket, which keeps packet boundaries.
pub(super) fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

impl SupervisorConnection {
    /// Takes the worker's end.
    pub(super) fn new(socket: OwnedFd) -> io::Result<(Self, ReadyReceiver)> {
        let socket = StdStream::from(socket);
        socket.set_nonblocking(true)?;
        let (sender, ready) = oneshot::channel();
        let waiting = PendingReplies { ready: Some(sender), ..PendingReplies::default() };
        let shared = Arc::new(ConnectionState {
            socket: UnixStream::from_std(socket)?,
            pending: Mutex::new(waiting),
            next: AtomicU64::new(0),
        });
        let reader =
            supervise::spawn("sandbox-control", ConnectionState::read(Arc::clone(&shared)));
        Ok((Self { shared, _reader: reader }, ready))
    }

    /// Requests the set-up of the sandbox.
    pub(super) async fn setup(&self, setup: message::SandboxSetup) -> io::Result<()> {
        self.shared.send(&SupervisorRequest::Setup(setup), &[]).await
    }

    /// Requests a command, which is read from its own socket.
    pub(super) async fn spawn(
        &self,
        socket: BorrowedFd<'_>,
    ) -> io::Result<oneshot::Receiver<SpawnOutcome>> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.shared.waiting();
            if waiting.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            waiting.exits.insert(id, sender);
        }
        self.shared.send(&SupervisorRequest::Spawn { id }, &[socket]).await?;
        Ok(receiver)
    }

    /// Requests a kill of all processes; returns whether none is left.
    pub(super) async fn kill_all(&self) -> io::Result<bool> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.shared.waiting();
            if waiting.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            waiting.kills.insert(id, sender);
        }
        self.shared.send(&SupervisorRequest::KillAll { id }, &[]).await?;
        receiver.await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Requests a listener on the loopback interface of the sandbox's network.
    pub(super) async fn listen(&self) -> io::Result<OwnedFd> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.shared.waiting();
            if waiting.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            waiting.listeners.insert(id, sender);
        }
        self.shared.send(&SupervisorRequest::Listen { id }, &[]).await?;
        receiver.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Ends the sandbox: the supervisor and all processes end when the socket closes.
    pub(super) fn close(&self) {
        self.shared.shutdown();
    }

    /// A handle that can end the sandbox without keeping it alive.
    pub(super) fn closer(&self) -> ConnectionCloser {
        ConnectionCloser(Arc::downgrade(&self.shared))
    }
}

/// Ends a sandbox.
#[derive(Debug, Clone)]
pub(super) struct ConnectionCloser(std::sync::Weak<ConnectionState>);

impl ConnectionCloser {
    /// Ends it, if it still exists.
    pub(super) fn close(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.shutdown();
        }
    }
}

impl ConnectionState {
    fn waiting(&self) -> std::sync::MutexGuard<'_, PendingReplies> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader sees the end and notifies all pending requests.
    fn shutdown(&self) {
        if let Err(error) = rustix::net::shutdown(self.socket.as_fd(), Shutdown::Both) {
            tracing::debug!(%error, "the control socket was closed already");
        }
    }

    async fn send(&self, request: &SupervisorRequest, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let packet = message::encode(request);
        let send = || Ok(message::send_with(&self.socket, &packet, fds)?);
        self.socket.async_io(Interest::WRITABLE, send).await.map(|_| ())
    }

    async fn read(self: Arc<Self>) {
        let mut buffer = vec![0; PACKET_BYTES];
        loop {
            let mut receive = || match message::receive_with(&self.socket, &mut buffer) {
                // The other side ended without reading everything. This error comes first and once;
                // packets sent before the end are still readable.
                Err(Errno::CONNRESET) => message::receive_with(&self.socket, &mut buffer),
                other => other,
            };
            let receive = || Ok(receive()?);
            let event = match self.socket.async_io(Interest::READABLE, receive).await {
                Ok((length, fds)) if length > 0 => {
                    message::decode(&buffer[..length]).map(|event| (event, fds))
                }
                Ok(_) => break,
                Err(error) => Err(error),
            };
            match event {
                Ok((event, fds)) => self.dispatch(event, fds),
                Err(error) => {
                    tracing::warn!(%error, "cannot decode a message of a sandbox's supervisor");
                    self.shutdown();
                    break;
                }
            }
        }
        // Pending requests learn that there will be no answer.
        let mut waiting = self.waiting();
        *waiting = PendingReplies { closed: true, ..PendingReplies::default() };
    }

    /// The receiver may have been dropped; then sending fails, which is fine.
    /// Only listeners have a descriptor; others are closed here.
    fn dispatch(&self, event: SupervisorEvent, fds: Vec<OwnedFd>) {
        let mut waiting = self.waiting();
        match event {
            SupervisorEvent::Ready => {
                let _told = waiting.ready.take().map(|sender| sender.send(Ok(())));
            }
            SupervisorEvent::Failed(failed) => {
                let _told = waiting.ready.take().map(|sender| sender.send(Err(failed)));
            }
            SupervisorEvent::Exited { id, code } => {
                let sender = waiting.exits.remove(&id);
                let _told = sender.map(|sender| sender.send(SpawnOutcome::Exited(code)));
            }
            SupervisorEvent::NotStarted { id, reason, errno } => {
                let sender = waiting.exits.remove(&id);
                let errno = Some(errno).filter(|errno| *errno != 0);
                let _told =
                    sender.map(|sender| sender.send(SpawnOutcome::NotStarted(reason, errno)));
            }
            SupervisorEvent::Killed { id, gone } => {
                let _told = waiting.kills.remove(&id).map(|sender| sender.send(gone));
            }
            SupervisorEvent::Listening { id, errno } => {
                let listener = match (errno, fds.into_iter().next()) {
                    (0, Some(listener)) => Ok(listener),
                    // The kernel drops a descriptor where this process may open no more files.
                    (0, None) => Err(Errno::MFILE.into()),
                    (errno, _) => Err(io::Error::from_raw_os_error(errno)),
                };
                let _told = waiting.listeners.remove(&id).map(|sender| sender.send(listener));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_base::shortage::Shortage;

    use super::*;

    #[tokio::test]
    async fn listener_whose_descriptor_did_not_come_is_a_shortage_of_files() {
        let (ours, theirs) = sockets().expect("sockets");
        let (connection, _ready) = SupervisorConnection::new(ours).expect("a connection");
        for (id, errno, expected) in [(0, 0, Some(Shortage::Host)), (1, -1, None)] {
            let answer = async {
                let event = SupervisorEvent::Listening { id, errno };
                message::send_with(&theirs, &message::encode(&event), &[]).expect("sent");
            };
            let (listener, ()) = tokio::join!(connection.listen(), answer);
            let error = listener.expect_err("no listener");
            assert_eq!(Shortage::from_io_error(&error), expected, "{error}");
        }
    }
}
