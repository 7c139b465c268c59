//! A server and its clients.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_engine::journal::RunLayout;
use rollout_protocol::harness::ControlAction;
use rollout_protocol::id::ItemId;
use rollout_protocol::wire::command::ReopenSelection;
use rollout_queue::traits::{QueueError, RunControl};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::socket_path::{BoundSocket, remove_former, socket_name};
use super::*;

const RUN: RunId = RunId::from_bytes([3; 16]);

/// A coordinator that counts and answers pauses only.
#[derive(Debug)]
struct OnlyPauses;

#[async_trait]
impl RunControl for OnlyPauses {
    async fn command(&self, run: RunId, command: RunCommand) -> Result<CommandReceipt, QueueError> {
        match command {
            RunCommand::Pause => Ok(CommandReceipt { named: 7, ..CommandReceipt::default() }),
            RunCommand::Continue => Err(QueueError::NoAnswerInTime { run }),
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
    assert!(matches!(unanswered, Err(QueueError::NoAnswerInTime { .. })), "{unanswered:?}");
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
    leave_socket(&path);
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

/// Makes a socket where nothing listens.
fn leave_socket(path: &Path) {
    drop(std::os::unix::net::UnixListener::bind(path).expect("a socket"));
}

#[tokio::test]
async fn copied_run_directory_has_no_coordinator_and_its_session_keeps_the_original_socket() {
    let (_directory, layout, socket) = served();
    let copy = tempfile::tempdir().expect("a directory");
    let copied = RunLayout::new(copy.path());
    std::fs::copy(layout.control(), copied.control()).expect("copied");
    assert!(client(&copied).await.is_none());
    // The same run in the same epoch, as after a copy of the whole directory.
    let other = ControlSocket::bind(&copied, RUN, 1, Arc::new(OnlyPauses)).expect("a socket");
    assert_ne!(socket_of(&layout), socket_of(&copied));
    for layout in [&layout, &copied] {
        let client = client(layout).await.expect("a coordinator");
        client.command(RUN, RunCommand::Pause).await.expect("a receipt");
    }
    ControlSocket::close(Some(other)).await;
    let original = client(&layout).await.expect("a coordinator");
    original.command(RUN, RunCommand::Pause).await.expect("a receipt");
    ControlSocket::close(Some(socket)).await;
}

#[tokio::test]
async fn request_for_copied_directory_is_not_answered_by_the_original() {
    let (_directory, layout, socket) = served();
    let copy = tempfile::tempdir().expect("a directory");
    let request = SocketRequest::Command { run: RUN, command: RunCommand::Pause };
    let directory = DirectoryId::of(copy.path()).expect("an identity");
    let mut stream = UnixStream::connect(socket_of(&layout)).await.expect("connected");
    stream.write_all(&to_line(&AddressedRequest { directory, request })).await.expect("sent");
    let answer: SocketAnswer = read_message(&mut stream, ANSWER_BYTES).await.expect("an answer");
    assert!(matches!(answer, SocketAnswer::NoAnswer), "{answer:?}");
    ControlSocket::close(Some(socket)).await;
}

/// A coordinator whose controls have no end; it shows how many wait.
#[derive(Debug)]
struct EndlessControls(watch::Sender<usize>);

/// Counts a control that waits, until it is dropped.
struct WaitingControl<'a>(&'a watch::Sender<usize>);

impl Drop for WaitingControl<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

#[async_trait]
impl RunControl for EndlessControls {
    async fn command(&self, run: RunId, _: RunCommand) -> Result<CommandReceipt, QueueError> {
        Err(QueueError::NoAnswer { run })
    }

    async fn trial_control(
        &self,
        _: &TrialControlRequest,
        _: Duration,
    ) -> Result<Option<TrialControlReceipt>, QueueError> {
        self.0.send_modify(|waiting| *waiting += 1);
        let _waiting = WaitingControl(&self.0);
        std::future::pending().await
    }
}

#[tokio::test]
async fn control_whose_client_left_is_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let layout = RunLayout::new(directory.path());
    let (waiting, mut seen) = watch::channel(0);
    let socket = ControlSocket::bind(&layout, RUN, 1, Arc::new(EndlessControls(waiting)));
    let socket = socket.expect("a socket");
    let client = client(&layout).await.expect("a coordinator");
    let request = TrialControlRequest {
        run: RUN,
        item: ItemId::from_bytes([1; 16]),
        action: ControlAction::Stop,
        label: None,
        requested_by: "user".to_owned(),
        timeout_ms: 1,
        grace_ms: 1,
    };
    tokio::select! {
        answer = client.trial_control(&request, Duration::from_secs(3000)) => {
            panic!("it has no answer: {answer:?}")
        }
        one = seen.wait_for(|waiting| *waiting == 1) => drop(one.expect("a coordinator")),
    }
    drop(seen.wait_for(|waiting| *waiting == 0).await.expect("a coordinator"));
    ControlSocket::close(Some(socket)).await;
}

#[tokio::test]
async fn socket_path_is_short_wherever_the_directories_are() {
    let temp = tempfile::tempdir().expect("a directory");
    let long = temp.path().join("x".repeat(100));
    let runtime = temp.path().join("runtime");
    let variables = |runtime: Option<&Path>, home: &Path| {
        let (runtime, home) = (runtime.map(OsString::from), OsString::from(home));
        move |name: &str| match name {
            "XDG_RUNTIME_DIR" => runtime.clone(),
            "HOME" => Some(home.clone()),
            _ => None,
        }
    };
    let bound = |runtime: Option<&Path>, home: &Path| {
        BoundSocket::bind("name.sock", variables(runtime, home)).expect("a socket").1
    };
    let in_runtime = bound(Some(&runtime), &long);
    assert_eq!(in_runtime.path(), runtime.join("rollout/name.sock"));
    let in_state = bound(Some(&long), temp.path());
    assert_eq!(in_state.path(), temp.path().join(".local/state/rollout/control/name.sock"));
    let other = bound(None, &long);
    let path = other.path().to_owned();
    assert!(path.starts_with("/tmp") && path.as_os_str().len() <= 103, "{path:?}");
    assert!(path.symlink_metadata().expect("it exists").file_type().is_socket());
    drop(other);
    assert!(!path.parent().expect("a directory").exists());
}

#[tokio::test]
async fn directory_that_is_a_link_is_not_used_for_sockets() {
    let temp = tempfile::tempdir().expect("a directory");
    let (runtime, elsewhere) = (temp.path().join("runtime"), temp.path().join("elsewhere"));
    for directory in [&runtime, &elsewhere] {
        std::fs::create_dir(directory).expect("made");
    }
    std::fs::set_permissions(&elsewhere, Permissions::from_mode(0o755)).expect("set");
    std::os::unix::fs::symlink(&elsewhere, runtime.join("rollout")).expect("linked");
    let variable = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| runtime.clone().into());
    let (_listener, bound) = BoundSocket::bind("name.sock", variable).expect("a socket");
    assert!(bound.path().starts_with("/tmp") && !bound.path().starts_with(temp.path()));
    assert_eq!(elsewhere.metadata().expect("it exists").permissions().mode() & 0o777, 0o755);
}

#[test]
fn former_socket_is_removed_only_where_sessions_make_them() {
    let temp = tempfile::tempdir().expect("a directory");
    let (own, other) = (temp.path().join("rollout"), temp.path().join("other"));
    let variable = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| temp.path().into());
    for directory in [&own, &other] {
        std::fs::create_dir(directory).expect("made");
    }
    let name = socket_name(RUN, 4);
    let kept = [own.join("agent.sock"), own.join("a.1.b.sock"), other.join(&name)];
    for path in &kept {
        leave_socket(path);
        remove_former(path, variable);
        assert!(path.exists(), "{path:?}");
    }
    let aside = own.join("../other").join(&name);
    remove_former(&aside, variable);
    assert!(aside.exists(), "{aside:?}");
    let file = own.join(socket_name(RUN, 5));
    std::fs::write(&file, "").expect("written");
    remove_former(&file, variable);
    assert!(file.exists(), "it is no socket");
    let former = own.join(&name);
    leave_socket(&former);
    remove_former(&former, variable);
    assert!(!former.exists());
}

#[test]
fn temporary_directory_of_former_socket_is_removed_with_it() {
    let make = |prefix| tempfile::Builder::new().prefix(prefix).tempdir_in("/tmp").expect("made");
    let (own, other) = (make("rollout-control-"), make("rollout-other-"));
    for (directory, is_removed) in [(&own, true), (&other, false)] {
        let socket = directory.path().join(socket_name(RUN, 1));
        leave_socket(&socket);
        remove_former(&socket, |_| None);
        assert_eq!(directory.path().exists(), !is_removed, "{socket:?}");
    }
}
