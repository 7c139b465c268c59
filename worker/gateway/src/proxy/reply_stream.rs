//! The way of a reply from its server to the agent: what the agent may have at once, and what waits
//! until the record is whole.

use rollout_base::secrets::Redactor;
use rollout_protocol::limits;
use rollout_protocol::record::ModelEndpoint;

use super::capture::{self, Added};
use super::reply::{LastMark, ParsedReply, ReplyParser};
use super::sse::{SseEvent, SseParser};

/// How a reply is passed on.
#[derive(Debug, Clone)]
pub(crate) enum ReplyForm {
    /// A stream of events: each at once, but the last event only at the end.
    Events,
    /// Anything else: at once, but the last piece only at the end.
    Pieces,
    /// An error, from which secrets are taken out: all of it at the end.
    Error(Redactor),
    /// Bytes that cannot be read, such as compressed ones: like pieces, and never changed.
    Opaque,
}

/// A reply on its way.
#[derive(Debug)]
pub(crate) struct ReplyStream {
    form: ReplyForm,
    added: Added,
    sse: SseParser,
    parser: ReplyParser,
    /// Bytes that the agent gets at the end.
    held: Vec<u8>,
    /// Whether the last event has come, which is held with all that follows it.
    is_last_held: bool,
    /// Searches the event that has not ended for the mark of a last one.
    last_mark: LastMark,
    /// All bytes, unless they are too many to be kept.
    body: Option<Vec<u8>>,
    /// Number of bytes.
    bytes: u64,
}

/// A reply that has ended.
#[derive(Debug)]
pub(crate) struct EndedReply {
    /// Bytes that the agent has not got yet.
    pub(crate) held: Vec<u8>,
    /// Its content.
    pub(crate) parsed: ParsedReply,
    /// Its bytes as they came, unless they are too many.
    pub(crate) body: Option<Vec<u8>>,
    /// Number of its bytes.
    pub(crate) bytes: u64,
}

impl ReplyStream {
    /// A reply to a request to which `added` was added.
    pub(crate) fn new(endpoint: ModelEndpoint, form: ReplyForm, added: Added) -> Self {
        Self {
            form,
            added,
            sse: SseParser::default(),
            parser: ReplyParser::new(endpoint),
            held: Vec::new(),
            is_last_held: false,
            last_mark: LastMark::new(endpoint),
            body: Some(Vec::new()),
            bytes: 0,
        }
    }

    /// Whether the agent gets other bytes than the server sent, so that its length is not known.
    pub(crate) fn may_change(&self) -> bool {
        match self.form {
            ReplyForm::Error(_) => true,
            ReplyForm::Events | ReplyForm::Pieces => !self.added.is_empty(),
            ReplyForm::Opaque => false,
        }
    }

    /// Takes a piece; returns what the agent gets at once.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        if piece.is_empty() {
            return Vec::new();
        }
        let start = self.bytes;
        self.bytes += piece.len() as u64;
        if self.bytes > limits::GATEWAY_REPLY_BYTES as u64 && !self.is_buffered() {
            self.body = None;
        }
        if let Some(body) = &mut self.body {
            body.extend_from_slice(piece);
        }
        match &self.form {
            ReplyForm::Events if self.added.is_empty() => self.push_events(start, piece),
            ReplyForm::Events => self.push_reduced(piece),
            ReplyForm::Error(_) => Vec::new(),
            ReplyForm::Pieces if !self.added.is_empty() => Vec::new(),
            ReplyForm::Pieces | ReplyForm::Opaque => {
                std::mem::replace(&mut self.held, piece.to_vec())
            }
        }
    }

    /// Whether all of the reply is changed at its end.
    fn is_buffered(&self) -> bool {
        match self.form {
            ReplyForm::Error(_) => true,
            ReplyForm::Pieces => !self.added.is_empty(),
            ReplyForm::Events | ReplyForm::Opaque => false,
        }
    }

    /// Whether it is a stream of events.
    pub(crate) const fn is_stream(&self) -> bool {
        matches!(self.form, ReplyForm::Events)
    }

    /// Whether the last event has come: the server has nothing more to say.
    pub(crate) const fn is_terminal(&self) -> bool {
        self.is_last_held
    }

    /// Whether more bytes are kept in memory than a record may have.
    pub(crate) fn is_too_large(&self) -> bool {
        let (_, pending) = self.sse.pending();
        let most = limits::GATEWAY_REPLY_BYTES;
        self.is_buffered() && self.bytes > most as u64
            || self.held.len() > most
            || pending.len() > most
    }

    fn push_events(&mut self, start: u64, piece: &[u8]) -> Vec<u8> {
        let mut last = None;
        for event in self.sse.push(piece) {
            if self.read(&event) && last.is_none() {
                last = Some(event.start);
            }
        }
        let held_from = start - self.held.len() as u64;
        self.held.extend_from_slice(piece);
        if self.is_last_held {
            return Vec::new();
        }
        self.is_last_held = last.is_some();
        // Parts of an event are passed on, unless it may be the last one.
        let may_be_last = || {
            let (begin, pending) = self.sse.pending();
            self.last_mark.is_in(begin, pending).then_some(begin)
        };
        let Some(hold) = last.or_else(may_be_last) else { return std::mem::take(&mut self.held) };
        let now = usize::try_from(hold.saturating_sub(held_from)).unwrap_or(0);
        let rest = self.held.split_off(now.min(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }

    fn push_reduced(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut now = Vec::new();
        for event in self.sse.push(piece) {
            self.is_last_held |= self.read(&event);
            let to = if self.is_last_held { &mut self.held } else { &mut now };
            to.extend(reduced(self.added, event));
        }
        now
    }

    /// Reads an event; returns whether it is the last one.
    fn read(&mut self, event: &SseEvent) -> bool {
        event.data.as_ref().is_some_and(|data| self.parser.event(data))
    }

    /// Ends the reply.
    pub(crate) fn finish(mut self) -> EndedReply {
        let body = self.body.take().unwrap_or_default();
        match &self.form {
            ReplyForm::Events => {
                if let Some(rest) = std::mem::take(&mut self.sse).finish() {
                    self.read(&rest);
                    if !self.added.is_empty() {
                        self.held.extend(reduced(self.added, rest));
                    }
                }
            }
            ReplyForm::Pieces => {
                self.parser.whole(&body);
                if !self.added.is_empty() {
                    let text = std::str::from_utf8(&body).ok();
                    let text = text.and_then(|text| capture::reduce_reply(self.added, false, text));
                    self.held = text.map_or_else(|| body.clone(), String::into_bytes);
                }
            }
            ReplyForm::Error(redactor) => redactor.bytes(&body, 0, &mut self.held),
            ReplyForm::Opaque => {}
        }
        let is_whole = body.len() as u64 == self.bytes;
        EndedReply {
            held: self.held,
            parsed: self.parser.finish(),
            body: is_whole.then_some(body),
            bytes: self.bytes,
        }
    }
}

/// An event without what was asked for in addition.
fn reduced(added: Added, event: SseEvent) -> Vec<u8> {
    let Some(data) = &event.data else { return event.raw };
    let Some(less) = capture::reduce_reply(added, true, data) else { return Vec::new() };
    if less == *data {
        return event.raw;
    }
    let text = String::from_utf8_lossy(&event.raw);
    let others = text.lines().filter(|line| !line.is_empty() && !line.starts_with("data"));
    let mut event: String = others.flat_map(|line| [line, "\n"]).collect();
    for line in less.split('\n') {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event.into_bytes()
}

#[cfg(test)]
mod tests;
