//! Files copied into and out of a pod, as archives over exec calls.
//!
//! A digest travels beside each archive. One that was cut off or changed is sent or read again, and
//! never accepted.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use rollout_base::shortage::Shortage;
use rollout_base::supervise::{self, Task};
use rollout_environment::{ByteStream, Failure, FailureKind, Upload, upload, with_words};
use rollout_protocol::digest::DigestHasher;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

use super::frames::new_mark;
use super::pod::{Attempts, Broken, KubePod};
use super::scripts;
use super::stream::{CutStream, ExecInput, ExecStream, StreamPart, StreamState};

/// Chunks between the task that reads from a pod and the reader of the stream.
const QUEUE: usize = 4;

/// Counts bytes.
#[derive(Default)]
struct ByteCounter(u64);

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The last frame of a transfer.
#[derive(Debug, PartialEq, Eq)]
enum TransferEnd {
    /// Exit code of `tar`, digest of the archive, messages.
    Done { code: i32, digest: String, log: String },
    /// Something is at this path that cannot be replaced.
    Blocked(String),
    /// There is nothing to read.
    Missing,
    /// The container lacks something.
    Failed(String),
}

impl KubePod {
    /// Places files.
    pub(super) async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        let uploads = Arc::new(uploads);
        let counted = Arc::clone(&uploads);
        let count = move || {
            let mut counter = ByteCounter::default();
            upload::write_content(&counted, &mut counter).map(|()| counter.0)
        };
        let bytes = supervise::blocking(count).await.map_err(|error| self.pack_failure(error))?;
        let mut attempts = Attempts::default();
        loop {
            let placed = tokio::select! {
                placed = self.place_once(&uploads, bytes) => placed?,
                lost = self.lost() => return Err(lost.failure),
            };
            match placed {
                Ok(()) => return Ok(()),
                Err(broken) => attempts.pause(self, broken).await?,
            }
        }
    }

    async fn place_once(
        &self,
        uploads: &Arc<Vec<Upload>>,
        bytes: u64,
    ) -> Result<Result<(), Broken>, Failure> {
        let mark = new_mark();
        let argv = scripts::place(self.shell, uploads, bytes, &mark);
        let mut stream = match ExecStream::open(self.target(), argv, &mark).await {
            Ok(stream) => stream,
            Err(failure) => return Ok(Err(Broken::Call(failure))),
        };
        let (writer, pieces) = upload::chunk_channel();
        let packed = Arc::clone(uploads);
        let writing =
            supervise::blocking(move || writer.run(|to| upload::write_content(&packed, to)));
        let input = std::mem::replace(&mut stream.input, ExecInput::closed());
        let sending = send_all(input, pieces);
        let transfer = transfer(stream, sending);
        let (written, sent) = tokio::join!(writing, transfer);
        match (written, sent) {
            (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(self.pack_failure(error))
            }
            (_, Err(cut)) => Ok(Err(Broken::Cut(cut))),
            (_, Ok((end, digest))) => self.placed(end, digest.as_deref()),
        }
    }

    /// Judges the end of a placement; `sent` is the digest of what was sent.
    fn placed(&self, end: TransferEnd, sent: Option<&str>) -> Result<Result<(), Broken>, Failure> {
        let what = format!("cannot place files in the pod {}", self.name);
        match end {
            TransferEnd::Done { digest, .. } if Some(digest.as_str()) != sent => {
                Ok(Err(Broken::Cut(CutStream("the files arrived incomplete".to_owned()))))
            }
            TransferEnd::Done { code: 0, .. } => Ok(Ok(())),
            TransferEnd::Done { code, log, .. } => {
                let kind = FailureKind::from_shortage(Shortage::from_text(&log));
                // `tar` works, so something in the container is in its way.
                let kind = kind.unwrap_or(FailureKind::Unusable);
                let text = format!("{what}: tar ended with {code}");
                Err(Failure::new(kind, with_words(text, &log)))
            }
            TransferEnd::Blocked(path) => {
                let text = format!("{what}: what is at {path} cannot be replaced");
                Err(Failure::new(FailureKind::Unusable, text))
            }
            TransferEnd::Missing => Err(Failure::new(FailureKind::Bug, what)),
            TransferEnd::Failed(why) => {
                Err(Failure::new(FailureKind::Unusable, format!("{what}: {why}")))
            }
        }
    }

    fn pack_failure(&self, error: io::Error) -> Failure {
        let what = format!("cannot pack files for the pod {}", self.name);
        Failure::local(FailureKind::Bug, what, error)
    }

    /// Reads a file or directory as a tar stream; `None` when there is nothing.
    pub(super) async fn copy_from(
        self: &Arc<Self>,
        path: &str,
    ) -> Result<Option<ByteStream>, Failure> {
        let (chunks, mut received) = mpsc::channel(QUEUE);
        let (pod, path) = (Arc::clone(self), path.to_owned());
        let reading = async move {
            let mut download =
                Download { pod: &pod, path, chunks, hasher: DigestHasher::default(), offset: 0 };
            if let Err(failure) = download.run().await {
                // The reader may have stopped.
                download.chunks.send(Chunk::Failed(failure)).await.ok();
            }
        };
        let task = supervise::spawn("kubernetes download", reading);
        match received.recv().await {
            Some(Chunk::Data(first)) => Ok(Some(Box::new(DownloadStream {
                current: first,
                is_whole: false,
                received,
                _task: task,
            }))),
            Some(Chunk::Failed(failure)) => Err(failure),
            Some(Chunk::End) | None => Ok(None),
        }
    }
}

/// Sends an archive; returns its digest, and the input for the confirmation.
async fn send_all(
    mut input: ExecInput,
    mut pieces: mpsc::Receiver<io::Result<Bytes>>,
) -> Result<(String, ExecInput), CutStream> {
    let mut hasher = DigestHasher::default();
    while let Some(piece) = pieces.recv().await {
        let piece = piece.map_err(|error| CutStream(error.to_string()))?;
        hasher.update(&piece);
        input.send(&piece).await?;
    }
    Ok((hex(hasher), input))
}

/// Sends with `sending` and reads to the last frame. The digest is absent if the script ended before
/// everything was sent.
async fn transfer(
    mut stream: ExecStream,
    sending: impl Future<Output = Result<(String, ExecInput), CutStream>>,
) -> Result<(TransferEnd, Option<String>), CutStream> {
    let mut sending = std::pin::pin!(sending);
    let mut digest = None;
    let mut noise = Vec::new();
    loop {
        let mut end = None;
        let state = tokio::select! {
            sent = &mut sending, if digest.is_none() => {
                let (sent, input) = sent?;
                stream.input = input;
                digest = Some(sent);
                continue;
            }
            state = stream.read(|part| match part {
                StreamPart::Frame(text) => end = parse_end(&text),
                StreamPart::Stdout(_) => {}
                StreamPart::Stderr(bytes) => noise.extend_from_slice(bytes),
            }) => state?,
        };
        if let Some(end) = end {
            if digest.is_some() {
                stream.confirm().await;
            }
            return Ok((end, digest));
        }
        if state == StreamState::Ended {
            return Err(stream.end_reason(&noise).await);
        }
    }
}

fn parse_end(text: &str) -> Option<TransferEnd> {
    let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
    match kind {
        "n" => Some(TransferEnd::Missing),
        "b" => Some(TransferEnd::Blocked(rest.to_owned())),
        "x" => Some(TransferEnd::Failed(rest.to_owned())),
        "e" => {
            let (code, rest) = rest.split_once(' ')?;
            let (digest, log) = rest.split_once(' ').unwrap_or((rest, ""));
            let (digest, log) = (digest.to_owned(), log.to_owned());
            Some(TransferEnd::Done { code: code.parse().ok()?, digest, log })
        }
        _ => None,
    }
}

/// A digest as `sha256sum` prints it.
fn hex(hasher: DigestHasher) -> String {
    hasher.finish().hex()
}

/// A part of a download.
enum Chunk {
    Data(Bytes),
    /// The end of the archive, which is whole.
    End,
    Failed(Failure),
}

/// An archive on its way out of a pod.
struct Download<'a> {
    pod: &'a KubePod,
    path: String,
    chunks: mpsc::Sender<Chunk>,
    hasher: DigestHasher,
    /// Bytes that have arrived.
    offset: u64,
}

impl Download<'_> {
    /// Reads to the end of the archive, over as many calls as that takes.
    async fn run(&mut self) -> Result<(), Failure> {
        let pod = self.pod;
        let mut attempts = Attempts::default();
        let reader = self.chunks.clone();
        loop {
            let before = self.offset;
            let attempt = tokio::select! {
                attempt = self.attempt() => attempt?,
                lost = pod.lost() => return Err(lost.failure),
                () = reader.closed() => return Ok(()),
            };
            match attempt {
                Ok(()) => return Ok(()),
                Err(broken) => {
                    if self.offset > before {
                        attempts.reset();
                    }
                    attempts.pause(pod, broken).await?;
                }
            }
        }
    }

    async fn attempt(&mut self) -> Result<Result<(), Broken>, Failure> {
        let mark = new_mark();
        let argv = scripts::read(self.pod.shell, &self.path, self.offset, &mark);
        let mut stream = match ExecStream::open(self.pod.target(), argv, &mark).await {
            Ok(stream) => stream,
            Err(failure) => return Ok(Err(Broken::Call(failure))),
        };
        let mut noise = Vec::new();
        loop {
            let (mut data, mut end) = (Vec::new(), None);
            let state = stream.read(|part| match part {
                StreamPart::Frame(text) => end = parse_end(&text),
                StreamPart::Stdout(bytes) => data.extend_from_slice(bytes),
                StreamPart::Stderr(bytes) => noise.extend_from_slice(bytes),
            });
            let state = state.await;
            if !data.is_empty() {
                self.hasher.update(&data);
                self.offset += data.len() as u64;
                if self.chunks.send(Chunk::Data(data.into())).await.is_err() {
                    return Ok(Ok(()));
                }
            }
            if let Some(end) = end {
                stream.confirm().await;
                return self.finish(end).await;
            }
            match state {
                Ok(StreamState::Open) => {}
                Ok(StreamState::Ended) => {
                    return Ok(Err(Broken::Cut(stream.end_reason(&noise).await)));
                }
                Err(cut) => return Ok(Err(Broken::Cut(cut))),
            }
        }
    }

    /// Judges the end of an archive.
    async fn finish(&mut self, end: TransferEnd) -> Result<Result<(), Broken>, Failure> {
        let what = format!("cannot read {} in the pod {}", self.path, self.pod.name);
        match end {
            TransferEnd::Missing if self.offset == 0 => {}
            // `tar` ends with 1 when a file changed while it was read, and pads it.
            TransferEnd::Done { code: 0 | 1, digest, .. } => {
                let arrived = hex(std::mem::take(&mut self.hasher));
                if arrived != digest {
                    let text =
                        format!("{what}: its content changed while it was read, or was lost");
                    return Err(Failure::new(FailureKind::Service, text));
                }
            }
            TransferEnd::Done { code, log, .. } => {
                let kind = FailureKind::from_shortage(Shortage::from_text(&log));
                let text = with_words(format!("{what}: tar ended with {code}"), &log);
                return Err(Failure::new(kind.unwrap_or(FailureKind::Unusable), text));
            }
            TransferEnd::Missing | TransferEnd::Blocked(_) => {
                let text = format!("{what}: it was removed while it was read");
                return Err(Failure::new(FailureKind::Unusable, text));
            }
            TransferEnd::Failed(why) => {
                return Err(Failure::new(FailureKind::Unusable, format!("{what}: {why}")));
            }
        }
        self.chunks.send(Chunk::End).await.ok();
        Ok(Ok(()))
    }
}

/// The reader's side of a download.
struct DownloadStream {
    current: Bytes,
    /// Whether the whole archive has arrived.
    is_whole: bool,
    received: mpsc::Receiver<Chunk>,
    _task: Task<()>,
}

impl AsyncRead for DownloadStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.current.is_empty() && !self.is_whole {
            match ready!(self.received.poll_recv(cx)) {
                Some(Chunk::Data(bytes)) => self.current = bytes,
                Some(Chunk::End) => self.is_whole = true,
                Some(Chunk::Failed(failure)) => return Poll::Ready(Err(io::Error::other(failure))),
                None => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            }
        }
        let length = self.current.len().min(buffer.remaining());
        buffer.put_slice(&self.current[..length]);
        self.current.advance(length);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_transfer_is_parsed() {
        let done = |code, digest: &str, log: &str| {
            let (digest, log) = (digest.to_owned(), log.to_owned());
            Some(TransferEnd::Done { code, digest, log })
        };
        assert_eq!(parse_end("e 0 abc"), done(0, "abc", ""));
        assert_eq!(parse_end("e 0 abc "), done(0, "abc", ""));
        assert_eq!(parse_end("e 2 abc tar: no space"), done(2, "abc", "tar: no space"));
        assert_eq!(parse_end("b /a b"), Some(TransferEnd::Blocked("/a b".to_owned())));
        assert_eq!(parse_end("n"), Some(TransferEnd::Missing));
        assert_eq!(parse_end("e"), None);
    }
}
