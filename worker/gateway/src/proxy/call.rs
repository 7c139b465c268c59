//! One call: its record, and its reply on the way to the agent.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use hyper::{Response, StatusCode};
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::record::{
    CallBody, CallEnd, CallEnded, CallLatency, CallPolicy, ModelEndpoint, TokenUsage,
};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::spec::gateway::{CaptureMode, ModelDialect};
use serde::de::IgnoredAny;
use tokio::sync::{mpsc, oneshot};

use super::answer::{Answer, Course};
use super::refusal::ServerBody;
use super::reply_body::ReplyBody;
use super::request_memory::BodyMemory;
use super::route::{OwnReply, recorded_headers};
use super::server::{self, ModelServer};
use super::{OpenTry, headers};
use crate::proxy::budget::Reservation;
use crate::proxy::capture::{self, Added};
use crate::proxy::dialect;
use crate::proxy::recorder::{BegunCall, NewCall};
use crate::proxy::reply::ParsedReply;
use crate::proxy::reply_stream::{EndedReply, ReplyForm, ReplyStream};
use crate::proxy::unanswered::RequestEnd;

/// Bytes of a request that count as a token when what it may use is reserved.
const BYTES_OF_TOKEN: u64 = 4;

/// Pieces of a reply that wait for the agent.
const PENDING_PIECES: usize = 8;

/// How long a server may take to end a reply after the last event of its stream.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for servers whose last event does not say that it is the last: more may follow.
const OPEN_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Calls that a disk did not take. Every call of every agent fails on one that takes nothing.
static UNRECORDED: WarningLimiter = WarningLimiter::new();

/// Why the gateway breaks a reply off.
const TOO_LARGE: &str = "the reply is too large";

/// A call of an agent.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) opened: Arc<OpenTry>,
    /// The model server, and then those that it falls back to.
    pub(super) servers: Vec<Arc<ModelServer>>,
    pub(super) endpoint: ModelEndpoint,
    /// The model that the request names, if that is known.
    pub(super) model: Option<String>,
    /// The most output tokens that the request asks for, if that is known.
    pub(super) output_limit: Option<u64>,
    /// Path and query below the address of the server.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Memory of the body, which is free when the call has ended.
    pub(super) _memory: BodyMemory,
}

/// Where the agent gets the head of its reply.
type ReplyHead = oneshot::Sender<Response<ReplyBody>>;

/// How a call ended.
struct Outcome {
    end: CallEnd,
    /// The same for the conversation.
    request: RequestEnd,
    status: Option<StatusCode>,
    error: Option<String>,
}

/// How a reply ended.
enum PassedOn {
    Complete,
    /// The server broke it off.
    Cut(String),
    /// The gateway broke it off.
    TooLarge,
    AgentGone,
}

impl Call {
    /// Runs the call to its end.
    pub(super) async fn run(self, mut head: ReplyHead) {
        let extended =
            capture::extend_request(self.endpoint, self.servers[0].spec().capture, &self.body);
        let (request, added) = match extended {
            Some((request, added)) => (Bytes::from(request), added),
            None => (self.body.clone(), Added::default()),
        };
        let recorder = &self.opened.recorder;
        let begun = recorder.begin(NewCall {
            upstream: self.servers[0].name(),
            endpoint: self.endpoint,
            path: &self.path,
            headers: recorded_headers(&self.headers),
            request: request.clone(),
            added: added.names(),
            wants_ids: self.servers[0].spec().capture == CaptureMode::Tokens,
        });
        let begun = match begun.await {
            Ok(begun) => begun,
            Err(error) => return self.refuse_unrecorded(&error, head),
        };
        let mut course = Course::begin(self.opened.open_calls.open());
        let answered = async {
            // The record survives the end of this process already; that of the host may wait until
            // the answer comes.
            let (synced, answer) =
                tokio::join!(recorder.sync(&begun), self.covered_answer(&request, &mut course));
            synced.map(|()| answer)
        };
        let answer = tokio::select! {
            biased;
            () = head.closed() => Ok(Answer::Gone),
            () = self.opened.wait_until_closed() => Ok(Answer::Gone),
            answer = answered => answer,
        };
        match answer {
            Ok(Answer::Reply(response, admission)) => {
                self.pass_on(begun, course, response, added, head).await;
                drop(admission);
            }
            Ok(Answer::Own { reply, outage, .. }) => {
                self.reply_unanswered(begun, course, reply, outage, head).await;
            }
            Ok(Answer::Gone) => {
                // It may have waited for the end of a pause, or for a server that failed another call.
                let is_failed = course.has_failure()
                    || self.opened.open_calls.is_waiting()
                    || self.servers[course.place].keeps_calls_back();
                let request = RequestEnd::of_given_up(course.is_at_server(), is_failed);
                let end = CallEnd::AgentGone;
                let gone = Outcome { end, request, status: None, error: None };
                self.record(begun, course, gone, (0, None), ParsedReply::default()).await;
            }
            Err(error) => {
                recorder.give_up(&begun);
                self.refuse_unrecorded(&error, head);
            }
        }
    }

    /// The answer, if the budget covers the call.
    async fn covered_answer(&self, request: &Bytes, course: &mut Course<'_>) -> Answer<'_> {
        match self.reserve(request.len()).await {
            Ok(reservation) => course.reservation = Some(reservation),
            Err(refusal) => return Answer::own(refusal, false),
        }
        self.answer(request, course).await
    }

    /// Reserves what the call may use: a token for every four bytes of its request, and its output.
    async fn reserve(&self, request_bytes: usize) -> Result<Reservation, OwnReply> {
        let mut estimate = ModelUse { calls: 1, ..ModelUse::default() };
        if let Some(budget) = self.opened.budget.budget()
            && dialect::samples(self.endpoint)
        {
            let input = request_bytes as u64 / BYTES_OF_TOKEN;
            let reserve = budget.output_reserve;
            let output = self.output_limit.map_or(reserve, |limit| limit.min(reserve));
            let usage = TokenUsage { input, output, ..TokenUsage::default() };
            let prices = self.servers[0].spec().prices_of(self.model.as_deref());
            if budget.limits.cost.is_some() && prices.is_none() {
                let model = self.model.as_deref().unwrap_or("of the request");
                let message =
                    format!("the model {model} has no price, and the job has a budget in money");
                return Err(OwnReply::new(StatusCode::FORBIDDEN, message));
            }
            estimate.tokens = usage.total();
            estimate.cost = prices.map_or(0.0, |prices| usage.cost(prices));
        }
        let reserved = self.opened.budget.reserve(estimate).await;
        reserved.map_err(|exceeded| {
            let message = format!("the budget of the execution is exceeded: {exceeded}");
            OwnReply::new(StatusCode::FORBIDDEN, message)
        })
    }

    /// Passes the reply on while it comes, and its end when the record is whole.
    async fn pass_on(
        &self,
        begun: BegunCall,
        mut course: Course<'_>,
        response: Response<ServerBody>,
        added: Added,
        head: ReplyHead,
    ) {
        let (parts, mut body) = response.into_parts();
        let form = reply_form(parts.status, &parts.headers, &self.servers[course.place]);
        let is_json = matches!(form, ReplyForm::Pieces) && is_json(&parts.headers);
        let mut stream = ReplyStream::new(self.endpoint, form, added);
        let (pieces, receiver) = mpsc::channel(PENDING_PIECES);
        let mut reply = Response::new(ReplyBody::Pieces(receiver));
        *reply.status_mut() = parts.status;
        *reply.headers_mut() = headers::end_to_end(&parts.headers);
        // A client that knows the length of a stream could take it for whole before its end is recorded, and
        // the end of a connection is not waited for after the last event.
        if stream.may_change() || stream.is_stream() {
            reply.headers_mut().remove(CONTENT_LENGTH);
        }
        let mut end = match head.send(reply) {
            Ok(()) => self.pump(&mut body, &mut stream, &pieces, &mut course).await,
            Err(_) => PassedOn::AgentGone,
        };
        // The server stops to generate when its connection closes.
        drop(body);
        let is_stream = stream.is_stream();
        let EndedReply { held, parsed, body, bytes } = stream.finish();
        if matches!(end, PassedOn::Complete) && is_stream && !parsed.finished {
            end = PassedOn::Cut("the stream ended without its last event".to_owned());
        }
        let is_torn = is_json && is_torn(&parsed, body.as_deref());
        let request = match &end {
            PassedOn::Cut(_) => RequestEnd::Unanswered,
            PassedOn::Complete if is_torn => RequestEnd::Unanswered,
            PassedOn::Complete => RequestEnd::of_status(parts.status.as_u16()),
            PassedOn::TooLarge => RequestEnd::Rejected,
            PassedOn::AgentGone => RequestEnd::of_gone_agent(parts.status.as_u16()),
        };
        let (kind, error) = match &end {
            PassedOn::Complete => (CallEnd::Complete, None),
            PassedOn::Cut(why) => (CallEnd::Cut, Some(why.clone())),
            PassedOn::TooLarge => (CallEnd::Cut, Some(TOO_LARGE.to_owned())),
            PassedOn::AgentGone => (CallEnd::AgentGone, None),
        };
        let outcome = Outcome { end: kind, request, status: Some(parts.status), error };
        let body = (bytes, body.as_deref());
        let recorded = self.record(begun, course, outcome, body, parsed).await;
        let last = match end {
            PassedOn::Complete if recorded => Ok(Bytes::from(held)),
            PassedOn::Complete => Err(server::broken_off("the call could not be recorded")),
            PassedOn::Cut(why) => Err(server::broken_off(&why)),
            PassedOn::TooLarge => Err(server::broken_off(TOO_LARGE)),
            PassedOn::AgentGone => return,
        };
        // The agent may have gone meanwhile.
        let _sent = pieces.send(last).await;
    }

    /// Passes pieces on until the reply ends.
    async fn pump(
        &self,
        body: &mut ServerBody,
        stream: &mut ReplyStream,
        pieces: &mpsc::Sender<io::Result<Bytes>>,
        course: &mut Course<'_>,
    ) -> PassedOn {
        let closed = self.opened.wait_until_closed();
        tokio::pin!(closed);
        let rest = Some(rest_timeout(self.endpoint));
        loop {
            let frame = tokio::select! {
                biased;
                () = pieces.closed() => return PassedOn::AgentGone,
                () = &mut closed => return PassedOn::AgentGone,
                frame = next_frame(body, rest.filter(|_| stream.is_terminal())) => frame,
            };
            match frame {
                None => return PassedOn::Complete,
                Some(Err(error)) => {
                    return PassedOn::Cut(format!("the model server broke its reply off: {error}"));
                }
                Some(Ok(frame)) => {
                    let Ok(piece) = frame.into_data() else { continue };
                    course.first_byte.get_or_insert_with(|| course.began.elapsed());
                    let now = stream.push(&piece);
                    if stream.is_too_large() {
                        return PassedOn::TooLarge;
                    }
                    if !now.is_empty() && pieces.send(Ok(Bytes::from(now))).await.is_err() {
                        return PassedOn::AgentGone;
                    }
                }
            }
        }
    }

    /// Records a call without an answer, then replies.
    async fn reply_unanswered(
        &self,
        begun: BegunCall,
        course: Course<'_>,
        reply: OwnReply,
        outage: bool,
        head: ReplyHead,
    ) {
        let request = match reply.status {
            _ if outage => RequestEnd::Unanswered,
            _ if course.reservation.is_none() => RequestEnd::OverBudget,
            // Other calls of the execution are the cause, unless a server failed this one before.
            StatusCode::TOO_MANY_REQUESTS => RequestEnd::of_given_up(false, course.has_failure()),
            _ => RequestEnd::Rejected,
        };
        let (response, body) = reply.response(self.dialect());
        let (status, error) = (Some(reply.status), Some(reply.message));
        let outcome = Outcome { end: CallEnd::Unanswered, request, status, error };
        let bytes = (body.len() as u64, Some(body.as_bytes()));
        if self.record(begun, course, outcome, bytes, ParsedReply::default()).await {
            let _sent = head.send(response);
        }
    }

    /// The dialect, which is that of all its servers.
    fn dialect(&self) -> ModelDialect {
        self.servers[0].dialect()
    }

    /// Records the end of the call; returns whether that succeeded.
    async fn record(
        &self,
        begun: BegunCall,
        mut course: Course<'_>,
        outcome: Outcome,
        body: (u64, Option<&[u8]>),
        parsed: ParsedReply,
    ) -> bool {
        let names = self.model.as_deref().into_iter().chain(parsed.model.as_deref());
        let prices = self.servers[course.place].spec().prices_of(names);
        let cost = parsed.usage.zip(prices).map(|(usage, prices)| usage.cost(prices));
        if let Some(mut reservation) = course.reservation.take() {
            reservation.set_used(self.used(&course, &outcome, parsed.usage, cost));
        }
        let status = outcome.status.map(|status| status.as_u16());
        if begun.lacks_ids(outcome.end, status, &parsed) {
            self.servers[course.place].note_missing_ids();
        }
        let request = outcome.request;
        let ended = CallEnded { cost, ..self.ended(course, begun.number, outcome) };
        let recorded = self.opened.recorder.end(begun, request, ended, body, parsed).await;
        if let Err(error) = &recorded {
            UNRECORDED.warn(&format_args!("cannot record the end of a model call: {error}"));
        }
        recorded.is_ok()
    }

    /// The use of a call; `None` if a server works or worked on it and that is not known: its provider may
    /// ask money for it, also if the reply was cut, or the connection before any reply.
    fn used(
        &self,
        course: &Course<'_>,
        outcome: &Outcome,
        usage: Option<TokenUsage>,
        cost: Option<f64>,
    ) -> Option<ModelUse> {
        let is_sent = !course.attempts.is_empty() || course.is_at_server();
        let used = ModelUse { calls: u64::from(is_sent), ..ModelUse::default() };
        // An agent that waits for the next attempt has no more than refusals.
        let is_waiting = outcome.status.is_none() && !course.is_at_server();
        let is_refused = is_waiting || outcome.status.is_some_and(|status| !status.is_success());
        // The gateway has made the status of a call that was cut before a reply.
        let is_free = is_refused && !course.is_cut;
        match usage {
            Some(usage) => {
                Some(ModelUse { tokens: usage.total(), cost: cost.unwrap_or_default(), ..used })
            }
            None if is_free || !is_sent || !dialect::samples(self.endpoint) => Some(used),
            None => None,
        }
    }

    /// The record of the end, without what the reply says.
    fn ended(&self, course: Course<'_>, call: u64, outcome: Outcome) -> CallEnded {
        let ended = self.opened.open_calls.policy_version();
        let policy = ended.map(|_| CallPolicy { dispatched: course.dispatched, ended });
        let Outcome { end, status, error, .. } = outcome;
        CallEnded {
            call,
            ended_at: rollout_protocol::Timestamp::now(),
            end,
            upstream: course.other_server(&self.servers[course.place]),
            status: status.map(|status| status.as_u16()),
            error,
            latency: CallLatency {
                queued_sec: course.queued.as_secs_f64(),
                first_byte_sec: course.first_byte.map(|after| after.as_secs_f64()),
                total_sec: course.began.elapsed().as_secs_f64(),
            },
            attempts: course.attempts,
            policy,
            model: None,
            finish_reasons: Vec::new(),
            usage: None,
            cost: None,
            tokens: None,
            reply: CallBody::default(),
        }
    }

    fn refuse_unrecorded(&self, error: &io::Error, head: ReplyHead) {
        UNRECORDED.warn(&format_args!("cannot record a model call: {error}"));
        let message = "the gateway cannot record the call";
        let reply = OwnReply::new(StatusCode::INTERNAL_SERVER_ERROR, message);
        let _sent = head.send(reply.response(self.dialect()).0);
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("application/json"))
}

/// Whether the body of a reply is no whole JSON document: the end of the connection ended it too
/// early.
fn is_torn(parsed: &ParsedReply, body: Option<&[u8]>) -> bool {
    let is_broken = |body| serde_json::from_slice::<IgnoredAny>(body).is_err();
    !parsed.finished && body.is_some_and(is_broken)
}

fn reply_form(status: StatusCode, headers: &HeaderMap, server: &ModelServer) -> ReplyForm {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let encoding = text(CONTENT_ENCODING).to_ascii_lowercase();
    if !encoding.is_empty() && encoding != "identity" {
        return ReplyForm::Opaque;
    }
    if !status.is_success() {
        return ReplyForm::Error(server.redactor());
    }
    let kind = text(CONTENT_TYPE).to_ascii_lowercase();
    if kind.starts_with("text/event-stream") { ReplyForm::Events } else { ReplyForm::Pieces }
}

/// The next frame of a reply. The rest after the last event of a stream is not waited for longer
/// than `rest`.
async fn next_frame(
    body: &mut ServerBody,
    rest: Option<Duration>,
) -> Option<Result<Frame<Bytes>, <ServerBody as Body>::Error>> {
    match rest {
        None => body.frame().await,
        Some(rest) => tokio::time::timeout(rest, body.frame()).await.unwrap_or_default(),
    }
}

const fn rest_timeout(endpoint: ModelEndpoint) -> Duration {
    match endpoint {
        ModelEndpoint::GenerateContent => OPEN_END_TIMEOUT,
        _ => END_TIMEOUT,
    }
}
