//! The streams of one exec.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use rollout_base::supervise;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;

use super::cluster::Cluster;
use super::container::{ContainerError, exit_code};
use super::fault_plan::ExecFault;
use super::network;
use super::objects::ObjectKey;
use super::status::ApiError;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Closes one channel; since v5.
const CLOSE: u8 = 255;

/// Largest message of output.
const CHUNK: usize = 32 << 10;

/// Messages between a process and its connection.
const QUEUE: usize = 4;

/// The streams of an exec.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExecStreams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
    pub(super) can_half_close: bool,
}

/// An accepted exec.
#[derive(Debug)]
pub(super) struct ExecSession {
    pub(super) key: ObjectKey,
    pub(super) container: String,
    pub(super) command: Vec<String>,
    pub(super) streams: ExecStreams,
    pub(super) fault: Option<ExecFault>,
}

/// Output or end of a process.
#[derive(Debug)]
enum ExecOutput {
    Data(u8, Bytes),
    Exit(i32),
}

impl ExecSession {
    /// Runs the command, until it and its output end or the connection does.
    pub(super) async fn run(self, cluster: Arc<Cluster>, socket: WebSocket) {
        let mut epochs = cluster.epochs();
        epochs.mark_unchanged();
        tokio::select! {
            _ = epochs.changed() => {}
            () = self.serve(&cluster, socket) => {}
        }
    }

    async fn serve(&self, cluster: &Cluster, socket: WebSocket) {
        let (mut sink, stream) = socket.split();
        // An empty message tells the client that the streams exist.
        let first = if self.streams.stdout { STDOUT } else { STATUS };
        if send(&mut sink, first, &[]).await.is_err() {
            return;
        }
        match self.start(cluster).await {
            Ok((stdin, output)) => {
                tokio::select! {
                    () = self.read(stream, stdin) => {}
                    () = self.write(sink, output) => {}
                }
            }
            Err(error) => end(&mut sink, &error.to_value()).await,
        }
    }

    async fn start(
        &self,
        cluster: &Cluster,
    ) -> Result<(Option<ChildStdin>, mpsc::Receiver<ExecOutput>), ApiError> {
        let not_found = || {
            let name = &self.container;
            ApiError::internal(format!(
                "unable to upgrade connection: container not found (\"{name}\")"
            ))
        };
        let handle = cluster.handle_of(&self.key).ok_or_else(not_found)?;
        if handle.is_lost() {
            let cause = "error dialing backend: dial tcp 192.0.2.7:10250: i/o timeout";
            return Err(ApiError::internal(cause));
        }
        let container = handle.container(&self.container).ok_or_else(not_found)?;
        let has_network = network::allows_egress(cluster, &self.key);
        let started = container.exec(&self.command, self.streams.stdin, has_network).await;
        let mut child = started.map_err(|error| match error {
            ContainerError::NotRunning => not_found(),
            other => ApiError::internal(other.to_string()),
        })?;
        let stdin = child.stdin.take();
        let (sender, output) = mpsc::channel(QUEUE);
        let streams = self.streams;
        container.own(supervise::spawn("exec", async move {
            let code = pump(&mut child, streams, &sender).await;
            // Without a client, the exit code interests no one.
            drop(sender.send(ExecOutput::Exit(code)).await);
        }));
        Ok((stdin, output))
    }

    /// Reads standard input, until the client closes the connection.
    async fn read(&self, mut stream: SplitStream<WebSocket>, mut stdin: Option<ChildStdin>) {
        while let Some(Ok(message)) = stream.next().await {
            let data = match message {
                Message::Binary(data) => data,
                Message::Close(_) => return,
                _ => continue,
            };
            match data.split_first() {
                Some((&STDIN, data)) => {
                    if let Some(input) = &mut stdin
                        && input.write_all(data).await.is_err()
                    {
                        stdin = None;
                    }
                }
                Some((&CLOSE, [STDIN])) if self.streams.can_half_close => stdin = None,
                _ => {}
            }
        }
    }

    async fn write(
        &self,
        mut sink: SplitSink<WebSocket, Message>,
        mut output: mpsc::Receiver<ExecOutput>,
    ) {
        let mut sent = 0;
        while let Some(output) = output.recv().await {
            match output {
                ExecOutput::Data(channel, mut data) => {
                    let limit = self.limit(channel).map(|limit| limit.saturating_sub(sent));
                    let is_cut = limit.is_some_and(|limit| limit < data.len());
                    data.truncate(limit.unwrap_or(usize::MAX));
                    // Only what the fault limits counts: the other channel may come first.
                    sent += limit.map_or(0, |_| data.len());
                    if let Some(ExecFault::Slow(pause)) = self.fault {
                        tokio::time::sleep(pause).await;
                    }
                    if !data.is_empty() && send(&mut sink, channel, &data).await.is_err() {
                        return;
                    }
                    match self.fault {
                        Some(ExecFault::DropAfter(_)) if is_cut => return,
                        Some(ExecFault::StallAfter(_)) if is_cut => std::future::pending().await,
                        _ => {}
                    }
                }
                ExecOutput::Exit(code) => end(&mut sink, &exit_status(&self.command, code)).await,
            }
        }
    }

    /// Bytes that the fault lets through, if it limits a channel.
    fn limit(&self, channel: u8) -> Option<usize> {
        match self.fault {
            Some(ExecFault::LoseTail(limit))
                if channel == STDOUT && self.streams.can_half_close =>
            {
                Some(limit)
            }
            Some(ExecFault::DropAfter(limit) | ExecFault::StallAfter(limit)) => Some(limit),
            _ => None,
        }
    }
}

/// Reads the output of a process to its end and returns its exit code. Without a client, the
/// process runs on and its output is dropped.
async fn pump(child: &mut Child, streams: ExecStreams, sender: &mpsc::Sender<ExecOutput>) -> i32 {
    let error_channel = if streams.tty { STDOUT } else { STDERR };
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    tokio::join!(
        relay(stdout, streams.stdout.then_some(STDOUT), sender),
        relay(stderr, (streams.stderr || streams.tty).then_some(error_channel), sender),
    );
    child.wait().await.map_or(137, exit_code)
}

async fn relay(
    stream: Option<impl AsyncRead + Unpin>,
    channel: Option<u8>,
    sender: &mpsc::Sender<ExecOutput>,
) {
    let Some(mut stream) = stream else { return };
    loop {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        match stream.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                if let Some(channel) = channel {
                    drop(sender.send(ExecOutput::Data(channel, buffer.freeze())).await);
                }
            }
        }
    }
}

async fn send(
    sink: &mut SplitSink<WebSocket, Message>,
    channel: u8,
    data: &[u8],
) -> Result<(), axum::Error> {
    let mut message = BytesMut::with_capacity(data.len() + 1);
    message.put_u8(channel);
    message.put_slice(data);
    sink.send(Message::Binary(message.freeze())).await
}

/// Sends the status and closes the connection.
async fn end(sink: &mut SplitSink<WebSocket, Message>, status: &Value) {
    // A client that is gone needs neither.
    if send(sink, STATUS, status.to_string().as_bytes()).await.is_ok() {
        let frame = CloseFrame { code: close_code::NORMAL, reason: "".into() };
        drop(sink.send(Message::Close(Some(frame))).await);
        drop(tokio::time::timeout(Duration::from_secs(1), sink.close()).await);
    }
}

fn exit_status(command: &[String], code: i32) -> Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    let command = command.join(" ");
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!(
            "command terminated with non-zero exit code: error executing command [{command}], exit \
             code {code}"
        ),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}
