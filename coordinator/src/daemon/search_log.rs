//! The events of a search in a file, a line of JSON each. The journal of a search has the events of
//! its evals only, and no order between these and its decisions.
//!
//! An event is on disk before a reader gets it: after a power loss its number is still its own. Lines
//! that no reader has got may be lost then. Settlements among them are in the journal, and the next session
//! writes them again.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::{ExecId, ItemId};
use serde_json::Value;

use super::event_feed::{EventFeed, EventSource, HostedEvent, encoded};
use crate::events::{EventBatch, EventSink, ReportError, RunResult, SinkReport, SinkStarter};
use crate::results::view::NumberedEvent;

/// Most bytes of events that wait in memory for a disk that takes no writes. The search itself stops
/// there: its manifest cannot be written either.
const WAITING_BYTES: usize = 8 * 1024 * 1024;

/// Events that could not be written. A disk that takes no writes may have those of many searches.
static UNWRITTEN: WarningLimiter = WarningLimiter::new();

/// A sink that appends to the log of a feed.
pub(super) fn sink(feed: Arc<EventFeed>) -> SinkStarter {
    Box::new(move |_| {
        let EventSource::Log(path) = feed.source() else {
            return Err(std::io::Error::other("the run has no log of events"));
        };
        Ok(Box::new(LogSink::open(Arc::clone(&feed), path)?))
    })
}

/// The content of a log.
#[derive(Debug, Default, PartialEq, Eq)]
struct WrittenEvents {
    /// Number of the last event.
    last: u64,
    /// The items that were settled, with the executions that settled them.
    settled: HashSet<(ItemId, Option<ExecId>)>,
}

/// Opens the log for appending, and returns its length. A line that a crash cut is removed: its event
/// happens again, or the next session makes up for it.
fn open(path: &Path) -> std::io::Result<(File, u64, WrittenEvents)> {
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    if let Some(directory) = path.parent() {
        // The name of a new file must not be lost either.
        File::open(directory)?.sync_all()?;
    }
    let (mut whole, mut written) = (0, WrittenEvents::default());
    let mut reader = BufReader::new(&file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        whole += line.len() as u64;
        if let Some((event, document)) = parse(&line) {
            written.last = event.seq;
            written.settled.extend(settled_in(&document));
        }
        line.clear();
    }
    file.set_len(whole)?;
    Ok((file, whole, written))
}

/// The item that an event settles, and the execution that did.
fn settled_in(document: &Value) -> Option<(ItemId, Option<ExecId>)> {
    let settlement = document.get("settlement")?;
    let item = settlement["item"].as_str()?.parse().ok()?;
    let exec = settlement["by"]["exec"].as_str().and_then(|exec| exec.parse().ok());
    Some((item, exec))
}

/// Passes the events of a log to `see`; a log that cannot be read has no more.
pub(super) fn read(path: &Path, mut see: impl FnMut(&HostedEvent)) {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        Err(error) => {
            tracing::warn!("cannot read {}: {error}", path.display());
            return;
        }
    };
    let synced = match synced_length(&file) {
        Ok(length) => length,
        Err(error) => {
            tracing::warn!("cannot write {} to the disk: {error}", path.display());
            return;
        }
    };
    let mut reader = BufReader::new(file.take(synced));
    let mut line = Vec::new();
    // A line without an end is being written, or was cut.
    while reader.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
        if let Some((event, _)) = parse(&line) {
            see(&event);
        }
        line.clear();
    }
}

/// Writes a file to the disk. Returns the length that is there.
fn synced_length(file: &File) -> std::io::Result<u64> {
    let length = file.metadata()?.len();
    file.sync_data()?;
    Ok(length)
}

fn parse(line: &[u8]) -> Option<(HostedEvent, Value)> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    let value: Value = serde_json::from_str(text).ok()?;
    let (seq, kind) = (value["seq"].as_u64()?, value["event"].as_str()?);
    let event = HostedEvent { seq, kind: kind.into(), json: text.into() };
    Some((event, value))
}

struct LogSink {
    feed: Arc<EventFeed>,
    file: File,
    /// Length of the file, up to which its lines are whole.
    length: u64,
    /// Lines that the disk has not taken.
    waiting: String,
    written: WrittenEvents,
}

impl LogSink {
    fn open(feed: Arc<EventFeed>, path: &Path) -> std::io::Result<Self> {
        let (file, length, written) = open(path)?;
        Ok(Self { feed, file, length, waiting: String::new(), written })
    }

    fn append(&mut self, batch: &[RunEvent]) -> std::io::Result<()> {
        for event in batch {
            if self.waiting.len() >= WAITING_BYTES {
                break;
            }
            if let EventKind::TrialSettled { replayed, settlement, .. } = &event.kind {
                let exec = settlement.by.as_ref().map(|by| by.exec);
                let is_new = self.written.settled.insert((settlement.item, exec));
                // An earlier session has written it, unless it was killed before.
                if *replayed && !is_new {
                    continue;
                }
            }
            self.written.last += 1;
            let event = encoded(&NumberedEvent { seq: self.written.last, event: event.clone() });
            self.waiting.push_str(&event.json);
            self.waiting.push('\n');
        }
        self.write_waiting()
    }

    /// Writes what waits. After an error a part of it may be there, which the next attempt writes over.
    fn write_waiting(&mut self) -> std::io::Result<()> {
        self.file.write_all_at(self.waiting.as_bytes(), self.length)?;
        self.length += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

/// Warns of events that are not written.
fn warn_unwritten(written: std::io::Result<()>) {
    if let Err(error) = written {
        UNWRITTEN.warn(&format_args!("cannot write the events of a search: {error}"));
    }
}

#[async_trait]
impl EventSink for LogSink {
    async fn accept(&mut self, batch: &EventBatch) {
        warn_unwritten(self.append(batch));
        self.feed.changed();
    }

    async fn finish(mut self: Box<Self>, _: Option<RunResult>) -> Result<SinkReport, ReportError> {
        warn_unwritten(self.write_waiting());
        self.feed.changed();
        Ok(SinkReport::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing;

    #[test]
    fn log_continues_after_its_last_whole_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("r.events");
        let feed = Arc::new(EventFeed::new(EventSource::Log(path.clone())));
        let append = |count: i64| {
            let mut sink = LogSink::open(Arc::clone(&feed), &path).expect("opened");
            let last = sink.written.last;
            let batch: Vec<_> =
                (0..count).map(|at| testing::event(at, EventKind::RunPaused)).collect();
            sink.append(&batch).expect("written");
            last
        };
        assert_eq!(append(2), 0);
        let mut text = std::fs::read(&path).expect("a file");
        text.extend_from_slice(b"{\"seq\":3,\"ev");
        std::fs::write(&path, text).expect("written");
        assert_eq!(append(1), 2);
        let mut found = Vec::new();
        read(&path, |event| found.push((event.seq, event.kind.to_string())));
        assert_eq!(found, [1, 2, 3].map(|seq| (seq, "run_paused".to_owned())));
    }

    #[test]
    fn settlements_that_a_kill_kept_out_of_the_log_are_written_by_the_next_session() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("r.events");
        let feed = Arc::new(EventFeed::new(EventSource::Log(path.clone())));
        let settled = |task: &str, replayed: bool| {
            let trial = testing::trial("a", task, 1);
            let settlement = Arc::new(testing::settlement(trial, 1, testing::passed(1.0)));
            testing::event(5, EventKind::TrialSettled { ordinal: 0, replayed, settlement })
        };
        let append = |batch: &[RunEvent]| {
            let mut sink = LogSink::open(Arc::clone(&feed), &path).expect("opened");
            sink.append(batch).expect("written");
        };
        append(&[settled("one", false)]);
        append(&[settled("one", true), settled("two", true)]);
        append(&[settled("two", true)]);
        let mut found = Vec::new();
        read(&path, |event| found.push((event.seq, event.json.contains("two"))));
        assert_eq!(found, [(1, false), (2, true)]);
    }

    #[test]
    fn events_that_the_disk_did_not_take_are_written_when_it_takes_writes_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("r.events");
        let feed = Arc::new(EventFeed::new(EventSource::Log(path.clone())));
        let mut sink = LogSink::open(feed, &path).expect("opened");
        let batch = [testing::event(1, EventKind::RunPaused)];
        let writable = std::mem::replace(&mut sink.file, File::open(&path).expect("opened"));
        for _ in 0..2 {
            assert!(sink.append(&batch).is_err(), "its file is open for reading only");
        }
        sink.file = writable;
        sink.append(&batch).expect("written");
        let mut found = Vec::new();
        read(&path, |event| found.push(event.seq));
        assert_eq!(found, [1, 2, 3]);
    }

    #[test]
    fn line_without_its_end_is_not_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("r.events");
        let line = |seq: u64| format!(r#"{{"seq":{seq},"event":"run_paused"}}"#);
        std::fs::write(&path, format!("{}\n{}", line(1), line(2))).expect("written");
        let mut found = Vec::new();
        read(&path, |event| found.push(event.seq));
        assert_eq!(found, [1]);
    }
}
