//! The events of a search in a file, a line of JSON each. The journal of a search has the events of
//! its evals only, and no order between these and its decisions.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_protocol::event::{EventKind, RunEvent};
use serde_json::Value;

use super::event_feed::{EventFeed, EventSource, HostedEvent, encoded};
use crate::events::{EventBatch, EventSink, ReportError, RunResult, SinkReport, SinkStarter};
use crate::results::view::NumberedEvent;

/// A sink that appends to the log of a feed.
pub(super) fn sink(feed: Arc<EventFeed>) -> SinkStarter {
    Box::new(move |_| {
        let EventSource::Log(path) = feed.source() else {
            return Err(std::io::Error::other("the run has no log of events"));
        };
        let (file, last) = open(path)?;
        Ok(Box::new(LogSink { feed, file, last }))
    })
}

/// Opens the log for appending and returns the number of its last event. A line that a crash cut is
/// removed: its event happens again, or the next session makes up for it.
fn open(path: &Path) -> std::io::Result<(File, u64)> {
    let mut file =
        File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    let (mut whole, mut last) = (0, 0);
    let mut reader = BufReader::new(&file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        whole += line.len() as u64;
        last = parse(&line).map_or(last, |event| event.seq);
        line.clear();
    }
    file.set_len(whole)?;
    file.seek(SeekFrom::End(0))?;
    Ok((file, last))
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
    for line in BufReader::new(file).split(b'\n') {
        let Ok(line) = line else { return };
        if let Some(event) = parse(&line) {
            see(&event);
        }
    }
}

fn parse(line: &[u8]) -> Option<HostedEvent> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    let value: Value = serde_json::from_str(text).ok()?;
    let (seq, kind) = (value["seq"].as_u64()?, value["event"].as_str()?);
    Some(HostedEvent { seq, kind: kind.into(), json: text.into() })
}

struct LogSink {
    feed: Arc<EventFeed>,
    file: File,
    /// Number of the last event.
    last: u64,
}

impl LogSink {
    fn append(&mut self, batch: &[RunEvent]) -> std::io::Result<()> {
        let mut text = String::new();
        for event in batch {
            // Earlier sessions have written it.
            if matches!(event.kind, EventKind::TrialSettled { replayed: true, .. }) {
                continue;
            }
            self.last += 1;
            let event = encoded(&NumberedEvent { seq: self.last, event: event.clone() });
            text.push_str(&event.json);
            text.push('\n');
        }
        self.file.write_all(text.as_bytes())
    }
}

#[async_trait]
impl EventSink for LogSink {
    async fn accept(&mut self, batch: &EventBatch) {
        if let Err(error) = self.append(batch) {
            tracing::error!("cannot write the events of a search: {error}");
        }
        self.feed.changed();
    }

    async fn finish(self: Box<Self>, _: Option<RunResult>) -> Result<SinkReport, ReportError> {
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
        let append = |count: u64| {
            let (file, last) = open(&path).expect("opened");
            let mut sink = LogSink { feed: Arc::clone(&feed), file, last };
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
}
