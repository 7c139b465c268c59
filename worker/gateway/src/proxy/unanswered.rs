//! Conversations whose last request no model server answered, from the records of the calls alone.
//!
//! * A request continues the conversation of the reply that its messages begin with, or else of the
//!   latest reply that they contain, as in trajectories; or that of the unanswered request that they
//!   begin with. Any other request begins a conversation.
//! * The last request of a conversation and its repetitions count together: one answer is enough. A
//!   later request of the conversation takes their place.
//! * The server is the cause if it cannot be reached, fails, asks to call later, or breaks its reply
//!   off. A refusal of the request, or an agent that closes its connection, is none.
//! * A request that no server got leaves its conversation as it was: its budget does not cover it, or it
//!   still waited when its agent gave up or the limits that other calls of its execution use refused it.
//!   If a server failed it before that wait, or it waits because its server does not answer or asked to
//!   wait, or calls are paused, it is unanswered.

use std::collections::HashMap;

use rollout_protocol::digest::Digest;
use rollout_protocol::record::ModelEndpoint;
use serde_json::Value;

use crate::CallFailure;
use crate::proxy::messages;

/// Replies by which conversations are found: more than any agent has calls. Later replies are not
/// kept, which bounds the memory of an agent that calls without end.
const REPLIES: usize = 64 * 1024;

/// Conversations with an open or unanswered request. Later ones are not kept: with so many, the
/// verdict does not depend on another one.
const CONVERSATIONS: usize = 64 * 1024;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    /// A model answered it.
    Answered,
    /// It was refused for a cause of its own.
    Rejected,
    /// The budget does not cover it: no server got it.
    OverBudget,
    /// No server got it for another cause of the agent: it gave up while the request waited, or its other
    /// calls used the limits of the server.
    NotSent,
    /// The server refused the key or the model of the job.
    Refused,
    /// It has no answer for a cause of the server, of a pause, or of the gateway itself.
    Unanswered,
    /// The agent closed the connection while a server worked on it.
    AgentGone,
}

impl RequestEnd {
    /// The end that a status of a complete reply stands for. A request that the server calls wrong is
    /// the agent's.
    pub(crate) const fn of_status(status: u16) -> Self {
        match status {
            ..=399 => Self::Answered,
            401..=404 => Self::Refused,
            408 | 429 | 500.. => Self::Unanswered,
            _ => Self::Rejected,
        }
    }

    /// The end of a request whose agent has gone after the status of the reply. Agents do not read what
    /// a server says about its failure.
    pub(crate) const fn of_gone_agent(status: u16) -> Self {
        match Self::of_status(status) {
            Self::Answered => Self::AgentGone,
            told => told,
        }
    }

    /// The end of a request that has no answer because of its agent. `is_at_server`: a server works on it;
    /// `is_failed`: it waits because a server failed it, or because its server does not answer or asked to
    /// wait, or for the end of a pause. Nothing that an agent does to a request is an outage by itself, and
    /// nothing of it ends one.
    pub(crate) const fn of_given_up(is_at_server: bool, is_failed: bool) -> Self {
        match (is_at_server, is_failed) {
            (true, _) => Self::AgentGone,
            (false, true) => Self::Unanswered,
            (false, false) => Self::NotSent,
        }
    }

    /// Whether a server got it.
    const fn is_sent(self) -> bool {
        !matches!(self, Self::OverBudget | Self::NotSent)
    }
}

/// The place of a request among the conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestPlace {
    conversation: u64,
    /// Digest of all its messages, or of its body.
    request: Digest,
    endpoint: ModelEndpoint,
}

/// The messages of a reply.
#[derive(Debug, Default)]
pub(crate) struct ReplyDigests {
    digests: Vec<Digest>,
    /// Whether they say nothing, as many replies do.
    is_empty: bool,
}

impl ReplyDigests {
    /// Those of a reply.
    pub(crate) fn new(endpoint: ModelEndpoint, reply: &[Value]) -> Self {
        let digests = messages::of_reply(endpoint, reply);
        Self { digests, is_empty: messages::is_empty_reply(reply) }
    }
}

/// A request of a conversation whose calls are open or unanswered.
#[derive(Debug)]
struct PendingRequest {
    request: Digest,
    /// Its calls that have not ended.
    open: u64,
    is_answered: bool,
    /// Whether a call of it has no answer.
    is_unanswered: bool,
}

impl PendingRequest {
    /// A request with one open call.
    const fn new(request: Digest) -> Self {
        Self { request, open: 1, is_answered: false, is_unanswered: false }
    }

    /// Whether the server was asked, and is the cause that there is no answer.
    const fn lacks_answer(&self) -> bool {
        self.is_unanswered && !self.is_answered
    }
}

/// The conversations of a try. They grow with its calls, within limits.
#[derive(Debug, Default)]
pub(crate) struct Conversations {
    begun: u64,
    /// Conversations by all messages of a prompt and its reply.
    by_history: HashMap<Digest, u64>,
    /// Conversations by the last message of a reply.
    by_reply: HashMap<Digest, u64>,
    /// Conversations by their pending requests.
    by_request: HashMap<Digest, u64>,
    /// These requests: the last one that a server got, and later ones that may still reach none. There are
    /// no more than open calls, and one.
    pending: HashMap<u64, Vec<PendingRequest>>,
    /// Whether a model answered a request.
    has_answers: bool,
    /// Whether the request that ended last at a server was refused before any was answered.
    is_refused: bool,
}

impl Conversations {
    /// Places a request that begins: by its messages, or by its body if they are not known.
    pub(crate) fn begin(
        &mut self,
        endpoint: ModelEndpoint,
        messages: Option<&[Digest]>,
        body: Digest,
    ) -> RequestPlace {
        let messages = messages.unwrap_or_default();
        let (request, found) = match messages {
            [] => {
                let request = messages::longer_history(messages::no_history(endpoint), body);
                (request, self.by_request.get(&request).copied())
            }
            messages => self.find(endpoint, messages),
        };
        let conversation = found.unwrap_or_else(|| {
            self.begun += 1;
            self.begun
        });
        self.open(conversation, request);
        RequestPlace { conversation, request, endpoint }
    }

    /// The digest of all messages, and the conversation that they continue.
    fn find(&self, endpoint: ModelEndpoint, messages: &[Digest]) -> (Digest, Option<u64>) {
        let first = messages::no_history(endpoint);
        let (mut history, mut found) = (first, None);
        for message in messages {
            history = messages::longer_history(history, *message);
            let known = self.by_history.get(&history).or_else(|| self.by_request.get(&history));
            found = known.copied().or(found);
        }
        let contained = || {
            let mut keys = messages.iter().rev().map(|one| messages::longer_history(first, *one));
            keys.find_map(|key| self.by_reply.get(&key).copied())
        };
        (history, found.or_else(contained))
    }

    /// Opens a call of a request of a conversation.
    fn open(&mut self, conversation: u64, request: Digest) {
        if self.pending.len() >= CONVERSATIONS && !self.pending.contains_key(&conversation) {
            return;
        }
        let requests = self.pending.entry(conversation).or_default();
        let known = requests.iter_mut().find(|known| known.request == request);
        match known {
            Some(known) => known.open += 1,
            None => requests.push(PendingRequest::new(request)),
        }
        self.by_request.insert(request, conversation);
    }

    /// Notes the end of a call, with its reply.
    pub(crate) fn end(&mut self, place: RequestPlace, end: RequestEnd, reply: ReplyDigests) {
        if end == RequestEnd::Answered {
            self.has_answers = true;
            self.add_reply(place, reply);
        }
        let is_sent = end.is_sent();
        if is_sent {
            self.is_refused = end == RequestEnd::Refused && !self.has_answers;
        }
        let Some(requests) = self.pending.get_mut(&place.conversation) else { return };
        let Some(at) = requests.iter().position(|one| one.request == place.request) else { return };
        let request = &mut requests[at];
        request.open = request.open.saturating_sub(1);
        match end {
            RequestEnd::Answered | RequestEnd::Rejected | RequestEnd::Refused => {
                request.is_answered = true;
            }
            RequestEnd::Unanswered => request.is_unanswered = true,
            RequestEnd::AgentGone | RequestEnd::OverBudget | RequestEnd::NotSent => {}
        }
        let is_over = request.open == 0 && !request.lacks_answer();
        // One that was sent takes the place of those before it.
        let first = if is_sent { 0 } else { at };
        for over in requests.drain(first..at + usize::from(is_over)) {
            self.by_request.remove(&over.request);
        }
        if requests.is_empty() {
            self.pending.remove(&place.conversation);
        }
    }

    /// Lets later requests continue a reply.
    fn add_reply(&mut self, place: RequestPlace, reply: ReplyDigests) {
        let Some(last) = reply.digests.last().copied() else { return };
        if self.by_history.len() >= REPLIES {
            return;
        }
        let history = reply.digests.into_iter().fold(place.request, messages::longer_history);
        self.by_history.insert(history, place.conversation);
        if !reply.is_empty {
            let first = messages::no_history(place.endpoint);
            self.by_reply.insert(messages::longer_history(first, last), place.conversation);
        }
    }

    /// Why the calls say nothing about the agent, if they do not.
    pub(crate) fn failure(&self) -> Option<CallFailure> {
        let mut last = self.pending.values().filter_map(|requests| requests.last());
        if last.any(PendingRequest::lacks_answer) {
            return Some(CallFailure::Unanswered);
        }
        self.is_refused.then_some(CallFailure::Refused)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::RequestEnd::{
        AgentGone, Answered, NotSent, OverBudget, Refused, Rejected, Unanswered,
    };
    use super::*;

    const CHAT: ModelEndpoint = ModelEndpoint::ChatCompletions;

    /// Conversations whose calls follow each other.
    #[derive(Default)]
    struct Script(Conversations);

    fn message(role: &str, text: &str) -> Value {
        json!({"role": role, "content": text})
    }

    impl Script {
        fn begin(&mut self, prompt: &[&str]) -> RequestPlace {
            let roles = ["user", "assistant"].into_iter().cycle();
            let messages: Vec<Value> =
                prompt.iter().zip(roles).map(|(text, role)| message(role, text)).collect();
            let digests = messages::of_reply(CHAT, &messages);
            let body = Digest::sha256(format!("{prompt:?}").as_bytes());
            self.0.begin(CHAT, Some(&digests), body)
        }

        fn end(&mut self, place: RequestPlace, end: RequestEnd, reply: &str) {
            self.0.end(place, end, ReplyDigests::new(CHAT, &[message("assistant", reply)]));
        }

        /// A call; an answered one has the reply `reply`.
        fn call(&mut self, prompt: &[&str], end: RequestEnd, reply: &str) -> Option<CallFailure> {
            let place = self.begin(prompt);
            self.end(place, end, reply);
            self.0.failure()
        }
    }

    const NONE: Option<CallFailure> = None;
    const UNANSWERED: Option<CallFailure> = Some(CallFailure::Unanswered);

    #[test]
    fn last_request_unanswered_stays_whatever_other_conversations_get() {
        let mut calls = Script::default();
        assert_eq!(calls.call(&["task"], Answered, "one"), NONE);
        assert_eq!(calls.call(&["task", "one", "go on"], Unanswered, ""), UNANSWERED);
        assert_eq!(calls.call(&["title of the task"], Answered, "a title"), UNANSWERED);
        assert_eq!(calls.call(&["title of the task", "a title", "x"], Rejected, ""), UNANSWERED);
        assert_eq!(calls.call(&["another"], AgentGone, ""), UNANSWERED);
        assert_eq!(calls.call(&["task", "one", "go on"], AgentGone, ""), UNANSWERED);
        assert_eq!(calls.call(&["task", "one", "go on"], Answered, "two"), NONE);
    }

    #[test]
    fn repetition_or_later_request_of_conversation_takes_the_place_of_unanswered_one() {
        for prompt in [
            &["task", "one", "go on"][..],
            &["task", "one", "go on", "", "are you there"],
            &["task", "one", "with another text"],
            // The client changes what came before.
            &["task of today", "one", "go on"],
        ] {
            let mut calls = Script::default();
            assert_eq!(calls.call(&["task"], Answered, "one"), NONE);
            assert_eq!(calls.call(&["task", "one", "go on"], Unanswered, ""), UNANSWERED);
            assert_eq!(calls.call(prompt, Unanswered, ""), UNANSWERED);
            assert_eq!(calls.call(prompt, Answered, "two"), NONE, "{prompt:?}");
        }
        let mut calls = Script::default();
        assert_eq!(calls.call(&["task"], Unanswered, ""), UNANSWERED);
        assert_eq!(calls.call(&["task"], Rejected, ""), NONE, "the server answered");
        assert_eq!(calls.call(&["task"], Unanswered, ""), UNANSWERED, "a request of its own");
    }

    #[test]
    fn agent_that_closes_connection_and_refused_request_are_no_cause_of_server() {
        for end in [AgentGone, Rejected, Answered] {
            let mut calls = Script::default();
            assert_eq!(calls.call(&["task"], Answered, "one"), NONE);
            assert_eq!(calls.call(&["task", "one", "go on"], end, ""), NONE, "{end:?}");
            // Later than what had no answer before.
            assert_eq!(calls.call(&["other"], Unanswered, ""), UNANSWERED);
            assert_eq!(calls.call(&["other", "", "again"], end, ""), NONE, "{end:?}");
        }
    }

    #[test]
    fn request_that_no_server_got_leaves_conversation_as_the_server_left_it() {
        let repeated = &["task", "one", "go on"][..];
        let later = &["task", "one", "go on", "", "are you there"][..];
        for end in [OverBudget, NotSent] {
            for unsent in [repeated, later, &["another"]] {
                let mut calls = Script::default();
                let case = format!("{end:?} {unsent:?}");
                assert_eq!(calls.call(&["task"], Answered, "one"), NONE);
                assert_eq!(calls.call(unsent, end, ""), NONE, "{case}: the agent's");
                assert_eq!(calls.call(repeated, Unanswered, ""), UNANSWERED);
                assert_eq!(calls.call(unsent, end, ""), UNANSWERED, "{case}");
                assert_eq!(calls.call(unsent, end, ""), UNANSWERED, "{case}");
                assert_eq!(calls.call(repeated, Answered, "two"), NONE, "{case}");
                assert_eq!(calls.call(unsent, end, ""), NONE, "{case}: the agent's");
                assert!(calls.0.pending.is_empty() && calls.0.by_request.is_empty());
            }
        }
    }

    #[test]
    fn concurrent_requests_that_no_server_got_leave_conversation_as_the_server_left_it() {
        for unsent in [OverBudget, NotSent] {
            for (end, expected) in [(Unanswered, UNANSWERED), (Answered, NONE), (AgentGone, NONE)] {
                let mut calls = Script::default();
                assert_eq!(calls.call(&["task"], Unanswered, ""), UNANSWERED);
                let running = calls.begin(&["task", "", "go on"]);
                let later = calls.begin(&["task", "", "go on", "", "are you there"]);
                let latest = calls.begin(&["task", "", "something else"]);
                calls.end(latest, unsent, "");
                calls.end(running, end, "reply");
                calls.end(later, unsent, "");
                assert_eq!(calls.0.failure(), expected, "{unsent:?} {end:?}");
            }
        }
    }

    #[test]
    fn request_given_up_by_agent_keeps_outage_before_it_and_is_none_itself() {
        let first = &["task"][..];
        for (is_at_server, is_failed, repeated, alone, later) in [
            // It waits for its budget, for a limit or for its turn.
            (false, false, UNANSWERED, NONE, UNANSWERED),
            // It waits for the next attempt, or for a server that is down.
            (false, true, UNANSWERED, UNANSWERED, UNANSWERED),
            // The server works on it. A later request takes the place of the one before.
            (true, false, UNANSWERED, NONE, NONE),
            (true, true, UNANSWERED, NONE, NONE),
        ] {
            let end = RequestEnd::of_given_up(is_at_server, is_failed);
            let mut calls = Script::default();
            assert_eq!(calls.call(first, end, ""), alone, "{end:?}: no fault before");
            let mut calls = Script::default();
            assert_eq!(calls.call(first, Unanswered, ""), UNANSWERED);
            assert_eq!(calls.call(first, end, ""), repeated, "{end:?}: repeated");
            assert_eq!(calls.call(&["task", "", "again"], end, ""), later, "{end:?}: later");
        }
    }

    #[test]
    fn answer_to_one_of_concurrent_repetitions_is_enough() {
        for answered_first in [true, false] {
            let mut calls = Script::default();
            let (one, two) = (calls.begin(&["task"]), calls.begin(&["task"]));
            let ends = if answered_first { [Answered, Unanswered] } else { [Unanswered, Answered] };
            calls.end(one, ends[0], "reply");
            calls.end(two, ends[1], "reply");
            assert_eq!(calls.0.failure(), NONE);
        }
        let mut calls = Script::default();
        let (first, later) = (calls.begin(&["one"]), calls.begin(&["two"]));
        calls.end(later, Answered, "reply");
        calls.end(first, Unanswered, "");
        assert_eq!(calls.0.failure(), UNANSWERED, "they are two conversations");
    }

    #[test]
    fn refusal_before_any_answer_is_one_of_key_or_model() {
        let mut calls = Script::default();
        assert_eq!(calls.call(&["task"], Refused, ""), Some(CallFailure::Refused));
        assert_eq!(calls.call(&["task"], OverBudget, ""), Some(CallFailure::Refused));
        assert_eq!(calls.call(&["task"], NotSent, ""), Some(CallFailure::Refused));
        assert_eq!(calls.call(&["task"], Rejected, ""), NONE);
        assert_eq!(calls.call(&["task"], Answered, "one"), NONE);
        assert_eq!(calls.call(&["other"], Refused, ""), NONE);
    }

    #[test]
    fn status_of_reply_says_whose_failure_it_is() {
        let of = |statuses: &[u16]| -> Vec<RequestEnd> {
            statuses.iter().map(|status| RequestEnd::of_status(*status)).collect()
        };
        assert_eq!(of(&[200, 304]), [Answered; 2]);
        assert_eq!(of(&[400, 405, 413, 422]), [Rejected; 4]);
        assert_eq!(of(&[401, 403, 404]), [Refused; 3]);
        assert_eq!(of(&[408, 429, 500, 503, 529]), [Unanswered; 5]);
        let gone = [200, 400, 401, 503].map(RequestEnd::of_gone_agent);
        assert_eq!(gone, [AgentGone, Rejected, Refused, Unanswered]);
    }

    #[test]
    fn conversations_of_agent_that_calls_without_end_are_bounded() {
        let mut conversations = Conversations::default();
        for number in 0..CONVERSATIONS as u64 + 10 {
            let body = Digest::sha256(&number.to_be_bytes());
            let place = conversations.begin(CHAT, None, body);
            conversations.end(place, Unanswered, ReplyDigests::default());
        }
        assert_eq!(conversations.failure(), UNANSWERED);
        let kept = (conversations.pending.len(), conversations.by_request.len());
        assert_eq!(kept, (CONVERSATIONS, CONVERSATIONS));
    }
}
