//! The user's side of a control socket.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use rollout_engine::host_name;
use rollout_engine::journal::RunLayout;
use rollout_protocol::id::RunId;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlRequest};
use rollout_queue::traits::{QueueError, RunControl};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{
    ANSWER_BYTES, AddressedRequest, ControlSocketFile, DirectoryId, SocketAnswer, SocketRequest,
    read_message, to_line,
};

/// How long a command waits for its receipt: longer than the coordinator takes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

/// How much longer than its worker the receipt of a control may take.
const CONTROL_MARGIN: Duration = Duration::from_secs(10);

/// Sends commands to the coordinator of a run on this host.
#[derive(Debug)]
pub struct ControlSocketClient {
    run: RunId,
    directory: DirectoryId,
    socket: PathBuf,
}

impl ControlSocketClient {
    /// A client for the run of a directory; `None` if no coordinator of it listens on this host. A
    /// socket that a killed coordinator left is none, nor is that of the directory that this one is
    /// a copy of.
    ///
    /// # Errors
    /// This user may not connect to the socket.
    pub async fn find(layout: &RunLayout) -> io::Result<Option<Self>> {
        let Some(file) = ControlSocketFile::read(&layout.control()) else { return Ok(None) };
        let directory = DirectoryId::of(layout.root())?;
        if file.host != host_name() || file.directory != directory {
            return Ok(None);
        }
        match UnixStream::connect(&file.socket).await {
            Ok(_) => Ok(Some(Self { run: file.run, directory, socket: file.socket })),
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
        request: SocketRequest,
        wait: Duration,
    ) -> Result<SocketAnswer, QueueError> {
        let text = to_line(&AddressedRequest { directory: self.directory, request });
        let asked = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            stream.write_all(&text).await?;
            read_message(&mut stream, ANSWER_BYTES).await
        };
        let run = self.run;
        match timeout(wait, asked).await {
            Ok(Ok(SocketAnswer::NoAnswer)) => Err(QueueError::NoAnswer { run }),
            Ok(Ok(SocketAnswer::NoAnswerInTime)) | Err(_) => {
                Err(QueueError::NoAnswerInTime { run })
            }
            Ok(Ok(SocketAnswer::Failed(reason))) => Err(QueueError::Unreachable { reason }),
            Ok(Ok(answer)) => Ok(answer),
            // A coordinator that ends closes its connections.
            Ok(Err(error)) if is_gone(&error) => Err(QueueError::NoAnswer { run }),
            Ok(Err(error)) => Err(QueueError::Unreachable { reason: error.to_string() }),
        }
    }
}

/// The error of an answer to something else.
fn unexpected() -> QueueError {
    QueueError::Unreachable { reason: "the answer is not one to this request".to_owned() }
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
        match self.ask(request, COMMAND_TIMEOUT).await? {
            SocketAnswer::Receipt(receipt) => Ok(*receipt),
            _ => Err(unexpected()),
        }
    }

    async fn trial_control(
        &self,
        request: &TrialControlRequest,
        wait: Duration,
    ) -> Result<Option<TrialControlReceipt>, QueueError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let request = SocketRequest::TrialControl { request: Box::new(request.clone()), wait_ms };
        match self.ask(request, wait.saturating_add(CONTROL_MARGIN)).await? {
            SocketAnswer::TrialControl(receipt) => Ok(receipt.map(|receipt| *receipt)),
            _ => Err(unexpected()),
        }
    }
}
