//! The user's side of a control socket.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use rollout_protocol::id::RunId;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlRequest};
use rollout_worker::queue::traits::{QueueError, RunControl};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{ANSWER_BYTES, ControlSocketFile, SocketAnswer, SocketRequest, read_message};
use crate::engine::host_name;
use crate::engine::journal::RunLayout;

/// How long a command waits for its receipt: longer than the coordinator takes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

/// How much longer than its worker the receipt of a control may take.
const CONTROL_MARGIN: Duration = Duration::from_secs(10);

/// Sends commands to the coordinator of a run on this host.
#[derive(Debug)]
pub struct ControlSocketClient {
    run: RunId,
    socket: PathBuf,
}

impl ControlSocketClient {
    /// A client for the run of a directory; `None` if no coordinator of it listens on this host. A
    /// socket that a killed coordinator left is none.
    ///
    /// # Errors
    /// This user may not connect to the socket.
    pub async fn find(layout: &RunLayout) -> io::Result<Option<Self>> {
        let Some(file) = ControlSocketFile::read(&layout.control()) else { return Ok(None) };
        if file.host != host_name() {
            return Ok(None);
        }
        match UnixStream::connect(&file.socket).await {
            Ok(_) => Ok(Some(Self { run: file.run, socket: file.socket })),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The run of the coordinator.
    pub fn run(&self) -> RunId {
        self.run
    }

    async fn ask(
        &self,
        request: &SocketRequest,
        wait: Duration,
    ) -> Result<SocketAnswer, QueueError> {
        let text = serde_json::to_vec(request).expect("text keys only");
        let asked = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            stream.write_all(&text).await?;
            stream.shutdown().await?;
            read_message(&mut stream, ANSWER_BYTES).await
        };
        let no_answer = QueueError::NoAnswer { run: self.run };
        match timeout(wait, asked).await {
            Ok(Ok(SocketAnswer::NoAnswer)) | Err(_) => Err(no_answer),
            Ok(Ok(SocketAnswer::Failed(reason))) => Err(QueueError::Unreachable { reason }),
            Ok(Ok(answer)) => Ok(answer),
            // A coordinator that ends closes its connections.
            Ok(Err(error)) if is_gone(&error) => Err(no_answer),
            Ok(Err(error)) => Err(QueueError::Unreachable { reason: error.to_string() }),
        }
    }
}

/// Whether an error means that no coordinator listens any more.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
    )
}

#[async_trait]
impl RunControl for ControlSocketClient {
    async fn command(&self, run: RunId, command: RunCommand) -> Result<CommandReceipt, QueueError> {
        let request = SocketRequest::Command { run, command };
        match self.ask(&request, COMMAND_TIMEOUT).await? {
            SocketAnswer::Receipt(receipt) => Ok(*receipt),
            _ => Err(QueueError::NoAnswer { run }),
        }
    }

    async fn trial_control(
        &self,
        request: &TrialControlRequest,
        wait: Duration,
    ) -> Result<Option<TrialControlReceipt>, QueueError> {
        let run = request.run;
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let request = SocketRequest::TrialControl { request: Box::new(request.clone()), wait_ms };
        match self.ask(&request, wait.saturating_add(CONTROL_MARGIN)).await? {
            SocketAnswer::TrialControl(receipt) => Ok(receipt.map(|receipt| *receipt)),
            _ => Err(QueueError::NoAnswer { run }),
        }
    }
}
