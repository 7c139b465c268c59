//! The control socket of a run: commands of users on the host of its coordinator, without a server.
//!
//! The holder of the run's lock makes the socket and names it in `<run>/control.json`. Only its user
//! may connect. A connection carries one request and one answer, each a line of JSON. A client closes
//! its connection when it no longer waits. The messages and their meaning are those of a server's
//! subjects.

mod client;
mod directory_id;
mod server;
mod socket_path;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlRequest};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

pub use self::client::ControlSocketClient;
use self::directory_id::DirectoryId;
pub use self::server::ControlSocket;

/// `<run>/control.json`: the socket of the run's coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ControlSocketFile {
    /// Host of the coordinator.
    host: String,
    /// The run.
    run: RunId,
    /// Its session.
    epoch: u32,
    /// The run directory, which a copy of this file is not in.
    directory: DirectoryId,
    /// The socket.
    socket: PathBuf,
}

impl ControlSocketFile {
    /// The file of a run directory; `None` if there is none, or if it cannot be read.
    fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read(path).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// A request about the run of a directory.
#[derive(Debug, Serialize, Deserialize)]
struct AddressedRequest {
    /// The run directory of the user.
    directory: DirectoryId,
    request: SocketRequest,
}

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SocketRequest {
    /// For the coordinator.
    Command { run: RunId, command: RunCommand },
    /// For the worker of a trial, within this time.
    TrialControl { request: Box<TrialControlRequest>, wait_ms: u64 },
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SocketAnswer {
    Receipt(Box<CommandReceipt>),
    /// `None` when no worker answered.
    TrialControl(Option<Box<TrialControlReceipt>>),
    /// The coordinator is not that of the run and its directory, or it ends.
    NoAnswer,
    /// The coordinator did not answer in time.
    NoAnswerInTime,
    Failed(String),
}

/// Reads a message: a line, or the rest of the stream.
async fn read_message<T: for<'a> Deserialize<'a>>(
    stream: impl AsyncRead + Unpin,
    max_bytes: u64,
) -> std::io::Result<T> {
    let mut text = Vec::new();
    BufReader::new(stream.take(max_bytes + 1)).read_until(b'\n', &mut text).await?;
    if text.len() as u64 > max_bytes {
        let message = format!("the message is longer than {max_bytes} bytes");
        return Err(std::io::Error::other(message));
    }
    serde_json::from_slice(&text).map_err(Into::into)
}

/// A message as a line.
fn to_line(message: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(message).expect("text keys only");
    text.push(b'\n');
    text
}

/// Longest request, bytes.
const REQUEST_BYTES: u64 = limits::COORDINATOR_REQUEST_BYTES;

/// Longest answer, bytes: a part of a file in Base64, and its frame.
const ANSWER_BYTES: u64 = 2 * limits::RUN_FILE_PART_BYTES;
