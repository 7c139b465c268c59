//! One exec call: its streams, and the frames in them.

use std::pin::Pin;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess};
use rollout_environment::{Failure, FailureKind};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, SimplexStream};

use super::cluster::Cluster;
use super::frames::{FrameParser, Part};
use super::rights::Right;

/// Buffer for each stream of a call. With 500 calls at once they take 24 MiB.
const BUFFER: usize = 16 * 1024;

/// Time for what a connection that has ended brought before: it is in memory.
const REST_WITHIN: Duration = Duration::from_millis(100);

/// Time for the end of a call whose last frame has arrived.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Pod in which calls run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) container: &'a str,
}

/// A running call.
pub(super) struct ExecStream {
    _process: AttachedProcess,
    /// Its standard input.
    pub(super) input: ExecInput,
    stdout: ReadHalf<SimplexStream>,
    stderr: ReadHalf<SimplexStream>,
    is_stdout_open: bool,
    is_stderr_open: bool,
    /// Resolves when the connection has ended, with the status if one arrived. The library does not
    /// close the streams of a connection that broke.
    status: StatusFuture,
    /// The result of `status`.
    ended: Option<Option<Box<Status>>>,
    buffers: Box<[[u8; BUFFER]; 2]>,
    frames: FrameParser,
    /// A call that sends neither output nor a sign of life for this long is cut off.
    silence_timeout: Duration,
}

/// Standard input of a call. It must stay open: the older protocol can close only the whole call.
pub(super) struct ExecInput {
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    silence_timeout: Duration,
}

type StatusFuture = Pin<Box<dyn Future<Output = Option<Status>> + Send>>;

/// A part of the streams.
#[derive(Debug)]
pub(super) enum StreamPart<'a> {
    Stdout(&'a [u8]),
    Stderr(&'a [u8]),
    /// A frame of the script.
    Frame(String),
}

/// Part of the streams of a call.
enum StreamEvent {
    Stdout(std::io::Result<usize>),
    Stderr(std::io::Result<usize>),
    Over(Option<Box<Status>>),
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    Open,
    /// Both streams have ended.
    Ended,
}

impl ExecStream {
    /// Starts a call with the arguments `argv`, whose script marks its frames with `mark`.
    pub(super) async fn open(
        target: Target<'_>,
        argv: Vec<String>,
        mark: &str,
    ) -> Result<Self, Failure> {
        let params = AttachParams {
            container: Some(target.container.to_owned()),
            stdin: true,
            stdout: true,
            stderr: true,
            tty: false,
            max_stdin_buf_size: Some(4 * BUFFER),
            max_stdout_buf_size: Some(BUFFER),
            max_stderr_buf_size: Some(BUFFER),
        };
        let Target { cluster, namespace, pod, .. } = target;
        let silence_timeout = Duration::from_secs(cluster.options.silence_timeout_sec);
        let what = format!("cannot run a command in the pod {pod}");
        let pods = cluster.pods(namespace);
        let executing = || pods.exec(pod, argv.iter(), &params);
        let mut process = cluster.call(Right::to("exec", &pods), &what, executing).await?;
        let streams = (process.stdin(), process.stdout(), process.stderr());
        let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
            return Err(Failure::new(FailureKind::Bug, format!("{what}: it has no streams")));
        };
        let status: StatusFuture = match process.take_status() {
            Some(status) => Box::pin(status),
            None => Box::pin(std::future::ready(None)),
        };
        Ok(Self {
            _process: process,
            input: ExecInput { writer: Box::new(stdin), silence_timeout },
            stdout,
            stderr,
            is_stdout_open: true,
            is_stderr_open: true,
            status,
            ended: None,
            buffers: Box::new([[0; BUFFER]; 2]),
            frames: FrameParser::new(mark),
            silence_timeout,
        })
    }

    /// Reads what arrives next. A dropped call loses nothing: what was read was given to `part`.
    pub(super) async fn read(
        &mut self,
        mut part: impl FnMut(StreamPart<'_>),
    ) -> Result<StreamState, CutStream> {
        if !self.is_stdout_open && !self.is_stderr_open {
            return Ok(StreamState::Ended);
        }
        let [out, err] = &mut *self.buffers;
        let is_over = self.ended.is_some();
        let reading = async {
            tokio::select! {
                biased;
                read = self.stdout.read(out), if self.is_stdout_open => StreamEvent::Stdout(read),
                read = self.stderr.read(err), if self.is_stderr_open => StreamEvent::Stderr(read),
                status = &mut self.status, if !is_over => StreamEvent::Over(status.map(Box::new)),
            }
        };
        let limit = if is_over { REST_WITHIN } else { self.silence_timeout };
        let (is_stdout, read) = match tokio::time::timeout(limit, reading).await {
            Ok(StreamEvent::Stdout(read)) => (true, read),
            Ok(StreamEvent::Stderr(read)) => (false, read),
            Ok(StreamEvent::Over(status)) => {
                self.ended = Some(status);
                return Ok(StreamState::Open);
            }
            Err(_) if is_over => {
                (self.is_stdout_open, self.is_stderr_open) = (false, false);
                return Ok(StreamState::Ended);
            }
            Err(_) => return Err(CutStream(format!("it was silent for {limit:?}"))),
        };
        let read = read.map_err(|error| CutStream(error.to_string()))?;
        if is_stdout {
            self.is_stdout_open = read > 0;
            self.frames.feed(&out[..read], |found| match found {
                Part::Data(bytes) => part(StreamPart::Stdout(bytes)),
                Part::Frame(text) => part(StreamPart::Frame(text)),
            });
        } else {
            self.is_stderr_open = read > 0;
            if read > 0 {
                part(StreamPart::Stderr(&err[..read]));
            }
        }
        Ok(StreamState::Open)
    }

    /// Confirms the last frame, so that the script ends, and waits for its end for a moment.
    pub(super) async fn confirm(mut self) {
        let confirming = async {
            self.input.writer.write_all(b"ok\n").await.ok();
            if self.ended.is_none() {
                self.status.await;
            }
        };
        if tokio::time::timeout(CLOSE_WITHIN, confirming).await.is_err() {
            tracing::trace!("a script did not end after its last frame");
        }
    }
}

impl ExecInput {
    /// Sends input.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), CutStream> {
        let (limit, sending) = (self.silence_timeout, self.writer.write_all(bytes));
        match tokio::time::timeout(limit, sending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(CutStream(format!("the input was cut off: {error}"))),
            Err(_) => Err(CutStream(format!("no input was accepted for {limit:?}"))),
        }
    }

    /// An input that accepts nothing, in place of one that was taken.
    pub(super) fn closed() -> Self {
        Self { writer: Box::new(tokio::io::sink()), silence_timeout: Duration::ZERO }
    }
}

/// A call that ended before its last frame, with the reason.
#[derive(Debug)]
pub(super) struct CutStream(pub(super) String);

/// The result of a small script.
#[derive(Debug)]
pub(super) struct ScriptResult {
    /// Standard output, bounded.
    pub(super) stdout: String,
    /// Text of the last frame.
    pub(super) frame: String,
}

/// Largest output of a small script.
const MAX_SCRIPT_OUTPUT: usize = 64 * 1024;

/// Runs a script without frames to the end of its output; returns its standard output.
pub(super) async fn run_unframed(target: Target<'_>, argv: Vec<String>) -> Result<String, Failure> {
    let mut stream = ExecStream::open(target, argv, "").await?;
    let mut stdout = Vec::new();
    loop {
        let read = stream.read(|part| {
            if let StreamPart::Stdout(bytes) = part {
                stdout.extend_from_slice(bytes);
            }
        });
        match read.await {
            Ok(StreamState::Open) if stdout.len() < MAX_SCRIPT_OUTPUT => {}
            _ => return Ok(String::from_utf8_lossy(&stdout).into_owned()),
        }
    }
}

/// Runs a script with little output to its last frame.
pub(super) async fn run_script(
    target: Target<'_>,
    argv: Vec<String>,
    mark: &str,
) -> Result<Result<ScriptResult, CutStream>, Failure> {
    let mut stream = ExecStream::open(target, argv, mark).await?;
    let (mut stdout, mut frame, mut noise) = (Vec::new(), None, Vec::new());
    let cut = loop {
        let read = stream.read(|part| match part {
            StreamPart::Stdout(bytes) => stdout.extend_from_slice(bytes),
            StreamPart::Stderr(bytes) => noise.extend_from_slice(bytes),
            StreamPart::Frame(text) => frame = Some(text),
        });
        match read.await {
            Err(cut) => break cut,
            Ok(_) if frame.is_some() => {
                stream.confirm().await;
                let stdout = String::from_utf8_lossy(&stdout).into_owned();
                return Ok(Ok(ScriptResult { stdout, frame: frame.unwrap_or_default() }));
            }
            Ok(StreamState::Open) if stdout.len() + noise.len() < MAX_SCRIPT_OUTPUT => {}
            Ok(StreamState::Open) => break CutStream("it printed too much".to_owned()),
            Ok(StreamState::Ended) => break stream.end_reason(&noise).await,
        }
    };
    Ok(Err(cut))
}

impl ExecStream {
    /// Why a call ended without a last frame.
    pub(super) async fn end_reason(mut self, noise: &[u8]) -> CutStream {
        let status = match self.ended.take() {
            Some(status) => status,
            None => {
                tokio::time::timeout(CLOSE_WITHIN, self.status).await.ok().flatten().map(Box::new)
            }
        };
        let message = status.and_then(|status| status.message).unwrap_or_default();
        let noise = String::from_utf8_lossy(noise);
        let text = format!("{} {}", message.trim(), noise.trim());
        let text = text.trim();
        CutStream(if text.is_empty() {
            "the stream was cut off".to_owned()
        } else {
            text.to_owned()
        })
    }
}
