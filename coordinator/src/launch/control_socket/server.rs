//! The coordinator's side of a control socket.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_base::supervise::{self, Task};
use rollout_engine::atomic_file;
use rollout_engine::journal::RunLayout;
use rollout_engine::{OpenRun, host_name};
use rollout_protocol::id::RunId;
use rollout_queue::traits::{QueueError, RunControl};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::socket_path::BoundSocket;
use super::{
    AddressedRequest, ControlSocketFile, DirectoryId, REQUEST_BYTES, SocketAnswer, SocketRequest,
    read_message, socket_path, to_line,
};

/// Connections served at a time: people send commands one by one. Others wait.
const MAX_CONNECTIONS: usize = 32;

/// Time to send a request, and to take an answer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of a session waits for answers on their way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after a connection could not be accepted: the process may have too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Longest wait for the receipt of a control.
const MAX_CONTROL_WAIT: Duration = Duration::from_secs(3600);

/// The control socket of a run that this process owns. Removed when it is closed or dropped.
#[derive(Debug)]
pub struct ControlSocket {
    file: ControlSocketFile,
    /// `control.json`.
    path: PathBuf,
    closing: watch::Sender<bool>,
    task: Option<Task<()>>,
    /// The socket itself, which is removed with this.
    _bound: BoundSocket,
}

impl ControlSocket {
    /// Opens the socket of a run. Without it, the run goes on all the same.
    pub fn open(run: &OpenRun, control: Arc<dyn RunControl>) -> Option<Self> {
        let opened = Self::bind(run.layout(), run.id(), run.epoch(), control);
        opened
            .inspect_err(|error| {
                tracing::warn!("commands for this run cannot come from this host: {error}");
            })
            .ok()
    }

    pub(super) fn bind(
        layout: &RunLayout,
        run: RunId,
        epoch: u32,
        control: Arc<dyn RunControl>,
    ) -> io::Result<Self> {
        let (path, host) = (layout.control(), host_name());
        let directory = DirectoryId::of(layout.root())?;
        let variable = |name: &str| std::env::var_os(name);
        // That of a session that was killed. The file of a copied directory names another one's.
        if let Some(former) = ControlSocketFile::read(&path)
            .filter(|former| former.host == host && former.directory == directory)
        {
            socket_path::remove_former(&former.socket, variable);
        }
        let (listener, bound) = BoundSocket::bind(&socket_path::socket_name(run, epoch), variable)?;
        std::fs::set_permissions(bound.path(), Permissions::from_mode(0o600))?;
        let socket = bound.path().to_owned();
        let file = ControlSocketFile { host, run, epoch, directory, socket };
        let (closing, closed) = watch::channel(false);
        let served = ServedRun { run, directory, control };
        let task = supervise::spawn("control socket", serve(listener, served, closed));
        let opened = Self { file, path, closing, task: Some(task), _bound: bound };
        atomic_file::write_json(&opened.path, &opened.file).map_err(io::Error::other)?;
        Ok(opened)
    }

    /// Accepts no more connections at a socket, and waits a moment for answers on their way.
    pub async fn close(opened: Option<Self>) {
        let Some(mut socket) = opened else { return };
        socket.closing.send_replace(true);
        if let Some(task) = socket.task.take() {
            let _ended = task.await;
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A successor may have written its own.
        if ControlSocketFile::read(&self.path).as_ref() == Some(&self.file) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// The run of a socket.
struct ServedRun {
    run: RunId,
    directory: DirectoryId,
    control: Arc<dyn RunControl>,
}

async fn serve(listener: UnixListener, served: ServedRun, mut closed: watch::Receiver<bool>) {
    let mut active = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if active.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => active.push(converse(stream, &served)),
                Err(error) => {
                    tracing::warn!("cannot accept a command: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(()) = active.next(), if !active.is_empty() => {}
            _ = closed.changed() => break,
        }
    }
    drop(listener);
    let _late = timeout(CLOSE_TIMEOUT, async { while active.next().await.is_some() {} }).await;
}

/// Reads a request and answers it. A client that fails is told nothing.
async fn converse(mut stream: UnixStream, served: &ServedRun) {
    let read = timeout(TRANSFER_TIMEOUT, read_message(&mut stream, REQUEST_BYTES)).await;
    let answer = match read {
        Ok(Ok(AddressedRequest { directory, request })) if directory == served.directory => {
            match answer(request, served, &mut stream).await {
                Some(answer) => answer,
                None => return,
            }
        }
        Ok(Ok(_of_copy)) => SocketAnswer::NoAnswer,
        Ok(Err(error)) => SocketAnswer::Failed(format!("cannot read the request: {error}")),
        Err(_) => return,
    };
    let text = to_line(&answer);
    let write = async {
        stream.write_all(&text).await?;
        stream.shutdown().await
    };
    if !matches!(timeout(TRANSFER_TIMEOUT, write).await, Ok(Ok(()))) {
        tracing::debug!("the sender of a command left before its answer");
    }
}

/// The answer to a request; `None` once nothing waits for it.
async fn answer(
    request: SocketRequest,
    served: &ServedRun,
    stream: &mut UnixStream,
) -> Option<SocketAnswer> {
    let ServedRun { run: own, control, .. } = served;
    let answered = match request {
        SocketRequest::Command { run, .. } if run != *own => return Some(SocketAnswer::NoAnswer),
        // Also for a client that left: it was told that a command may take effect.
        SocketRequest::Command { run, command } => control
            .command(run, command)
            .await
            .map(|receipt| SocketAnswer::Receipt(Box::new(receipt))),
        SocketRequest::TrialControl { request, .. } if request.run != *own => {
            return Some(SocketAnswer::NoAnswer);
        }
        SocketRequest::TrialControl { request, wait_ms } => {
            let wait = Duration::from_millis(wait_ms).min(MAX_CONTROL_WAIT);
            let receipt = tokio::select! {
                receipt = control.trial_control(&request, wait) => receipt,
                // The receipt may take an hour, and connections are limited.
                () = closed_by_peer(stream) => return None,
            };
            receipt.map(|receipt| SocketAnswer::TrialControl(receipt.map(Box::new)))
        }
    };
    Some(answered.unwrap_or_else(|error| match error {
        QueueError::NoAnswer { .. } => SocketAnswer::NoAnswer,
        QueueError::NoAnswerInTime { .. } => SocketAnswer::NoAnswerInTime,
        error => SocketAnswer::Failed(error.to_string()),
    }))
}

/// Ends when a client closes its connection, or sends anything after its request.
async fn closed_by_peer(stream: &mut UnixStream) {
    let _closed = stream.read(&mut [0]).await;
}
