//! The worker's end of the control socket.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::message::{self, PACKET_BYTES, SetupStepError, SupervisorEvent, SupervisorRequest};
use crate::supervise::{self, Task};

/// What became of a command.
#[derive(Debug)]
pub(super) enum SpawnOutcome {
    /// It ended with this code.
    Exited(i32),
    /// It never began; the system's error, if it was one.
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
    /// A stream that keeps the boundaries of packets: every one is sent and received in one call.
    socket: UnixStream,
    waiting: Mutex<PendingReplies>,
    next: AtomicU64,
}

/// Who waits for what. Dropping a sender tells that no answer will come.
#[derive(Debug, Default)]
struct PendingReplies {
    closed: bool,
    ready: Option<oneshot::Sender<Result<(), SetupStepError>>>,
    exits: HashMap<u64, oneshot::Sender<SpawnOutcome>>,
    kills: HashMap<u64, oneshot::Sender<bool>>,
}

/// Tells whether the sandbox came up.
pub(super) type ReadyReceiver = oneshot::Receiver<Result<(), SetupStepError>>;

/// The two ends of a control socket; packets keep their boundaries.
pub(super) fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

impl SupervisorConnection {
    /// Takes our end.
    pub(super) fn new(socket: OwnedFd) -> io::Result<(Self, ReadyReceiver)> {
        let socket = StdStream::from(socket);
        socket.set_nonblocking(true)?;
        let (sender, ready) = oneshot::channel();
        let waiting = PendingReplies { ready: Some(sender), ..PendingReplies::default() };
        let shared = Arc::new(ConnectionState {
            socket: UnixStream::from_std(socket)?,
            waiting: Mutex::new(waiting),
            next: AtomicU64::new(0),
        });
        let reader =
            supervise::spawn("sandbox-control", ConnectionState::read(Arc::clone(&shared)));
        Ok((Self { shared, _reader: reader }, ready))
    }

    /// Asks for the sandbox to be built.
    pub(super) async fn setup(&self, setup: message::SandboxSetup) -> io::Result<()> {
        self.shared.send(&SupervisorRequest::Setup(setup), &[]).await
    }

    /// Asks for a command, which reads what it is from its own socket.
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

    /// Asks for the end of every process; whether none is left.
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

    /// Ends the sandbox: the supervisor ends when the socket does, and everything with it.
    pub(super) fn close(&self) {
        self.shared.shutdown();
    }

    /// Something that can end the sandbox without keeping it.
    pub(super) fn closer(&self) -> ConnectionCloser {
        ConnectionCloser(Arc::downgrade(&self.shared))
    }
}

/// Ends a sandbox.
#[derive(Debug, Clone)]
pub(super) struct ConnectionCloser(std::sync::Weak<ConnectionState>);

impl ConnectionCloser {
    /// Ends it, unless it is gone.
    pub(super) fn close(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.shutdown();
        }
    }
}

impl ConnectionState {
    fn waiting(&self) -> std::sync::MutexGuard<'_, PendingReplies> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader sees the end and tells everybody who waits.
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
                // The other side ended without reading everything. That is told once and first;
                // what it said before its end comes after.
                Err(Errno::CONNRESET) => message::receive_with(&self.socket, &mut buffer),
                other => other,
            };
            let receive = || Ok(receive()?);
            let event = match self.socket.async_io(Interest::READABLE, receive).await {
                // The supervisor sends no descriptors; what came is closed here.
                Ok((length, _)) if length > 0 => message::decode(&buffer[..length]),
                Ok(_) => break,
                Err(error) => Err(error),
            };
            match event {
                Ok(event) => self.dispatch(event),
                Err(error) => {
                    tracing::warn!(%error, "a sandbox's supervisor does not speak our language");
                    self.shutdown();
                    break;
                }
            }
        }
        // Whoever still waits learns that there will be no answer.
        let mut waiting = self.waiting();
        *waiting = PendingReplies { closed: true, ..PendingReplies::default() };
    }

    /// Nobody may wait any more: sending fails then, which is fine.
    fn dispatch(&self, event: SupervisorEvent) {
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
        }
    }
}
