//! Events of a trial from the server: a stream that is opened again when it breaks off.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::{StreamExt as _, stream};
use rollout_protocol::harness::parse_event;
use rollout_protocol::id::{ExecId, ItemId};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::errors;
use super::transport::ApiTransport;
use crate::executor::{ExecutorError, TrialEvent, TrialEventStream};

/// Longest silence of a stream: the server sends a sign of life every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// Pause before a stream that broke off is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);

/// The events of a trial from the event with the number `from` on.
pub(super) fn trial_events(
    transport: Arc<ApiTransport>,
    path: String,
    trial: ItemId,
    from: u64,
) -> TrialEventStream {
    let path = format!("{path}/events?from={from}");
    let events =
        RemoteEvents { transport, path, trial, reader: None, sent: ForwardedEvents::default() };
    stream::try_unfold(events, |mut events| async move {
        let event = events.next_event().await?;
        Ok(event.map(|event| (event, events)))
    })
    .boxed()
}

struct RemoteEvents {
    transport: Arc<ApiTransport>,
    path: String,
    trial: ItemId,
    reader: Option<SseReader>,
    sent: ForwardedEvents,
}

impl RemoteEvents {
    async fn next_event(&mut self) -> Result<Option<TrialEvent>, ExecutorError> {
        loop {
            let Some(reader) = &mut self.reader else {
                let opened = self.transport.open(&self.path).await;
                let body = opened.map_err(|error| errors::of_trial(error, self.trial))?;
                self.sent.begin_again();
                self.reader = Some(SseReader::new(body));
                continue;
            };
            match reader.next_message().await {
                Some(SseMessage { kind, data }) if kind == "event" => {
                    let event = read_event(&data)?;
                    if self.sent.is_new(&event, &data) {
                        return Ok(Some(event));
                    }
                }
                Some(SseMessage { kind, .. }) if kind == "end" => {
                    if self.sent.has_all() {
                        return Ok(None);
                    }
                    // The record has fewer events than were sent: all of them are sent again.
                    self.sent = ForwardedEvents::default();
                    self.reader = None;
                }
                Some(SseMessage { kind, data }) if kind == "error" => {
                    let document: Value = serde_json::from_str(&data).unwrap_or_default();
                    if let Some(error) = errors::of_stream(&document, self.trial) {
                        return Err(error);
                    }
                    self.reopen().await;
                }
                Some(_) => {}
                None => self.reopen().await,
            }
        }
    }

    async fn reopen(&mut self) {
        self.reader = None;
        sleep(REOPEN_PAUSE).await;
    }
}

fn read_event(data: &str) -> Result<TrialEvent, ExecutorError> {
    #[derive(Deserialize)]
    struct EventDocument {
        exec: ExecId,
        number: u64,
        step: Option<String>,
        event: Value,
    }
    let invalid = |error: String| ExecutorError::Read(std::io::Error::other(error));
    let EventDocument { exec, number, step, event } =
        serde_json::from_str(data).map_err(|error| invalid(error.to_string()))?;
    let event = parse_event(event.to_string().as_bytes());
    let event = event.map_err(|error| invalid(error.to_string()))?;
    Ok(TrialEvent { exec, number, step, event })
}

/// The events that were sent, as far as they count: 16 bytes each. A stream that is opened again
/// begins at its beginning, because another execution may have begun meanwhile.
#[derive(Debug, Default)]
struct ForwardedEvents {
    exec: Option<ExecId>,
    /// Number and hash of each event.
    events: Vec<(u64, u64)>,
    /// The next event to compare with, while the stream repeats what was sent.
    compared: Option<usize>,
}

impl ForwardedEvents {
    fn begin_again(&mut self) {
        self.compared = (!self.events.is_empty()).then_some(0);
    }

    /// Notes an event of the stream. Returns whether it was not sent before.
    fn is_new(&mut self, event: &TrialEvent, data: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        data.hash(&mut hasher);
        let entry = (event.number, hasher.finish());
        if let Some(at) = self.compared {
            if self.exec == Some(event.exec) && self.events.get(at) == Some(&entry) {
                self.compared = Some(at + 1);
                return false;
            }
            self.compared = None;
            self.events.truncate(at);
        }
        if self.exec != Some(event.exec) {
            self.exec = Some(event.exec);
            self.events.clear();
        }
        let kept = self.events.partition_point(|(number, _)| *number < event.number);
        self.events.truncate(kept);
        self.events.push(entry);
        true
    }

    /// Whether the stream has repeated everything that was sent.
    fn has_all(&self) -> bool {
        self.compared.is_none_or(|at| at == self.events.len())
    }
}

/// A message of server-sent events.
#[derive(Debug, PartialEq, Eq)]
struct SseMessage {
    kind: String,
    data: String,
}

/// Reads server-sent events.
struct SseReader {
    pieces: BodyDataStream,
    splitter: SseSplitter,
}

impl SseReader {
    fn new(body: Body) -> Self {
        Self { pieces: body.into_data_stream(), splitter: SseSplitter::default() }
    }

    /// The next message; `None` when the stream has broken off.
    async fn next_message(&mut self) -> Option<SseMessage> {
        loop {
            if let Some(message) = self.splitter.next_message() {
                return Some(message);
            }
            let piece = timeout(SILENCE, self.pieces.next()).await.ok()??.ok()?;
            self.splitter.buffer.extend_from_slice(&piece);
        }
    }
}

/// Splits bytes into messages.
#[derive(Debug, Default)]
struct SseSplitter {
    buffer: Vec<u8>,
    /// Bytes of the buffer that were split.
    read: usize,
    kind: String,
    data: String,
}

impl SseSplitter {
    fn next_message(&mut self) -> Option<SseMessage> {
        while let Some(end) = self.buffer[self.read..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.buffer[self.read..self.read + end]);
            self.read += end + 1;
            let line = line.trim_end_matches('\r');
            if let Some(kind) = line.strip_prefix("event: ") {
                kind.clone_into(&mut self.kind);
            } else if let Some(data) = line.strip_prefix("data: ") {
                self.data.push_str(data);
            } else if line.is_empty() && !self.kind.is_empty() {
                let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
                return Some(SseMessage { kind, data });
            }
        }
        self.buffer.drain(..self.read);
        self.read = 0;
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(exec: u8, number: u64, message: &str) -> (TrialEvent, String) {
        let ids = json!({
            "run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0,
        });
        let document = json!({
            "exec": ExecId::from_bytes([exec; 16]), "number": number, "step": null,
            "event": {"event_type": "error", "ts": "2026-01-02T03:04:05Z", "seq": number,
                "ids": ids, "message": message},
        });
        let data = document.to_string();
        (read_event(&data).expect("an event"), data)
    }

    #[test]
    fn stream_that_is_opened_again_sends_nothing_twice() {
        let mut sent = ForwardedEvents::default();
        let see = |sent: &mut ForwardedEvents, (event, data): (TrialEvent, String)| {
            sent.is_new(&event, &data)
        };
        sent.begin_again();
        assert!(see(&mut sent, event(1, 0, "a")) && see(&mut sent, event(1, 1, "b")));
        assert!(sent.has_all());
        sent.begin_again();
        assert!(!see(&mut sent, event(1, 0, "a")));
        assert!(!sent.has_all());
        assert!(!see(&mut sent, event(1, 1, "b")) && sent.has_all());
        assert!(see(&mut sent, event(1, 2, "c")));
        // The record has another event.
        sent.begin_again();
        assert!(!see(&mut sent, event(1, 0, "a")) && see(&mut sent, event(1, 1, "other")));
        assert_eq!(sent.events.len(), 2);
        // Another execution has begun.
        sent.begin_again();
        assert!(see(&mut sent, event(2, 0, "a")) && sent.has_all());
        assert_eq!((sent.exec, sent.events.len()), (Some(ExecId::from_bytes([2; 16])), 1));
    }

    #[test]
    fn messages_are_read_from_pieces_of_any_size() {
        let text = "id: 0\nevent: event\ndata: {\"a\":1}\n\n: alive\n\nevent: end\ndata: {}\n\n";
        for size in [1, 7, text.len()] {
            let mut splitter = SseSplitter::default();
            let mut found = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                splitter.buffer.extend_from_slice(piece);
                while let Some(SseMessage { kind, data }) = splitter.next_message() {
                    found.push((kind, data));
                }
            }
            let expected = [("event", "{\"a\":1}"), ("end", "{}")];
            assert_eq!(found, expected.map(|(kind, data)| (kind.to_owned(), data.to_owned())));
        }
    }
}
