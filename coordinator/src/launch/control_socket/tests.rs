//! A server and its clients.

use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_protocol::wire::command::ReopenSelection;
use rollout_worker::queue::traits::{QueueError, RunControl};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::*;
use crate::engine::journal::RunLayout;

const RUN: RunId = RunId::from_bytes([3; 16]);

/// A coordinator that counts and answers pauses only.
#[derive(Debug)]
struct OnlyPauses;

#[async_trait]
impl RunControl for OnlyPauses {
    async fn command(&self, run: RunId, command: RunCommand) -> Result<CommandReceipt, QueueError> {
        match command {
            RunCommand::Pause => Ok(CommandReceipt { named: 7, ..CommandReceipt::default() }),
            _ => Err(QueueError::NoAnswer { run }),
        }
    }

    async fn trial_control(
        &self,
        _: &TrialControlRequest,
        _: Duration,
    ) -> Result<Option<TrialControlReceipt>, QueueError> {
        Ok(None)
    }
}

/// A run directory with a control socket.
fn served() -> (tempfile::TempDir, RunLayout, ControlSocket) {
    let directory = tempfile::tempdir().expect("a directory");
    let layout = RunLayout::new(directory.path());
    let control = Arc::new(OnlyPauses);
    let socket = ControlSocket::bind(&layout, RUN, 1, control).expect("a socket");
    (directory, layout, socket)
}

async fn client(layout: &RunLayout) -> Option<ControlSocketClient> {
    ControlSocketClient::find(layout).await.expect("no error")
}

fn socket_of(layout: &RunLayout) -> PathBuf {
    ControlSocketFile::read(&layout.control()).expect("a file").socket
}

#[tokio::test]
async fn command_reaches_coordinator_and_its_receipt_returns() {
    let (_directory, layout, socket) = served();
    let client = client(&layout).await.expect("a coordinator");
    let receipt = client.command(RUN, RunCommand::Pause).await.expect("a receipt");
    assert_eq!((client.run(), receipt.named), (RUN, 7));
    let unanswered = client.command(RUN, RunCommand::Continue).await;
    assert!(matches!(unanswered, Err(QueueError::NoAnswer { .. })), "{unanswered:?}");
    let other = RunId::from_bytes([4; 16]);
    let of_other = client.command(other, RunCommand::Pause).await;
    assert!(matches!(of_other, Err(QueueError::NoAnswer { .. })), "{of_other:?}");
    ControlSocket::close(Some(socket)).await;
}

#[tokio::test]
async fn socket_is_private_and_removed_at_the_end() {
    let (_directory, layout, socket) = served();
    let path = socket_of(&layout);
    let mode = |path: &Path| path.metadata().expect("it exists").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().expect("a directory")), 0o700);
    ControlSocket::close(Some(socket)).await;
    assert!(!path.exists() && !layout.control().exists());
    assert!(client(&layout).await.is_none());
}

#[tokio::test]
async fn stale_socket_is_no_coordinator_and_is_replaced() {
    let (_directory, layout, socket) = served();
    let (path, text) = (socket_of(&layout), std::fs::read(layout.control()).expect("readable"));
    ControlSocket::close(Some(socket)).await;
    // As a killed coordinator leaves them.
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    std::fs::write(layout.control(), text).expect("written");
    assert!(client(&layout).await.is_none());
    let next = ControlSocket::bind(&layout, RUN, 2, Arc::new(OnlyPauses)).expect("a socket");
    assert!(!path.exists(), "the old one is removed");
    assert!(client(&layout).await.is_some());
    ControlSocket::close(Some(next)).await;
}

#[tokio::test]
async fn socket_of_successor_survives_end_of_former_owner() {
    let (_directory, layout, former) = served();
    let next = ControlSocket::bind(&layout, RUN, 2, Arc::new(OnlyPauses)).expect("a socket");
    ControlSocket::close(Some(former)).await;
    let client = client(&layout).await.expect("the successor");
    client.command(RUN, RunCommand::Pause).await.expect("a receipt");
    ControlSocket::close(Some(next)).await;
}

#[tokio::test]
async fn request_that_is_too_long_or_no_json_is_refused() {
    let (_directory, layout, socket) = served();
    let long = ReopenSelection::Trials(vec!["a".repeat(REQUEST_BYTES as usize)]);
    let client = client(&layout).await.expect("a coordinator");
    let refused = client.command(RUN, RunCommand::Retry { request: 1, selection: long }).await;
    assert!(matches!(refused, Err(QueueError::Unreachable { .. } | QueueError::NoAnswer { .. })));
    let mut stream = UnixStream::connect(socket_of(&layout)).await.expect("connected");
    stream.write_all(b"pause").await.expect("sent");
    stream.shutdown().await.expect("sent");
    let answer: SocketAnswer = read_message(&mut stream, ANSWER_BYTES).await.expect("an answer");
    assert!(matches!(answer, SocketAnswer::Failed(reason) if reason.contains("cannot read")));
    client.command(RUN, RunCommand::Pause).await.expect("others are served");
    ControlSocket::close(Some(socket)).await;
}

#[tokio::test(start_paused = true)]
async fn silent_connection_is_closed_after_its_time() {
    let (_directory, layout, socket) = served();
    let mut stream = UnixStream::connect(socket_of(&layout)).await.expect("connected");
    stream.write_all(b"{").await.expect("sent");
    let answer = read_message::<SocketAnswer>(&mut stream, ANSWER_BYTES).await;
    assert!(answer.is_err(), "{answer:?}");
    ControlSocket::close(Some(socket)).await;
}

#[test]
fn socket_path_is_short_wherever_the_directories_are() {
    let temp = tempfile::tempdir().expect("a directory");
    let long = temp.path().join("x".repeat(100));
    let runtime = temp.path().join("runtime");
    let within = |runtime: Option<&Path>, home: &Path| {
        let path = socket_path::socket_path("name.sock", |name| {
            let value = if name == "XDG_RUNTIME_DIR" { runtime } else { Some(home) };
            value.filter(|_| name != "XDG_STATE_HOME").map(OsString::from)
        });
        path.expect("a path")
    };
    assert_eq!(within(Some(&runtime), &long), runtime.join("rollout/name.sock"));
    let state = within(Some(&long), temp.path());
    assert_eq!(state, temp.path().join(".local/state/rollout/control/name.sock"));
    let other = within(None, &long);
    assert!(other.starts_with("/tmp") && other.as_os_str().len() <= 103, "{other:?}");
    let bound = std::os::unix::net::UnixListener::bind(&other).expect("short enough");
    assert!(other.symlink_metadata().expect("it exists").file_type().is_socket());
    drop(bound);
    socket_path::remove(&other);
    assert!(!other.parent().expect("a directory").exists());
}
