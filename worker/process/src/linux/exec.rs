//! Execution of one command in a sandbox, with forwarding of its output.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use rollout_base::shortage::Shortage;
use rollout_environment::{Failure, FailureKind, OutputSink, OutputStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::control::{SpawnOutcome, SupervisorConnection};
use super::message::{self, CommandRequest, PACKET_BYTES};

/// Bytes per read: the capacity of a pipe.
const CHUNK: usize = 64 * 1024;

/// After a command's end its streams are read until no output arrives for this long: helper
/// processes that it left (`cmd > >(tee log)`) finish a little later, ...
const QUIET_PERIOD: Duration = Duration::from_millis(50);

/// ... and at most this long in total.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// Bytes of the reason why a command was not started.
const REASON_BYTES: u64 = 4096;

/// Pause between two reads of a discarded stream: a service can continue to write, and a flood uses
/// little processor time.
const DISCARD_PAUSE: Duration = Duration::from_millis(5);

/// A finished command.
#[derive(Debug)]
pub(super) struct FinishedCommand {
    /// Its exit code.
    pub(super) code: i32,
    /// Streams that background processes still hold. Closing them would kill a service at its next
    /// line of output.
    pub(super) open_streams: Vec<pipe::Receiver>,
}

/// Runs a command to its end.
pub(super) async fn run(
    control: &SupervisorConnection,
    request: &CommandRequest,
    join_files: Vec<File>,
    output: &dyn OutputSink,
) -> Result<FinishedCommand, Failure> {
    let program = request.argv.first().map_or("", String::as_str);
    let (mut streams, writers) =
        CommandStreams::new().map_err(|e| super::failure("open pipes", e))?;
    let (ours, theirs) = StdStream::pair().map_err(|e| super::failure("open a socket", e))?;
    let gone = |_| Failure::new(FailureKind::Gone, "the sandbox has ended");
    let mut outcome = control.spawn(theirs.as_fd()).await.map_err(gone)?;
    drop(theirs);
    let mut socket = into_nonblocking(ours).map_err(|e| super::failure("open a socket", e))?;
    // A command that cannot be started does not read; its outcome has the reason.
    let _sent = send(&mut socket, request, &writers, &join_files).await;
    drop((writers, join_files));

    let outcome = streams.pump(output, &mut outcome).await;
    let (reason, errno) = match outcome {
        None => return Err(Failure::new(FailureKind::Gone, "the sandbox has ended")),
        Some(SpawnOutcome::NotStarted(reason, errno)) => (reason, errno),
        Some(SpawnOutcome::Exited(code)) => {
            let mut reason = Vec::new();
            // Closed without data when the command took over.
            let _read = socket.take(REASON_BYTES).read_to_end(&mut reason).await;
            if reason.is_empty() {
                streams.drain(output).await;
                return Ok(FinishedCommand { code, open_streams: streams.into_open_receivers() });
            }
            // Only a program of the sandbox can have sent this, so it is never taken as a shortage.
            (String::from_utf8_lossy(&reason).into_owned(), None)
        }
    };
    let shortage = errno.and_then(Shortage::from_number);
    let kind = FailureKind::from_shortage(shortage).unwrap_or(FailureKind::NotStarted);
    Err(Failure::new(kind, format!("cannot start `{program}`: {reason}")))
}

/// Reads and discards the output of background processes, so that writing does not kill them.
pub(super) async fn discard(mut stream: pipe::Receiver) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(1..) = stream.read(&mut buffer).await {
        tokio::time::sleep(DISCARD_PAUSE).await;
    }
}

fn into_nonblocking(socket: StdStream) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

async fn send(
    socket: &mut UnixStream,
    request: &CommandRequest,
    writers: &[OwnedFd; 2],
    join_files: &[File],
) -> io::Result<()> {
    let bytes = message::encode(request);
    let fds: Vec<BorrowedFd<'_>> =
        writers.iter().map(OwnedFd::as_fd).chain(join_files.iter().map(File::as_fd)).collect();
    let first = &bytes[..bytes.len().min(PACKET_BYTES)];
    let sent = socket
        .async_io(Interest::WRITABLE, || Ok(message::send_with(&*socket, first, &fds)?))
        .await?;
    socket.write_all(&bytes[sent..]).await?;
    socket.shutdown().await
}

/// The two streams of a command; `None` once at their end.
struct CommandStreams {
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    buffers: [Vec<u8>; 2],
}

impl CommandStreams {
    fn new() -> io::Result<(Self, [OwnedFd; 2])> {
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        let streams = Self {
            stdout: Some(pipe::Receiver::from_owned_fd(stdout.into())?),
            stderr: Some(pipe::Receiver::from_owned_fd(stderr.into())?),
            buffers: [vec![0; CHUNK], vec![0; CHUNK]],
        };
        Ok((streams, [stdout_writer.into(), stderr_writer.into()]))
    }

    /// Forwards output until the command has ended.
    async fn pump(
        &mut self,
        output: &dyn OutputSink,
        outcome: &mut oneshot::Receiver<SpawnOutcome>,
    ) -> Option<SpawnOutcome> {
        loop {
            tokio::select! {
                outcome = &mut *outcome => return outcome.ok(),
                () = self.forward(output), if self.is_open() => {}
            }
        }
    }

    /// Forwards the rest after the end. All output of the command itself is in the pipes.
    async fn drain(&mut self, output: &dyn OutputSink) {
        let until = Instant::now() + DRAIN_TIMEOUT;
        while self.is_open() {
            let quiet = (Instant::now() + QUIET_PERIOD).min(until);
            if tokio::time::timeout_at(quiet, self.forward(output)).await.is_err() {
                break;
            }
            if Instant::now() >= until {
                break;
            }
        }
    }

    /// Forwards the next bytes of either stream, or records its end. Cancel-safe: a read that is
    /// dropped has taken nothing.
    async fn forward(&mut self, output: &dyn OutputSink) {
        let [out_buffer, err_buffer] = &mut self.buffers;
        let (stream, read) = tokio::select! {
            read = read(&mut self.stdout, out_buffer) => (OutputStream::Stdout, read),
            read = read(&mut self.stderr, err_buffer) => (OutputStream::Stderr, read),
        };
        let (end, buffer) = match stream {
            OutputStream::Stdout => (&mut self.stdout, &*out_buffer),
            OutputStream::Stderr => (&mut self.stderr, &*err_buffer),
        };
        match read {
            0 => *end = None,
            length => output.write(stream, &buffer[..length]),
        }
    }

    fn is_open(&self) -> bool {
        self.stdout.is_some() || self.stderr.is_some()
    }

    fn into_open_receivers(self) -> Vec<pipe::Receiver> {
        self.stdout.into_iter().chain(self.stderr).collect()
    }
}

/// Number of bytes read; zero at the end or after an error. Never returns for a stream that has
/// ended before.
async fn read(stream: &mut Option<pipe::Receiver>, buffer: &mut [u8]) -> usize {
    match stream {
        Some(stream) => stream.read(buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}
