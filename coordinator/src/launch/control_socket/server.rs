//! The coordinator's side of a control socket.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::id::RunId;
use rollout_worker::queue::traits::{QueueError, RunControl};
use rollout_worker::supervise::{self, Task};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{
    ControlSocketFile, REQUEST_BYTES, SocketAnswer, SocketRequest, read_message, socket_path,
};
use crate::engine::atomic_file;
use crate::engine::journal::RunLayout;
use crate::engine::{OpenRun, host_name};

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
        // That of a session that was killed.
        if let Some(former) = ControlSocketFile::read(&path).filter(|former| former.host == host) {
            socket_path::remove(&former.socket);
        }
        let name = format!("{}.{epoch}.sock", &run.to_string()[..12]);
        let socket = socket_path::socket_path(&name, |name| std::env::var_os(name))?;
        socket_path::remove(&socket);
        let listener = UnixListener::bind(&socket)?;
        let file = ControlSocketFile { host, run, epoch, socket };
        let (closing, closed) = watch::channel(false);
        let task = supervise::spawn("control socket", serve(listener, run, control, closed));
        // From here on, dropping this removes the socket.
        let opened = Self { file, path, closing, task: Some(task) };
        std::fs::set_permissions(&opened.file.socket, Permissions::from_mode(0o600))?;
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
        socket_path::remove(&self.file.socket);
        // A successor may have written its own.
        if ControlSocketFile::read(&self.path).as_ref() == Some(&self.file) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

async fn serve(
    listener: UnixListener,
    run: RunId,
    control: Arc<dyn RunControl>,
    mut closed: watch::Receiver<bool>,
) {
    let mut active = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if active.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => active.push(converse(stream, run, &*control)),
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
async fn converse(mut stream: UnixStream, run: RunId, control: &dyn RunControl) {
    let read = timeout(TRANSFER_TIMEOUT, read_message(&mut stream, REQUEST_BYTES)).await;
    let answer = match read {
        Ok(Ok(request)) => answer(request, run, control).await,
        Ok(Err(error)) => SocketAnswer::Failed(format!("cannot read the request: {error}")),
        Err(_) => return,
    };
    let text = serde_json::to_vec(&answer).expect("text keys only");
    let write = async {
        stream.write_all(&text).await?;
        stream.shutdown().await
    };
    if !matches!(timeout(TRANSFER_TIMEOUT, write).await, Ok(Ok(()))) {
        tracing::debug!("the sender of a command left before its answer");
    }
}

async fn answer(request: SocketRequest, own: RunId, control: &dyn RunControl) -> SocketAnswer {
    let answered = match request {
        SocketRequest::Command { run, .. } if run != own => return SocketAnswer::NoAnswer,
        SocketRequest::Command { run, command } => control
            .command(run, command)
            .await
            .map(|receipt| SocketAnswer::Receipt(Box::new(receipt))),
        SocketRequest::TrialControl { request, .. } if request.run != own => {
            return SocketAnswer::NoAnswer;
        }
        SocketRequest::TrialControl { request, wait_ms } => {
            let wait = Duration::from_millis(wait_ms).min(MAX_CONTROL_WAIT);
            let receipt = control.trial_control(&request, wait).await;
            receipt.map(|receipt| SocketAnswer::TrialControl(receipt.map(Box::new)))
        }
    };
    answered.unwrap_or_else(|error| match error {
        QueueError::NoAnswer { .. } => SocketAnswer::NoAnswer,
        error => SocketAnswer::Failed(error.to_string()),
    })
}
