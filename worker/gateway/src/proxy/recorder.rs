//! Records of the calls of a try: lines on disk, and the figures and trajectories made from them.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use data_encoding::BASE64;
use rollout_base::secrets::Redactor;
use rollout_base::supervise;
use rollout_protocol::digest::Digest;
use rollout_protocol::limits;
use rollout_protocol::record::{
    CallBegun, CallBody, CallEnd, CallEnded, CallPolicy, CallTokens, GatewaySummary, ModelCallLine,
    ModelEndpoint, TokenUsage, TrajectoryRecord,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::call_log::CallLog;
use super::token_file::TokenFile;
use super::trajectory::{self, CallItems};
use super::unanswered::{Conversations, ReplyDigests, RequestEnd, RequestPlace};
use crate::CallFailure;
use crate::proxy::reply::ParsedReply;
use crate::proxy::{dialect, messages};

/// Name of the file of trajectories.
const TRAJECTORIES_FILE: &str = "trajectories.jsonl";

/// Size of a request that is read for the merge of calls: a million token ids, bytes. A call with a
/// longer one is in no trajectory.
const MERGED_REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// Headers of agents that are recorded: they tell sessions and repetitions apart.
const RECORDED_HEADERS: [&str; 10] = [
    "session-id",
    "thread-id",
    "user-agent",
    "x-claude-code-session-id",
    "x-client-request-id",
    "x-codex-window-id",
    "x-initiator",
    "x-session-affinity",
    "x-session-id",
    "x-stainless-retry-count",
];

/// The recorder of a try.
#[derive(Debug)]
pub(crate) struct Recorder {
    log: CallLog,
    tokens: Arc<TokenFile>,
    redactor: Redactor,
    state: Mutex<RecorderState>,
    /// Requests that may be read at once: one, which bounds the memory for it.
    reading: Semaphore,
}

#[derive(Debug, Default)]
struct RecorderState {
    calls: u64,
    /// Calls without a complete reply, by the digest of their request.
    incomplete: HashMap<Digest, u64>,
    conversations: Conversations,
    summary: GatewaySummary,
    tokens: Vec<TokenCall>,
    messages: Vec<CallItems<Digest>>,
    /// Policy versions of these calls.
    policies: BTreeMap<u64, CallPolicy>,
    /// Items that `tokens` and `messages` hold, and those of the requests of calls that run.
    items: usize,
}

/// A call with token ids.
#[derive(Debug)]
struct TokenCall {
    items: CallItems<u32>,
    /// Log probabilities of its reply.
    logprobs: Option<Vec<Option<f64>>>,
}

/// A call that begins.
#[derive(Debug)]
pub(crate) struct NewCall<'a> {
    pub(crate) upstream: &'a str,
    pub(crate) endpoint: ModelEndpoint,
    pub(crate) path: &'a str,
    pub(crate) headers: BTreeMap<String, String>,
    /// The request as it is sent.
    pub(crate) request: Bytes,
    pub(crate) added: Vec<String>,
    /// Whether the server is to give token ids.
    pub(crate) wants_ids: bool,
}

/// A call that was begun.
#[derive(Debug)]
pub(crate) struct BegunCall {
    /// Its number.
    pub(crate) number: u64,
    /// End of its line in the file.
    line_end: u64,
    endpoint: ModelEndpoint,
    digest: Digest,
    /// Whether the server is to give token ids, and those of the prompt, too.
    wanted_ids: Option<WantedIds>,
    items: RequestItems,
    /// Its place among the conversations, if it samples from a model.
    place: Option<RequestPlace>,
}

/// The token ids that a reply must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WantedIds {
    /// Those of the reply: the request has those of the prompt.
    Reply,
    PromptAndReply,
}

impl BegunCall {
    /// Whether a complete reply lacks token ids that the server is asked for.
    pub(crate) fn lacks_ids(&self, end: CallEnd, status: Option<u16>, reply: &ParsedReply) -> bool {
        let is_answered = end == CallEnd::Complete && status.is_some_and(|status| status < 400);
        let Some(wanted) = self.wanted_ids.filter(|_| is_answered) else { return false };
        let Some(tokens) = &reply.tokens else { return true };
        let has_prompt = wanted == WantedIds::Reply || tokens.prompt_ids.is_some();
        !has_prompt || tokens.choices.iter().all(|choice| choice.ids.is_none())
    }
}

/// Content of a request that the merge of calls needs.
#[derive(Debug, Default)]
struct RequestItems {
    /// Token ids of the prompt, if the request holds them.
    prompt_ids: Option<Vec<u32>>,
    messages: Option<Vec<Digest>>,
}

impl RequestItems {
    fn read(endpoint: ModelEndpoint, request: &[u8]) -> Self {
        Self {
            prompt_ids: prompt_ids(endpoint, request),
            messages: messages::of_request(endpoint, request),
        }
    }

    fn count(&self) -> usize {
        let ids = self.prompt_ids.as_ref().map_or(0, Vec::len);
        ids + self.messages.as_ref().map_or(0, Vec::len)
    }
}

/// Whether a header of a request is recorded.
pub(crate) fn is_recorded(header: &str) -> bool {
    RECORDED_HEADERS.binary_search(&header).is_ok()
}

impl Recorder {
    /// A recorder whose files are in `directory`.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn create(directory: &Path, redactor: Redactor) -> io::Result<Self> {
        let log = CallLog::create(directory).await?;
        let tokens = Arc::new(TokenFile::new(directory));
        Ok(Self { log, tokens, redactor, state: Mutex::default(), reading: Semaphore::new(1) })
    }

    /// Writes that a call begins. It survives the end of this process; [`Self::sync`] makes it
    /// survive that of the host.
    ///
    /// # Errors
    /// The system's error: the call must not be sent then.
    pub(crate) async fn begin(&self, call: NewCall<'_>) -> io::Result<BegunCall> {
        let digest = Digest::sha256(&call.request);
        let (number, repeats) = {
            let mut state = self.state();
            state.calls += 1;
            (state.calls, state.incomplete.get(&digest).copied())
        };
        let headers = call.headers.into_iter().map(|(name, value)| (name, self.masked(&value)));
        let begun = CallBegun {
            call: number,
            began_at: rollout_protocol::Timestamp::now(),
            upstream: call.upstream.to_owned(),
            endpoint: call.endpoint,
            path: self.masked(call.path),
            headers: headers.collect(),
            request: self.body(&call.request, digest),
            added: call.added,
            repeats,
        };
        let items = self.read(call.endpoint, call.request).await;
        let wanted_ids =
            (call.wants_ids && dialect::samples(call.endpoint)).then_some(match items.prompt_ids {
                Some(_) => WantedIds::Reply,
                None => WantedIds::PromptAndReply,
            });
        let (items, place) = self.state().place(call.endpoint, digest, items);
        let appended = self.log.append(&ModelCallLine::Begun(Box::new(begun))).await;
        let end = match appended {
            Ok(end) => end,
            Err(error) => {
                self.abandon(&items, place);
                return Err(error);
            }
        };
        self.state().incomplete.insert(digest, number);
        let endpoint = call.endpoint;
        Ok(BegunCall { number, line_end: end, endpoint, digest, wanted_ids, items, place })
    }

    /// Reads a request for the merge of calls, unless it is too long.
    async fn read(&self, endpoint: ModelEndpoint, request: Bytes) -> RequestItems {
        if !dialect::samples(endpoint) || request.len() > MERGED_REQUEST_BYTES {
            return RequestItems::default();
        }
        let one = self.reading.acquire().await.expect("the semaphore is never closed");
        let items = supervise::blocking(move || RequestItems::read(endpoint, &request)).await;
        drop(one);
        items
    }

    /// Ends a call that cannot be recorded: it has no answer.
    pub(crate) fn give_up(&self, call: &BegunCall) {
        self.abandon(&call.items, call.place);
    }

    fn abandon(&self, items: &RequestItems, place: Option<RequestPlace>) {
        let mut state = self.state();
        state.items -= items.count();
        if let Some(place) = place {
            state.conversations.end(place, RequestEnd::Unanswered, ReplyDigests::default());
        }
    }

    /// Why the calls say nothing about the agent, if they do not.
    pub(crate) fn call_failure(&self) -> Option<CallFailure> {
        self.state().conversations.failure()
    }

    /// Syncs that a call begins.
    ///
    /// # Errors
    /// The system's error: the agent must not get a reply then.
    pub(crate) async fn sync(&self, call: &BegunCall) -> io::Result<()> {
        self.log.sync_to(call.line_end).await
    }

    /// Writes and syncs the end of a call, whose request ended as `request` says; its reply is in
    /// `body`, if that is not too large.
    ///
    /// # Errors
    /// The system's error: the agent must not get the end of the reply then.
    pub(crate) async fn end(
        &self,
        call: BegunCall,
        request: RequestEnd,
        ended: CallEnded,
        body: (u64, Option<&[u8]>),
        reply: ParsedReply,
    ) -> io::Result<()> {
        self.state().items -= call.items.count();
        let place = call.place;
        let replied = match request {
            RequestEnd::Answered => ReplyDigests::new(call.endpoint, &reply.messages),
            _ => ReplyDigests::default(),
        };
        let written = self.write_end(call, ended, body, reply).await;
        if let Some(place) = place {
            let is_awaited = !matches!(request, RequestEnd::AgentGone | RequestEnd::NotSent);
            let is_lost = written.is_err() && is_awaited;
            let request = if is_lost { RequestEnd::Unanswered } else { request };
            self.state().conversations.end(place, request, replied);
        }
        written
    }

    async fn write_end(
        &self,
        call: BegunCall,
        mut ended: CallEnded,
        (bytes, body): (u64, Option<&[u8]>),
        reply: ParsedReply,
    ) -> io::Result<()> {
        ended.reply = match body {
            Some(body) => self.body(body, Digest::sha256(body)),
            None => CallBody { bytes, ..CallBody::default() },
        };
        ended.error = ended.error.map(|error| self.masked(&error));
        ended.model = reply.model.as_deref().map(|model| self.masked(model));
        ended.finish_reasons = reply.finish_reasons.iter().map(|why| self.masked(why)).collect();
        ended.usage = reply.usage;
        ended.tokens = self.recorded_tokens(reply.tokens.as_ref()).await?;
        let (end, status, policy) = (ended.end, ended.status, ended.policy);
        let cost = ended.cost;
        let lacks_ids = call.lacks_ids(end, status, &reply);
        let line_end = self.log.append(&ModelCallLine::Ended(Box::new(ended))).await?;
        self.log.sync_to(line_end).await?;
        let mut state = self.state();
        let is_sample = dialect::samples(call.endpoint);
        state.count(end, status, reply.usage, cost, is_sample);
        let is_crossed = policy.is_some_and(|policy| policy.is_crossed());
        state.summary.crossed_calls += u64::from(is_crossed);
        state.summary.calls_without_ids += u64::from(lacks_ids);
        if end == CallEnd::Complete {
            if state.incomplete.get(&call.digest) == Some(&call.number) {
                state.incomplete.remove(&call.digest);
            }
            if dialect::samples(call.endpoint) && reply.finished {
                state.policies.extend(policy.map(|policy| (call.number, policy)));
                state.keep_items(call, reply);
            }
        }
        Ok(())
    }

    /// Tokens for a record: long lists are in the file of tokens.
    async fn recorded_tokens(&self, tokens: Option<&CallTokens>) -> io::Result<Option<CallTokens>> {
        let Some(mut tokens) = tokens.cloned() else { return Ok(None) };
        if tokens.count() < limits::GATEWAY_INLINE_TOKENS {
            return Ok(Some(tokens));
        }
        let file = Arc::clone(&self.tokens);
        supervise::blocking(move || file.pack_call(&mut tokens).map(|()| Some(tokens))).await
    }

    /// The directory of the records.
    pub(crate) fn directory(&self) -> &Path {
        self.log.path().parent().unwrap_or(Path::new("."))
    }

    /// Merges the calls, and returns their files and figures.
    pub(crate) async fn finish(&self) -> (GatewaySummary, Vec<PathBuf>) {
        let (mut summary, merged) = {
            let mut state = self.state();
            let merged = MergedCalls {
                tokens: std::mem::take(&mut state.tokens),
                messages: std::mem::take(&mut state.messages),
                policies: std::mem::take(&mut state.policies),
            };
            (state.summary.clone(), merged)
        };
        summary.calls = self.state().calls;
        let mut files = Vec::new();
        if summary.calls > 0 {
            files.push(self.log.path().to_owned());
        }
        let path = self.log.path().with_file_name(TRAJECTORIES_FILE);
        let merging = {
            let tokens = Arc::clone(&self.tokens);
            supervise::blocking(move || merged.write(&path, &tokens))
        };
        match merging.await {
            Ok(None) => {}
            Ok(Some((path, count))) => {
                summary.trajectories = count;
                files.push(path);
            }
            Err(error) => tracing::warn!("cannot write the trajectories of a try: {error}"),
        }
        files.extend(self.tokens.path().map(Path::to_owned));
        (summary, files)
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn masked(&self, text: &str) -> String {
        if self.redactor.is_empty() { text.to_owned() } else { self.redactor.text(text) }
    }

    fn body(&self, bytes: &[u8], digest: Digest) -> CallBody {
        let mut body =
            CallBody { bytes: bytes.len() as u64, digest: Some(digest), ..CallBody::default() };
        if self.log.bytes() > limits::GATEWAY_LOG_BYTES {
            return body;
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => body.text = Some(self.masked(text)),
            Err(_) => {
                let mut clean = Vec::with_capacity(bytes.len());
                self.redactor.bytes(bytes, 0, &mut clean);
                body.base64 = Some(BASE64.encode(&clean));
            }
        }
        body
    }
}

impl RecorderState {
    /// Places a request among the conversations, and keeps what the merge needs of it unless the
    /// merge is full.
    fn place(
        &mut self,
        endpoint: ModelEndpoint,
        digest: Digest,
        items: RequestItems,
    ) -> (RequestItems, Option<RequestPlace>) {
        let messages = items.messages.as_deref();
        let place = dialect::samples(endpoint)
            .then(|| self.conversations.begin(endpoint, messages, digest));
        let fits = self.reserve(items.count());
        (if fits { items } else { RequestItems::default() }, place)
    }

    fn count(
        &mut self,
        end: CallEnd,
        status: Option<u16>,
        usage: Option<TokenUsage>,
        cost: Option<f64>,
        is_sample: bool,
    ) {
        let refused = end == CallEnd::Complete && status.is_none_or(|status| status >= 400);
        self.summary.failed_calls += u64::from(refused || end == CallEnd::Unanswered);
        self.summary.cut_calls += u64::from(matches!(end, CallEnd::Cut | CallEnd::AgentGone));
        if let Some(usage) = usage {
            self.summary.usage.add(usage);
        }
        self.summary.cost += cost.unwrap_or_default();
        let is_answered = status.is_some_and(|status| status < 400);
        let is_unpriced = is_sample && is_answered && cost.is_none();
        self.summary.unpriced_calls += u64::from(is_unpriced);
    }

    /// Keeps what the merge of calls needs, within its limit.
    fn keep_items(&mut self, call: BegunCall, reply: ParsedReply) {
        let tokens = reply.tokens.unwrap_or_default();
        let prompt = tokens.prompt_ids.or(call.items.prompt_ids);
        let first = tokens.choices.into_iter().next().unwrap_or_default();
        if let (Some(prompt), Some(ids)) = (prompt, first.ids) {
            if self.reserve(prompt.len() + ids.len()) {
                let items = CallItems { call: call.number, prompt, reply: ids };
                self.tokens.push(TokenCall { items, logprobs: first.logprobs });
            }
            return;
        }
        let reply = messages::of_reply(call.endpoint, &reply.messages);
        if let Some(prompt) = call.items.messages
            && !reply.is_empty()
            && self.reserve(prompt.len() + reply.len())
        {
            self.messages.push(CallItems { call: call.number, prompt, reply });
        }
    }

    fn reserve(&mut self, items: usize) -> bool {
        let fits = self.items.saturating_add(items) <= limits::GATEWAY_MERGE_ITEMS;
        self.items += if fits { items } else { 0 };
        fits
    }
}

/// The member of a completion that is read.
#[derive(Deserialize)]
struct CompletionRequest<'a> {
    #[serde(borrow)]
    prompt: &'a RawValue,
}

/// Token ids of the prompt of a completion, if the request holds them.
fn prompt_ids(endpoint: ModelEndpoint, request: &[u8]) -> Option<Vec<u32>> {
    if endpoint != ModelEndpoint::Completions {
        return None;
    }
    let request: CompletionRequest<'_> = serde_json::from_slice(request).ok()?;
    let prompt = request.prompt.get();
    let nested = || serde_json::from_str(prompt).map(|[only]: [Vec<u32>; 1]| only);
    serde_json::from_str(prompt).or_else(|_| nested()).ok()
}

/// Calls to merge.
struct MergedCalls {
    tokens: Vec<TokenCall>,
    messages: Vec<CallItems<Digest>>,
    policies: BTreeMap<u64, CallPolicy>,
}

impl MergedCalls {
    /// Writes the trajectories, the calls of each sorted by their numbers; returns the file and
    /// their count, if there are any.
    fn write(self, path: &Path, tokens: &TokenFile) -> io::Result<Option<(PathBuf, u64)>> {
        let policies = self.policies.clone();
        let mut found = self.trajectories();
        if found.is_empty() {
            return Ok(None);
        }
        let mut file = io::BufWriter::new(fs::File::create(path)?);
        for trajectory in &mut found {
            if !policies.is_empty() {
                let policy = |call: &u64| policies.get(call).copied().unwrap_or_default();
                trajectory.policies = trajectory.calls.iter().map(policy).collect();
            }
            tokens.pack_trajectory(trajectory)?;
            serde_json::to_writer(&mut file, trajectory)?;
            file.write_all(b"\n")?;
        }
        file.flush()?;
        Ok(Some((path.to_owned(), found.len() as u64)))
    }

    fn trajectories(mut self) -> Vec<TrajectoryRecord> {
        // Calls may end in another order than that in which they began.
        self.tokens.sort_by_key(|call| call.items.call);
        let calls = self.tokens.into_iter().map(|call| (call.items, call.logprobs));
        let (calls, logprobs): (Vec<_>, Vec<_>) = calls.unzip();
        self.messages.sort_by_key(|items| items.call);
        let mut found = trajectory::by_tokens(&calls, &logprobs);
        found.extend(trajectory::by_messages(&self.messages));
        found
    }
}

#[cfg(test)]
mod tests;
