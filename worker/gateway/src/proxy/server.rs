//! A model server: its limits, its back-off and its outages, shared by all executions that use it.

mod held_places;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use regex::Regex;
use rollout_base::dependency::{Dependency, Probe};
use rollout_base::glob;
use rollout_base::rate_limit::RunRateLimiter;
use rollout_base::secrets::Redactor;
use rollout_base::supervise::{self, Task};
use rollout_protocol::spec::gateway::{ModelDialect, UpstreamSpec};
use rollout_protocol::wire::offer::RunRateLimits;
use tokio::net::TcpStream;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::Instant;

pub(super) use self::held_places::HeldPlaces;

use self::held_places::{HeldPlace, ServerCalls};
use super::client::{Clients, HttpClient};
use super::headers;
use super::leased_limits::{LeasedCall, LeasedLimits};
use super::refusal::{self, ServerReply};
use super::route::{OwnReply, RETRY_AFTER_SEC};
use crate::{GatewayError, Upstream};

/// Time between two probes of a server that does not answer.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// First and longest wait after an answer that asks to wait without saying how long.
const MIN_BACK_OFF: Duration = Duration::from_millis(500);
const MAX_BACK_OFF: Duration = Duration::from_secs(30);

/// Longest wait that a server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// A model server.
#[derive(Debug)]
pub(super) struct ModelServer {
    spec: UpstreamSpec,
    /// Its address without a slash at the end.
    base: String,
    key: Option<(HeaderName, HeaderValue)>,
    /// The models that it takes; all when absent.
    models: Option<Vec<Regex>>,
    /// Masks its key.
    redactor: Redactor,
    client: HttpClient,
    limits: ServerLimits,
    /// The calls of all executions of this worker.
    calls: Mutex<ServerCalls>,
    gate: watch::Sender<Gate>,
    connection: Arc<Dependency>,
    prober: Mutex<Option<Task<()>>>,
    /// Whether a reply lacked the token ids that it was asked for.
    lacked_ids: AtomicBool,
}

/// Limits of a server.
#[derive(Debug)]
enum ServerLimits {
    /// Of this worker alone.
    Own(RunRateLimiter),
    /// Of all workers of a run.
    Leased(LeasedLimits),
}

impl ServerLimits {
    /// Waits until a call may be sent.
    async fn admit(&self) -> Permit<'_> {
        match self {
            Self::Own(limiter) => {
                let permit = limiter.acquire_agent().await;
                limiter.wait_for_start().await;
                Permit::Own(permit)
            }
            Self::Leased(limits) => Permit::Leased(limits.admit().await),
        }
    }

    /// Calls that this worker may send at once; `None` if there is no such limit.
    fn places(&self, spec: &UpstreamSpec) -> Option<u32> {
        match self {
            Self::Own(_) => spec.max_concurrent,
            Self::Leased(limits) => limits.places(),
        }
    }
}

/// A limit that is in use.
#[derive(Debug, Clone, Copy)]
enum UsedLimit {
    /// So many calls at once.
    Places(u64),
    Rate,
}

/// A place among the calls at once.
#[derive(Debug)]
enum Permit<'a> {
    Own(#[expect(dead_code, reason = "it is held")] Option<SemaphorePermit<'a>>),
    Leased(#[expect(dead_code, reason = "it is held")] LeasedCall<'a>),
}

/// State that keeps calls back.
#[derive(Debug, Clone, Copy, Default)]
struct Gate {
    /// No call is sent before.
    back_off: Option<Instant>,
    /// Answers in a row that asked to wait.
    refusals: u32,
}

/// Permission to send a call, until it is dropped.
#[derive(Debug)]
pub(super) struct Admission<'a> {
    // Dropped first: the next call is not counted beside this one.
    _held: HeldPlace<'a>,
    _permit: Permit<'a>,
}

/// Why a call is not admitted.
#[derive(Debug)]
pub(super) struct NotAdmitted {
    /// The reply to the agent.
    pub(super) reply: OwnReply,
    /// Whether the execution of the call is the cause: it had its share of the limits. That is no outage.
    pub(super) is_own: bool,
}

/// Why calls are kept back, and until when if that is known.
struct Obstacle {
    until: Option<Instant>,
    reply: OwnReply,
}

/// Why a call that was sent has no answer.
#[derive(Debug)]
pub(super) struct SendFailure {
    /// There was no connection: the server has not seen the call.
    pub(super) not_sent: bool,
    /// The server may have seen it and said no status: it may have worked on it.
    pub(super) is_cut: bool,
    pub(super) message: String,
}

#[derive(Debug)]
struct ConnectProbe {
    host: String,
    port: u16,
}

#[async_trait]
impl Probe for ConnectProbe {
    async fn probe(&self) -> Result<(), String> {
        let connected = TcpStream::connect((self.host.as_str(), self.port)).await;
        connected.map(drop).map_err(|error| error.to_string())
    }
}

impl ModelServer {
    /// A server that counts as reachable until a call fails.
    /// `leased`: its limits, if they are leased.
    pub(super) fn new(
        upstream: &Upstream,
        leased: Option<LeasedLimits>,
        clients: &Clients,
    ) -> Result<Self, GatewayError> {
        let spec = upstream.spec.clone();
        let invalid =
            || GatewayError::Address { upstream: spec.name.clone(), url: spec.url.clone() };
        let base = spec.url.trim_end_matches('/').to_owned();
        let address: Uri = base.parse().map_err(|_| invalid())?;
        let https = address.scheme_str() == Some("https");
        if !https && address.scheme_str() != Some("http") || address.query().is_some() {
            return Err(invalid());
        }
        let host = address.host().filter(|host| !host.is_empty()).ok_or_else(invalid)?;
        let probe = ConnectProbe {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: address.port_u16().unwrap_or(if https { 443 } else { 80 }),
        };
        let key = match &upstream.key {
            Some(key) => {
                let header = headers::key_header(spec.dialect, key);
                Some(header.ok_or_else(|| GatewayError::Key(spec.name.clone()))?)
            }
            None => None,
        };
        let pattern = |pattern: &String| {
            let compiled = glob::compile(pattern, glob::Dialect::Shell);
            compiled.ok_or_else(|| GatewayError::Models {
                upstream: spec.name.clone(),
                pattern: pattern.clone(),
            })
        };
        let models = spec.models.iter().map(pattern).collect::<Result<Vec<_>, _>>()?;
        let name = format!("the model server `{}`", spec.name);
        let limits = RunRateLimits {
            starts_per_minute: spec.requests_per_minute,
            agents_at_once: spec.max_concurrent,
            ..RunRateLimits::default()
        };
        Ok(Self {
            base,
            key,
            models: (!models.is_empty()).then_some(models),
            redactor: Redactor::new(upstream.key.as_deref().map(|key| ("MODEL_KEY", key))),
            client: clients.get(https)?,
            limits: leased.map_or_else(
                || ServerLimits::Own(RunRateLimiter::new(limits)),
                ServerLimits::Leased,
            ),
            calls: Mutex::default(),
            gate: watch::Sender::default(),
            connection: Arc::new(Dependency::new(name, Box::new(probe))),
            prober: Mutex::default(),
            lacked_ids: AtomicBool::default(),
            spec,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Notes a reply without the token ids that it was asked for, and says so once.
    pub(super) fn note_missing_ids(&self) {
        if !self.lacked_ids.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the model server `{}` gives no token ids, which `capture: tokens` asks for: nothing can \
                 be trained on its calls",
                self.spec.name
            );
        }
    }

    pub(super) fn dialect(&self) -> ModelDialect {
        self.spec.dialect
    }

    pub(super) fn spec(&self) -> &UpstreamSpec {
        &self.spec
    }

    /// Whether it takes calls of a model.
    pub(super) fn takes(&self, model: Option<&str>) -> bool {
        let Some(models) = &self.models else { return true };
        model.is_some_and(|model| models.iter().any(|pattern| pattern.is_match(model)))
    }

    pub(super) fn redactor(&self) -> Redactor {
        self.redactor.clone()
    }

    fn calls(&self) -> MutexGuard<'_, ServerCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limit that calls wait for.
    fn used_limit(&self) -> UsedLimit {
        let answering = self.calls().answering();
        let has_rate = self.spec.requests_per_minute.is_some();
        // Without places the rate is no cause.
        match self.limits.places(&self.spec).map(u64::from) {
            Some(places) if answering >= places || !has_rate => UsedLimit::Places(places),
            _ => UsedLimit::Rate,
        }
    }

    /// Longest time that a call is held.
    pub(super) fn hold(&self) -> Duration {
        Duration::try_from_secs_f64(self.spec.hold_sec).unwrap_or(MAX_RETRY_AFTER)
    }

    /// Time in which it did not answer, since it was made.
    pub(super) fn downtime(&self) -> Duration {
        self.connection.downtime()
    }

    /// Whether it does not answer at present.
    pub(super) fn is_down(&self) -> bool {
        self.connection.is_down()
    }

    /// Whether it keeps all calls back at present: it does not answer, or asked to wait.
    pub(super) fn keeps_calls_back(&self) -> bool {
        self.obstacle(Instant::now()).is_some()
    }

    /// Waits until a call of the execution with these places may be sent.
    ///
    /// # Errors
    /// It would be sent after `deadline`.
    pub(super) async fn admit<'a>(
        &'a self,
        deadline: Instant,
        places: &'a HeldPlaces,
    ) -> Result<Admission<'a>, NotAdmitted> {
        loop {
            let opened = self.wait_until_open(deadline).await;
            opened.map_err(|reply| NotAdmitted { reply, is_own: false })?;
            let mut held = places.hold(self);
            let Ok(permit) = tokio::time::timeout_at(deadline, self.limits.admit()).await else {
                let is_own = held.is_own_cause();
                let name = self.name();
                let message = format!("the limits of the model server `{name}` are in use");
                let mut busy = OwnReply::new(StatusCode::TOO_MANY_REQUESTS, message);
                busy.retry_after = Some(RETRY_AFTER_SEC);
                return Err(NotAdmitted { reply: busy, is_own });
            };
            if self.obstacle(Instant::now()).is_none() {
                held.mark_sent();
                return Ok(Admission { _held: held, _permit: permit });
            }
        }
    }

    async fn wait_until_open(&self, deadline: Instant) -> Result<(), OwnReply> {
        let mut changes = self.gate.subscribe();
        loop {
            changes.mark_unchanged();
            let now = Instant::now();
            let Some(obstacle) = self.obstacle(now) else { return Ok(()) };
            let until = obstacle.until.unwrap_or(deadline);
            if now >= deadline || until > deadline {
                return Err(obstacle.reply);
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// The obstacle that keeps calls back at present.
    fn obstacle(&self, now: Instant) -> Option<Obstacle> {
        let gate = *self.gate.borrow();
        let name = self.name();
        let unavailable = |message, retry_after| {
            let reply = OwnReply::new(StatusCode::SERVICE_UNAVAILABLE, message);
            OwnReply { retry_after: Some(retry_after), ..reply }
        };
        if self.connection.is_down() {
            let message = format!("the model server `{name}` does not answer");
            return Some(Obstacle { until: None, reply: unavailable(message, RETRY_AFTER_SEC) });
        }
        let until = gate.back_off.filter(|until| *until > now)?;
        let message = format!("the model server `{name}` asks to wait");
        let seconds = until.duration_since(now).as_secs_f64().ceil() as u64;
        let mut reply = unavailable(message, seconds.max(1));
        reply.status = StatusCode::TOO_MANY_REQUESTS;
        Some(Obstacle { until: Some(until), reply })
    }

    /// The address of a call.
    ///
    /// # Errors
    /// The reply to the agent when its path and query are too long.
    pub(super) fn uri(&self, path: &str) -> Result<Uri, OwnReply> {
        format!("{}{path}", self.base).parse().map_err(|error: hyper::http::uri::InvalidUri| {
            let message = format!("cannot make the address of the call: {error}");
            OwnReply::new(StatusCode::URI_TOO_LONG, message)
        })
    }

    /// Sends a call once. `connection` gets the connection to the server.
    pub(super) async fn send(
        &self,
        uri: Uri,
        sent: &HeaderMap,
        body: Bytes,
        connection: &mut Option<CaptureConnection>,
    ) -> Result<ServerReply, SendFailure> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers::for_server(sent, self.key.as_ref());
        *request.uri_mut() = uri;
        *connection = Some(capture_connection(&mut request));
        let sent = self.client.request(request).await;
        let response = sent.map_err(|error| SendFailure {
            not_sent: error.is_connect(),
            is_cut: !error.is_connect() && may_have_arrived(&error),
            message: chain(&error),
        })?;
        let reply = refusal::read(self.dialect(), response).await;
        reply.map_err(|message| SendFailure { not_sent: false, is_cut: false, message })
    }

    /// Records that the server cannot be reached, and probes it until it can.
    pub(super) fn mark_down(self: &Arc<Self>, why: &str) {
        self.connection.mark_failed(why);
        let mut prober = self.prober.lock().unwrap_or_else(PoisonError::into_inner);
        if prober.as_ref().is_some_and(|prober| !prober.is_finished()) {
            return;
        }
        // Weak: a server that no execution uses needs no probe.
        let server = Arc::downgrade(self);
        *prober = Some(supervise::spawn("model-server-probe", async move {
            loop {
                tokio::time::sleep(PROBE_PAUSE).await;
                let Some(server) = server.upgrade() else { return };
                if server.connection.check().await {
                    server.gate.send_modify(|_| ());
                    return;
                }
            }
        }));
    }

    /// Lets all calls wait after an answer that asks for it; returns when the next may be sent.
    pub(super) fn back_off(&self, asked: Option<Duration>) -> Instant {
        let mut until = Instant::now();
        self.gate.send_modify(|gate| {
            let grown = MIN_BACK_OFF.saturating_mul(1 << gate.refusals.min(10)).min(MAX_BACK_OFF);
            let own = grown.mul_f64(0.5 + rand::random::<f64>() / 2.0);
            until += asked.unwrap_or(own).min(MAX_RETRY_AFTER);
            gate.refusals = gate.refusals.saturating_add(1);
            until = gate.back_off.map_or(until, |present| present.max(until));
            gate.back_off = Some(until);
        });
        until
    }

    /// Records an answer that does not ask to wait.
    pub(super) fn mark_answered(&self) {
        self.gate.send_if_modified(|gate| {
            gate.refusals = 0;
            false
        });
    }
}

/// Whether a call with this error may have arrived. Its client hands a call back of which it has written
/// nothing, as the connection closed before; the error says that the call was cancelled.
pub(super) fn may_have_arrived(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return false;
        }
        cause = error.source();
    }
    true
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The error of a reply that breaks off.
pub(super) fn broken_off(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, why.to_owned())
}
