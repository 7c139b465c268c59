//! Events of a harness, read from the logs of an execution that has ended. The logs are text of an
//! agent: lines that are no events are skipped, as the worker did that counted them.

use std::collections::VecDeque;
use std::io;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::harness::{HookEvent, LineSplitter, SplitLine, parse_event};
use rollout_protocol::id::ExecId;
use rollout_protocol::limits;
use rollout_protocol::reference::EventLogRef;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::{ExecutorError, TrialEvent, TrialEventStream};

/// Bytes read from a log at once.
const PIECE_BYTES: usize = 64 * 1024;

/// The content of a blob.
pub type BlobReader = Box<dyn AsyncRead + Send + Unpin>;

/// Opens the content of a blob.
type OpenBlob =
    Box<dyn Fn(BlobRef) -> BoxFuture<'static, Result<BlobReader, ExecutorError>> + Send>;

/// The logs of an execution.
#[derive(Debug, Clone)]
pub struct EventLogs {
    /// The execution.
    pub exec: ExecId,
    /// Its logs, in order.
    pub logs: Vec<EventLogRef>,
}

/// The events of these logs from the event with the number `from` on, each read when it is wanted.
pub fn recorded_events(
    EventLogs { exec, logs }: EventLogs,
    from: u64,
    open: impl Fn(BlobRef) -> BoxFuture<'static, Result<BlobReader, ExecutorError>> + Send + 'static,
) -> TrialEventStream {
    let cursor =
        EventCursor { exec, logs: logs.into(), current: None, next: 0, from, open: Box::new(open) };
    stream::try_unfold(cursor, |mut cursor| async move {
        let event = cursor.next_event().await?;
        Ok(event.map(|event| (event, cursor)))
    })
    .boxed()
}

/// A position in the logs of an execution.
struct EventCursor {
    exec: ExecId,
    logs: VecDeque<EventLogRef>,
    /// The log that is read, with its step.
    current: Option<(Option<String>, LogReader)>,
    /// Number of the next event.
    next: u64,
    from: u64,
    open: OpenBlob,
}

impl EventCursor {
    async fn next_event(&mut self) -> Result<Option<TrialEvent>, ExecutorError> {
        loop {
            let Some((step, log)) = &mut self.current else {
                let Some(log) = self.logs.pop_front() else { return Ok(None) };
                // A log without events that are wanted is not read at all.
                if self.next + log.events <= self.from {
                    self.next += log.events;
                    continue;
                }
                let reader = (self.open)(log.blob).await?;
                self.current = Some((log.step, LogReader::new(reader)));
                continue;
            };
            match log.next_event().await.map_err(ExecutorError::Read)? {
                None => self.current = None,
                Some(event) => {
                    let number = self.next;
                    self.next += 1;
                    if number >= self.from {
                        let (exec, step) = (self.exec, step.clone());
                        return Ok(Some(TrialEvent { exec, number, step, event }));
                    }
                }
            }
        }
    }
}

/// A log of events under way.
struct LogReader {
    reader: BlobReader,
    splitter: LineSplitter,
    /// Events of the last piece.
    ready: VecDeque<HookEvent>,
    buffer: Vec<u8>,
    ended: bool,
}

impl LogReader {
    fn new(reader: BlobReader) -> Self {
        let splitter = LineSplitter::new(limits::HOOK_EVENT_BYTES);
        let (ready, buffer) = (VecDeque::new(), vec![0; PIECE_BYTES]);
        Self { reader, splitter, ready, buffer, ended: false }
    }

    async fn next_event(&mut self) -> io::Result<Option<HookEvent>> {
        while self.ready.is_empty() && !self.ended {
            let read = self.reader.read(&mut self.buffer).await?;
            let Self { splitter, ready, buffer, .. } = self;
            let mut take = |line: SplitLine<'_>| {
                if let SplitLine::Complete(line) = line {
                    ready.extend(parse_event(line).ok());
                }
            };
            match read {
                0 => {
                    splitter.finish(&mut take);
                    self.ended = true;
                }
                read => splitter.push(&buffer[..read], &mut take),
            }
        }
        Ok(self.ready.pop_front())
    }
}

#[cfg(test)]
mod tests;
