//! Conversations: model calls in the order in which each continues an earlier one.
//!
//! A call continues the call whose prompt and reply its prompt begins with exactly. Some clients
//! change earlier messages, such as the date in a system prompt: a call also continues the latest one
//! whose reply its prompt contains. Of each call only the messages are kept that are new in it.

use std::collections::HashMap;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::record::{AtifMetrics, CallBegun, ModelEndpoint};
use serde_json::{Map, Value};

use super::content::{AgentItem, Item, ResultItem, value_bytes};
use super::request::{ReadRequest, RequestMessage};
use crate::proxy::messages;
use crate::proxy::reply::ParsedReply;

/// Texts of completions that are kept to find those that continue them, bytes.
const COMPLETION_BYTES: usize = 32 * 1024 * 1024;

/// A call with a complete reply.
#[derive(Debug)]
pub(super) struct CallNode {
    pub(super) call: u64,
    /// Index of the call that it continues.
    pub(super) parent: Option<usize>,
    /// Content that its request adds to that call.
    pub(super) added: Vec<Item>,
    pub(super) reply: AgentItem,
    /// Results of tools that the server ran itself.
    pub(super) results: Vec<ResultItem>,
    pub(super) began_at: Timestamp,
    pub(super) ended_at: Timestamp,
    pub(super) model: Option<String>,
    pub(super) effort: Option<String>,
    pub(super) tools: Vec<Value>,
    pub(super) metrics: Option<AtifMetrics>,
    pub(super) extra: Map<String, Value>,
}

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct OpenCall {
    pub(super) call: u64,
    pub(super) endpoint: ModelEndpoint,
    pub(super) began_at: Timestamp,
    pub(super) repeats: Option<u64>,
    pub(super) model: Option<String>,
    pub(super) effort: Option<String>,
    pub(super) tools: Vec<Value>,
    pub(super) parent: Option<usize>,
    pub(super) has_changed_history: bool,
    pub(super) added: Vec<Item>,
    /// Digest of all its messages.
    history: Digest,
    /// The prompt of a completion.
    prompt: Option<String>,
    /// Bytes of what is kept of it.
    pub(super) bytes: usize,
}

/// The calls that others may continue.
#[derive(Debug, Default)]
pub(super) struct CallIndex {
    /// Calls by all messages of their prompt and reply.
    by_history: HashMap<Digest, usize>,
    /// Calls by the last message of their reply.
    by_reply: HashMap<Digest, usize>,
    /// Completions: prompt and reply as one text.
    completions: Vec<(String, usize)>,
    completion_bytes: usize,
}

impl CallIndex {
    /// Places a call that begins among those that ended before it.
    pub(super) fn open(&self, begun: &CallBegun, mut request: ReadRequest) -> OpenCall {
        let endpoint = begun.endpoint;
        let prompt = self.take_prompt(endpoint, &mut request);
        let mut history = messages::no_history(endpoint);
        let mut histories = Vec::with_capacity(request.messages.len());
        for message in &request.messages {
            history = extend(history, message.digest);
            histories.push(history);
        }
        let (parent, has_changed_history) = self.parent(endpoint, &request.messages, &histories);
        let begin = parent.map_or(0, |(_, position)| position + 1);
        let parent = parent.map(|(index, _)| index).or(prompt.as_ref().and_then(|prompt| prompt.1));
        let added: Vec<Item> =
            request.messages.into_iter().skip(begin).flat_map(|message| message.items).collect();
        // Those of a conversation are the same in each of its calls.
        let tools = if parent.is_none() { request.tools } else { Vec::new() };
        let bytes = added.iter().map(Item::bytes).sum::<usize>()
            + tools.iter().map(value_bytes).sum::<usize>();
        OpenCall {
            call: begun.call,
            endpoint,
            began_at: begun.began_at,
            repeats: begun.repeats,
            model: request.model,
            effort: request.effort,
            tools,
            parent,
            has_changed_history,
            added,
            history,
            prompt: prompt.map(|(text, _)| text),
            bytes,
        }
    }

    /// Takes what a completion continues out of its prompt; returns the whole prompt, and the call
    /// that it continues.
    fn take_prompt(
        &self,
        endpoint: ModelEndpoint,
        request: &mut ReadRequest,
    ) -> Option<(String, Option<usize>)> {
        if endpoint != ModelEndpoint::Completions {
            return None;
        }
        let item = request.messages.first_mut()?.items.first_mut()?;
        let Item::User(prompt) = item else { return None };
        let before = self.completions.iter().rev().filter(|(text, _)| prompt.starts_with(text));
        let before = before.max_by_key(|(text, _)| text.len());
        let whole = prompt.clone();
        if let Some((text, _)) = before {
            prompt.drain(..text.len());
        }
        Some((whole, before.map(|(_, index)| *index)))
    }

    /// The call that a prompt continues, with the position of the last message of its reply, and
    /// whether the prompt has changed what came before.
    fn parent(
        &self,
        endpoint: ModelEndpoint,
        messages: &[RequestMessage],
        histories: &[Digest],
    ) -> (Option<(usize, usize)>, bool) {
        for (position, history) in histories.iter().enumerate().rev() {
            // A message without a digest has the history of the one before.
            let is_last = messages[position].digest.is_some();
            if let Some(found) = self.by_history.get(history).filter(|_| is_last) {
                return (Some((*found, position)), false);
            }
        }
        for (position, message) in messages.iter().enumerate().rev() {
            let first = messages::no_history(endpoint);
            let key = message.digest.map(|digest| messages::longer_history(first, digest));
            if let Some(found) = key.and_then(|key| self.by_reply.get(&key)) {
                return (Some((*found, position)), true);
            }
        }
        (None, false)
    }

    /// Adds a call that ended, at an index.
    pub(super) fn add(&mut self, open: &OpenCall, reply: &ParsedReply, index: usize) {
        if let (Some(prompt), [message]) = (&open.prompt, &reply.messages[..]) {
            let text = format!("{prompt}{}", message["content"].as_str().unwrap_or_default());
            self.completion_bytes += text.len();
            if self.completion_bytes <= COMPLETION_BYTES {
                self.completions.push((text, index));
            }
            return;
        }
        let digests = messages::of_reply(open.endpoint, &reply.messages);
        let Some(last) = digests.last().copied() else { return };
        let history =
            digests.iter().fold(open.history, |history, digest| extend(history, Some(*digest)));
        self.by_history.insert(history, index);
        if !messages::is_empty_reply(&reply.messages) {
            let first = messages::no_history(open.endpoint);
            self.by_reply.insert(messages::longer_history(first, last), index);
        }
    }
}

fn extend(history: Digest, message: Option<Digest>) -> Digest {
    message.map_or(history, |message| messages::longer_history(history, message))
}

/// Calls in the order of a conversation.
pub(super) type Branch = Vec<usize>;

/// The conversations, each call in one of them: first the one with the most calls, then what others
/// have besides it. `parents` are the calls that calls continue.
pub(super) fn branches(nodes: &[CallNode]) -> Vec<Branch> {
    let parents: Vec<_> = nodes.iter().map(|node| node.parent).collect();
    let mut paths = crate::proxy::trajectory::paths(&parents);
    let rank = |path: &Branch| {
        let root = path.first().map(|index| &nodes[*index]);
        let has_tools = root.is_some_and(|root| !root.tools.is_empty());
        let bytes = root.map_or(0, |root| root.added.iter().map(Item::bytes).sum::<usize>());
        (path.len(), has_tools, bytes)
    };
    // The first of equal ones.
    let main = (0..paths.len()).rev().max_by_key(|index| rank(&paths[*index]));
    if let Some(main) = main {
        let main = paths.remove(main);
        paths.insert(0, main);
    }
    let mut taken = vec![false; nodes.len()];
    for path in &mut paths {
        path.retain(|index| !std::mem::replace(&mut taken[*index], true));
    }
    paths
}
