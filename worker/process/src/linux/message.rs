//! Messages between the worker and the supervisor: JSON in packets of a socket, with file
//! descriptors attached.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Largest packet on the control socket: the longest message lists some thirty mounts.
pub(super) const PACKET_BYTES: usize = 64 * 1024;

/// Limit of file descriptors per message: two streams and a few control groups.
const PACKET_FDS: usize = 8;

/// Largest command request: the kernel refuses longer arguments and variables anyway.
pub(super) const COMMAND_BYTES: u64 = 8 * 1024 * 1024;

/// From the worker to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SupervisorRequest {
    /// Set up the root. Sent first and once.
    Setup(SandboxSetup),
    /// Start a command; its own socket comes with the message.
    Spawn {
        /// Number of the request.
        id: u64,
    },
    /// End every process but the supervisor.
    KillAll {
        /// Number of the request.
        id: u64,
    },
    /// Listen on the loopback interface.
    Listen {
        /// Number of the request.
        id: u64,
    },
}

/// Layout of the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SandboxSetup {
    /// Directory on the host that becomes `/`.
    pub(super) root: PathBuf,
    /// Parts of the host to show, read-only. The mount points exist.
    pub(super) binds: Vec<BindMount>,
    /// Host name inside.
    pub(super) hostname: String,
    /// Whether the network is a new one whose loopback interface must be started.
    pub(super) own_network: bool,
}

/// A part of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BindMount {
    /// Path on the host.
    pub(super) source: PathBuf,
    /// Path below the root, relative.
    pub(super) target: PathBuf,
}

/// From the supervisor to the worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SupervisorEvent {
    /// The sandbox accepts commands.
    Ready,
    /// The sandbox cannot be made.
    Failed(SetupStepError),
    /// A command ended.
    Exited {
        /// Number of the request.
        id: u64,
        /// Exit code; 128 + n when signal n ended it.
        code: i32,
    },
    /// A command could not be started.
    NotStarted {
        /// Number of the request.
        id: u64,
        /// The reason.
        reason: String,
        /// The system's error number; 0 if the error is not the system's.
        errno: i32,
    },
    /// An answer to [`SupervisorRequest::KillAll`].
    Killed {
        /// Number of the request.
        id: u64,
        /// Whether no process is left.
        gone: bool,
    },
    /// An answer to [`SupervisorRequest::Listen`]; the listener comes with the message.
    Listening {
        /// Number of the request.
        id: u64,
        /// The system's error number; 0 without an error.
        errno: i32,
    },
}

/// A step of making a sandbox that failed.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {}", io::Error::from_raw_os_error(*.errno))]
pub(super) struct SetupStepError {
    /// The step.
    pub(super) step: String,
    /// The kernel's error number.
    pub(super) errno: i32,
}

impl SetupStepError {
    pub(super) fn new(step: impl Into<String>, error: &io::Error) -> Self {
        Self { step: step.into(), errno: error.raw_os_error().unwrap_or(0) }
    }
}

/// A command, sent on its own socket together with its streams.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CommandRequest {
    /// Program and arguments.
    pub(super) argv: Vec<String>,
    /// All its environment variables.
    pub(super) env: BTreeMap<String, String>,
    /// Its working directory.
    pub(super) workdir: String,
    /// Limit of private memory of a single process in bytes, where no control group enforces it.
    pub(super) data_bytes: Option<u64>,
    /// Limit of processes in the sandbox, where no control group enforces it.
    pub(super) processes: Option<u64>,
    /// Initial limit of open files; the command may raise it to the system's own limit.
    pub(super) open_files: Option<u64>,
}

/// Sends bytes and file descriptors; returns the number of bytes sent.
pub(super) fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::TOOBIG);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// Receives at most `buffer` bytes and the attached descriptors, closed on exec. No bytes mean that
/// the other side has closed the socket.
pub(super) fn receive_with(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((received.bytes, fds))
}

/// Encodes a packet as JSON.
pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages hold text and numbers only")
}

/// Decodes a packet.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_descriptors_sent_with_packet_are_received() {
        let (here, there) = std::os::unix::net::UnixDatagram::pair().expect("sockets");
        let (mut reader, writer) = io::pipe().expect("pipe");
        let packet = encode(&SupervisorRequest::Spawn { id: 7 });
        send_with(&here, &packet, &[writer.as_fd()]).expect("sent");
        drop(writer);

        let mut buffer = [0; 1024];
        let (length, mut fds) = receive_with(&there, &mut buffer).expect("received");
        let request: SupervisorRequest = decode(&buffer[..length]).expect("a request");
        assert!(matches!(request, SupervisorRequest::Spawn { id: 7 }), "{request:?}");
        let mut copy = std::fs::File::from(fds.pop().expect("one"));
        io::Write::write_all(&mut copy, b"through").expect("written");
        drop(copy);
        assert_eq!(io::read_to_string(&mut reader).expect("read"), "through");
    }
}
