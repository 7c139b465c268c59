//! JSON lines sink, for programs: an event per line; the last line is the result of the run.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;
use rollout_base::supervise;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::events::ReportError;
use crate::events::sink::{EventBatch, EventSink, RunResult, SinkReport};
use crate::results::known_cost::NullUnknownCosts;

/// Batches queued for writing before the run blocks.
const WAITING_BATCHES: usize = 16;

/// A message to the writing thread.
enum JsonLinesMessage {
    Events(EventBatch),
    Result(RunResult),
}

/// The last line.
#[derive(Serialize)]
struct ResultLine<'a, T> {
    event: &'static str,
    #[serde(flatten)]
    result: &'a T,
}

/// Writes events on its own thread: the reader may be slow.
#[derive(Debug)]
pub(super) struct JsonLines {
    lines: mpsc::Sender<JsonLinesMessage>,
    thread: JoinHandle<io::Result<()>>,
}

impl JsonLines {
    pub(super) fn start(out: Box<dyn Write + Send>) -> io::Result<Self> {
        let (lines, receiver) = mpsc::channel(WAITING_BATCHES);
        let thread = supervise::thread("json lines", move || write_all(receiver, out))?;
        Ok(Self { lines, thread })
    }
}

#[async_trait]
impl EventSink for JsonLines {
    async fn accept(&mut self, batch: &EventBatch) {
        // A closed channel means that writing failed: `finish` returns the cause.
        let _closed = self.lines.send(JsonLinesMessage::Events(Arc::clone(batch))).await;
    }

    async fn finish(self: Box<Self>, result: Option<RunResult>) -> Result<SinkReport, ReportError> {
        let Self { lines, thread } = *self;
        if let Some(result) = result {
            let _closed = lines.send(JsonLinesMessage::Result(result)).await;
        }
        drop(lines);
        let written = supervise::blocking(move || thread.join()).await.unwrap_or_else(|panic| {
            Err(io::Error::other(supervise::panic_message(panic.as_ref())))
        });
        written.map(|()| SinkReport::default()).map_err(ReportError::Json)
    }
}

/// Writes until everything is written or the reader closes the pipe, which is no error.
fn write_all(
    mut receiver: mpsc::Receiver<JsonLinesMessage>,
    out: Box<dyn Write + Send>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(64 * 1024, out);
    let mut write = || -> io::Result<()> {
        while let Some(lines) = receiver.blocking_recv() {
            match lines {
                JsonLinesMessage::Events(events) => {
                    for event in events.iter() {
                        line(&mut out, &NullUnknownCosts(event))?;
                    }
                }
                JsonLinesMessage::Result(result) => {
                    let event = "result";
                    match &result {
                        RunResult::Job(result) => line(&mut out, &ResultLine { event, result })?,
                        RunResult::Search(result) => line(&mut out, &ResultLine { event, result })?,
                    }
                }
            }
            if receiver.is_empty() {
                out.flush()?;
            }
        }
        out.flush()
    };
    match write() {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}
