//! Reader of the records of the calls of a try, one line after the other.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rollout_protocol::limits;
use rollout_protocol::record::{
    AtifMetrics, CallBegun, CallEnd, CallEnded, CallTokens, ModelCallLine, ModelEndpoint,
    TokenSection, TokenUsage,
};
use serde_json::{Map, json};

use super::content::{AgentItem, Item, ResultItem, items};
use super::conversations::{CallIndex, CallNode, OpenCall};
use super::request::ReadRequest;
use crate::proxy::dialect;
use crate::proxy::reply::{ParsedReply, ReplyParser};
use crate::proxy::sse::SseParser;
use crate::proxy::token_file::TOKENS_FILE;

/// Start of the line of a call that begins.
const BEGUN: &[u8] = br#"{"type":"begun""#;

/// Size of a line that is read, bytes. Bodies of the largest requests take more.
const LINE_BYTES: u64 = 96 * 1024 * 1024;

/// Size of a reply that is read, bytes.
const REPLY_BYTES: usize = 16 * 1024 * 1024;

/// The calls of a try.
#[derive(Debug, Default)]
pub(super) struct ReadCalls {
    /// Calls with a complete reply, in the order in which they ended.
    pub(super) nodes: Vec<CallNode>,
    /// Calls that sample from a model, and their tokens.
    pub(super) all_calls: u64,
    pub(super) all: TokenUsage,
    /// Those that are no nodes.
    pub(super) other_calls: u64,
    pub(super) others: TokenUsage,
    /// Of these, calls with a complete reply whose texts are too large or not recorded.
    pub(super) left_out: u64,
    /// Nodes without the token ids of their prompts, which are recorded.
    pub(super) ids_left_out: u64,
    /// The part of their cost that is known.
    pub(super) known_cost: Option<f64>,
    /// Calls with an answer whose cost is not known.
    pub(super) unpriced_calls: u64,
}

/// Reads the records.
pub(super) struct CallReader {
    directory: PathBuf,
    tokens: Option<File>,
    index: CallIndex,
    open: HashMap<u64, BegunState>,
    /// Lines that are too long and may be the ends of calls.
    ends_skipped: u64,
    /// Bytes of text that may still be kept.
    left: usize,
    /// Token ids of prompts that may still be kept.
    ids_left: usize,
    calls: ReadCalls,
}

/// A call that has begun.
enum BegunState {
    Read(Box<OpenCall>),
    /// Its request is not in the records, or too large.
    Unread,
}

impl CallReader {
    /// A reader of the records of a directory that keeps so many bytes of text.
    pub(super) fn new(directory: &Path, text_bytes: usize) -> Self {
        Self {
            directory: directory.to_owned(),
            tokens: None,
            index: CallIndex::default(),
            open: HashMap::new(),
            ends_skipped: 0,
            left: text_bytes,
            ids_left: limits::TRAJECTORY_PROMPT_IDS,
            calls: ReadCalls::default(),
        }
    }

    /// Reads all lines. A call without an end counts among those without a step.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn read(mut self, mut lines: impl BufRead) -> io::Result<ReadCalls> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if lines.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if line.last() != Some(&b'\n') {
                if (line.len() as u64) < LINE_BYTES {
                    // The end of a file that was cut off.
                    break;
                }
                skip_line(&mut lines)?;
                self.skip(&line);
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(ModelCallLine::Begun(begun)) => self.begin(&begun),
                Ok(ModelCallLine::Ended(ended)) => self.end(&ended)?,
                Err(_) => {}
            }
        }
        // Each of them may be the end of a call that has none.
        self.calls.unpriced_calls += self.ends_skipped.min(self.open.len() as u64);
        Ok(self.calls)
    }

    /// Counts a call with a line that is too long. Its cost is not read.
    fn skip(&mut self, line: &[u8]) {
        self.calls.left_out += 1;
        if line.starts_with(BEGUN) {
            self.calls.unpriced_calls += 1;
            self.calls.all_calls += 1;
            self.calls.other_calls += 1;
        } else {
            self.ends_skipped += 1;
        }
    }

    fn begin(&mut self, begun: &CallBegun) {
        if !dialect::samples(begun.endpoint) {
            return;
        }
        self.calls.all_calls += 1;
        self.calls.other_calls += 1;
        let text = begun.request.text.as_deref();
        let request = text.and_then(|text| ReadRequest::read(begun.endpoint, &begun.path, text));
        let opened = request.map(|request| self.index.open(begun, request));
        let state = match opened.filter(|open| open.bytes <= self.left) {
            Some(open) => {
                self.left -= open.bytes;
                BegunState::Read(Box::new(open))
            }
            None => BegunState::Unread,
        };
        self.open.insert(begun.call, state);
    }

    fn end(&mut self, ended: &CallEnded) -> io::Result<()> {
        let Some(state) = self.open.remove(&ended.call) else { return Ok(()) };
        let usage = ended.usage.unwrap_or_default();
        self.calls.all.add(usage);
        match ended.cost {
            Some(cost) => *self.calls.known_cost.get_or_insert_default() += cost,
            None => self.calls.unpriced_calls += u64::from(ended.status.is_some_and(is_success)),
        }
        let Some((open, reply)) = self.readable(state, ended) else {
            self.calls.others.add(usage);
            return Ok(());
        };
        self.calls.other_calls -= 1;
        self.index.add(&open, &reply.parsed, self.calls.nodes.len());
        let node = self.node(open, reply, ended)?;
        self.calls.nodes.push(node);
        Ok(())
    }

    /// A call with its reply, if it is complete and can be read; its bytes are then taken.
    fn readable(&mut self, state: BegunState, ended: &CallEnded) -> Option<(OpenCall, ReadReply)> {
        let is_answered = ended.end == CallEnd::Complete && ended.status.is_some_and(is_success);
        if let BegunState::Read(open) = &state {
            self.left += open.bytes;
        }
        if !is_answered {
            return None;
        }
        let text = ended.reply.text.as_deref().filter(|text| text.len() <= REPLY_BYTES);
        let (BegunState::Read(open), Some(text)) = (state, text) else {
            self.calls.left_out += 1;
            return None;
        };
        let reply = ReadReply::read(open.endpoint, text);
        if !reply.parsed.finished {
            return None;
        }
        let bytes = open.bytes + reply.bytes();
        if bytes > self.left {
            self.calls.left_out += 1;
            return None;
        }
        self.left -= bytes;
        Some((*open, reply))
    }

    fn node(
        &mut self,
        open: OpenCall,
        reply: ReadReply,
        ended: &CallEnded,
    ) -> io::Result<CallNode> {
        let mut metrics = ended.usage.map(AtifMetrics::of_usage);
        if let Some(tokens) = &ended.tokens {
            self.add_tokens(metrics.get_or_insert_default(), tokens)?;
        }
        if let Some(metrics) = &mut metrics {
            metrics.cost_usd = ended.cost;
        }
        let mut extra = Map::new();
        extra.insert("call".to_owned(), open.call.into());
        extra.insert("latency_sec".to_owned(), json!(ended.latency.total_sec));
        if !ended.finish_reasons.is_empty() {
            extra.insert("finish_reasons".to_owned(), json!(ended.finish_reasons));
        }
        if reply.parsed.finish_reasons.len() > 1 {
            extra.insert("choices".to_owned(), reply.parsed.finish_reasons.len().into());
        }
        if open.has_changed_history {
            extra.insert("changes_history".to_owned(), true.into());
        }
        if let Some(repeated) = open.repeats {
            extra.insert("repeats_call".to_owned(), repeated.into());
        }
        if let Some(policy) = ended.policy {
            extra.insert("policy".to_owned(), json!(policy));
        }
        Ok(CallNode {
            call: open.call,
            parent: open.parent,
            added: open.added,
            reply: reply.agent,
            results: reply.results,
            began_at: open.began_at,
            ended_at: ended.ended_at,
            model: ended.model.clone().or(open.model),
            effort: open.effort,
            tools: open.tools,
            metrics,
            extra,
        })
    }

    /// Adds the token ids and log probabilities of the first choice.
    fn add_tokens(&mut self, metrics: &mut AtifMetrics, tokens: &CallTokens) -> io::Result<()> {
        let mut tokens = tokens.clone();
        tokens.choices.truncate(1);
        let prompt = tokens.prompt_ids.as_ref().map(|ids| ids.len() as u64);
        let prompt = prompt.or(tokens.prompt_ids_at.map(|section| section.count));
        match usize::try_from(prompt.unwrap_or_default()) {
            Ok(count) if count <= self.ids_left => self.ids_left -= count,
            _ => {
                self.calls.ids_left_out += 1;
                (tokens.prompt_ids, tokens.prompt_ids_at) = (None, None);
            }
        }
        self.unpack(&mut tokens)?;
        metrics.prompt_token_ids = tokens.prompt_ids;
        if let Some(choice) = tokens.choices.into_iter().next() {
            metrics.completion_token_ids = choice.ids;
            // The format has no place for a token without one.
            let logprobs = choice.logprobs;
            metrics.logprobs = logprobs.and_then(|logprobs| logprobs.into_iter().collect());
        }
        Ok(())
    }

    /// Reads lists that are in the file of tokens.
    fn unpack(&mut self, tokens: &mut CallTokens) -> io::Result<()> {
        let prompt = tokens.prompt_ids_at.as_mut();
        let choices = tokens.choices.iter_mut();
        let choices = choices.flat_map(|choice| [&mut choice.ids_at, &mut choice.logprobs_at]);
        let sections: Vec<&mut TokenSection> =
            prompt.into_iter().chain(choices.filter_map(Option::as_mut)).collect();
        if sections.is_empty() {
            return Ok(());
        }
        let file = match &self.tokens {
            Some(file) => file,
            None => self.tokens.insert(File::open(self.directory.join(TOKENS_FILE))?),
        };
        // Items have four bytes, and a section begins where it says.
        let mut bytes = Vec::new();
        for section in sections {
            let length = usize::try_from(section.count.saturating_mul(4)).unwrap_or(usize::MAX);
            let begin = bytes.len();
            bytes.resize(begin.saturating_add(length), 0);
            file.read_exact_at(&mut bytes[begin..], section.offset)?;
            section.offset = begin as u64;
        }
        tokens.unpack(&bytes).map_err(io::Error::other)
    }
}

/// A reply as parts of a conversation.
struct ReadReply {
    parsed: ParsedReply,
    agent: AgentItem,
    results: Vec<ResultItem>,
}

impl ReadReply {
    /// Reads the text of a reply: a stream of events, or a whole one.
    fn read(endpoint: ModelEndpoint, text: &str) -> Self {
        let mut parser = ReplyParser::new(endpoint);
        if text.trim_start().starts_with(['{', '[']) {
            parser.whole(text.as_bytes());
        } else {
            let mut events = SseParser::default();
            let mut found = events.push(text.as_bytes());
            found.extend(events.finish());
            for data in found.iter().filter_map(|event| event.data.as_ref()) {
                let _is_last = parser.event(data);
            }
        }
        let parsed = parser.finish();
        let (mut agent, mut results) = (AgentItem::default(), Vec::new());
        for item in parsed.messages.iter().flat_map(|message| items(endpoint, message)) {
            match item {
                Item::Agent(part) => agent.add(part),
                Item::Result(result) => results.push(result),
                Item::System(_) | Item::User(_) => {}
            }
        }
        Self { parsed, agent, results }
    }

    fn bytes(&self) -> usize {
        let results = self.results.iter().map(|result| result.text.len()).sum::<usize>();
        self.agent.bytes() + results
    }
}

/// Reads to the end of a line that is too long.
fn skip_line(lines: &mut impl BufRead) -> io::Result<()> {
    loop {
        let (used, is_end) = match lines.fill_buf()? {
            [] => return Ok(()),
            bytes => match bytes.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (bytes.len(), false),
            },
        };
        lines.consume(used);
        if is_end {
            return Ok(());
        }
    }
}

const fn is_success(status: u16) -> bool {
    status < 400
}
