//! Requests of agents: their execution, their target and their body.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, UPGRADE,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use rollout_base::supervise;
use rollout_protocol::limits;
use rollout_protocol::record::ModelEndpoint;
use rollout_protocol::spec::gateway::ModelDialect;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::call::Call;
use super::listener::ListenerScope;
use super::refusal;
use super::reply_body::ReplyBody;
use super::request_memory::BodyMemory;
use super::{OpenTry, headers, request_body};
use crate::GatewayReply;
use crate::proxy::dialect::{self, CallTarget, Target};
use crate::proxy::recorder;

/// Seconds after which agents may try again while calls are kept back for an unknown time.
pub(super) const RETRY_AFTER_SEC: u64 = 5;

/// A reply of the gateway itself.
#[derive(Debug)]
pub(super) struct OwnReply {
    pub(super) status: StatusCode,
    pub(super) message: String,
    /// Seconds after which the agent may try again.
    pub(super) retry_after: Option<u64>,
}

impl OwnReply {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None }
    }

    /// For a call during a pause of its run.
    pub(super) fn paused() -> Self {
        let message = "model calls of the run are paused";
        let reply = Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        Self { retry_after: Some(RETRY_AFTER_SEC), ..reply }
    }

    /// Its response, and the body for the record.
    pub(super) fn response(&self, dialect: ModelDialect) -> (Response<ReplyBody>, String) {
        let status = self.status.as_u16();
        let body = dialect::error_body(dialect, status, &self.message, self.retry_after);
        let mut response = json_response(body.clone());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if self.status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
        }
        if self.status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            let taken = HeaderValue::from_static(request_body::ENCODINGS);
            headers.insert(ACCEPT_ENCODING, taken);
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        (response, body)
    }
}

fn json_response(body: String) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Answers a request. A call runs in a task of its own: its record is completed also if the agent
/// breaks off.
pub(super) async fn answer(
    scope: &ListenerScope,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let dialect = dialect_of(request.uri().path());
    let replied = reply(scope, request, dialect).await;
    replied.unwrap_or_else(|refusal| refusal.response(dialect).0)
}

async fn reply(
    scope: &ListenerScope,
    request: Request<Incoming>,
    dialect: ModelDialect,
) -> Result<Response<ReplyBody>, OwnReply> {
    let target = find_target(&request)?;
    let opened = headers::sent_key(&request).and_then(|key| scope.find(key));
    let opened = opened.filter(|opened| !*opened.closed.borrow()).ok_or_else(|| {
        OwnReply::new(StatusCode::UNAUTHORIZED, "the key is not that of an execution that runs")
    })?;
    let target = match target {
        Target::Liveness => return Ok(json_response("{}".to_owned())),
        Target::Models => {
            opened.upstreams.require(dialect)?;
            let models = opened.upstreams.models(dialect);
            return Ok(json_response(dialect::model_list(dialect, &models)));
        }
        Target::Call(target) => target,
    };
    let call = accept(&opened, request, dialect, target).await?;
    run(&opened, call).await
}

async fn run(opened: &OpenTry, call: Call) -> Result<Response<ReplyBody>, OwnReply> {
    if dialect::samples(call.endpoint) {
        opened.memory.mark_read();
    }
    let (sender, receiver) = oneshot::channel();
    opened.keep(supervise::spawn("model-call", call.run(sender)));
    let failed = |_| OwnReply::new(StatusCode::BAD_GATEWAY, "the call has no reply");
    receiver.await.map_err(failed)
}

/// A call of an agent that runs in this process.
pub(super) async fn call_directly(
    opened: &Arc<OpenTry>,
    dialect: ModelDialect,
    path: &str,
    body: Bytes,
) -> GatewayReply {
    let replied = async { run(opened, direct_call(opened, dialect, path, body).await?).await };
    let replied = replied.await.unwrap_or_else(|refusal| refusal.response(dialect).0);
    let (head, body) = replied.into_parts();
    let retry_after = refusal::asked_wait(&head.headers);
    match body.collect().await {
        Ok(body) => {
            GatewayReply { status: head.status.as_u16(), retry_after, body: body.to_bytes() }
        }
        Err(error) => {
            let text = dialect::error_body(dialect, 502, &error.to_string(), None);
            GatewayReply { status: 502, retry_after: None, body: text.into() }
        }
    }
}

async fn direct_call(
    opened: &Arc<OpenTry>,
    dialect: ModelDialect,
    path: &str,
    body: Bytes,
) -> Result<Call, OwnReply> {
    let Some(Target::Call(target)) = Target::find(dialect, path) else {
        return Err(OwnReply::new(StatusCode::NOT_FOUND, "the gateway has no such endpoint"));
    };
    let memory = opened.memory.take(body.len()).await?;
    let json = HeaderValue::from_static("application/json");
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
    if dialect == ModelDialect::Anthropic {
        let version = HeaderName::from_static("anthropic-version");
        headers.insert(version, HeaderValue::from_static("2023-06-01"));
    }
    make_call(opened, dialect, target, headers, (body, memory)).await
}

/// The answer to a request on a connection beyond those that its execution may have. The connection
/// ends after it.
pub(super) fn too_many_connections(request: &Request<Incoming>) -> Response<ReplyBody> {
    let most = limits::GATEWAY_TRY_CONNECTIONS;
    let message = format!("the execution has {most} connections to the gateway already");
    let refusal = OwnReply::new(StatusCode::TOO_MANY_REQUESTS, message);
    let refusal = OwnReply { retry_after: Some(RETRY_AFTER_SEC), ..refusal };
    let (mut response, _) = refusal.response(dialect_of(request.uri().path()));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The dialect in which a request is answered.
fn dialect_of(path: &str) -> ModelDialect {
    dialect::split(path).map(|(dialect, _)| dialect).unwrap_or_default()
}

/// The target of a request.
fn find_target<B>(request: &Request<B>) -> Result<Target, OwnReply> {
    let unknown = || OwnReply::new(StatusCode::NOT_FOUND, "the gateway has no such endpoint");
    // Some clients ask for this path below the root, wherever the base address leads.
    let (dialect, below) = match request.uri().path() {
        path @ "/api/hello" => (ModelDialect::Anthropic, path),
        path => dialect::split(path).ok_or_else(unknown)?,
    };
    let target = Target::find(dialect, below).ok_or_else(unknown)?;
    let method = request.method();
    match &target {
        Target::Call(call)
            if call.endpoint == ModelEndpoint::Responses
                && method == Method::GET
                && request.headers().contains_key(UPGRADE) =>
        {
            // Its clients then call over HTTP at once.
            let message = "the gateway takes responses over HTTP only, not over a WebSocket";
            Err(OwnReply::new(StatusCode::UPGRADE_REQUIRED, message))
        }
        Target::Call(_) if method == Method::POST => Ok(target),
        Target::Models | Target::Liveness if [Method::GET, Method::HEAD].contains(method) => {
            Ok(target)
        }
        _ => Err(unknown()),
    }
}

/// Reads the body of a call, and selects its model servers.
async fn accept(
    opened: &Arc<OpenTry>,
    request: Request<Incoming>,
    dialect: ModelDialect,
    target: CallTarget,
) -> Result<Call, OwnReply> {
    opened.upstreams.require(dialect)?;
    let query = headers::query_for_server(dialect, request.uri().query());
    let (mut head, body) = request.into_parts();
    let (body, memory) = request_body::read(&mut head.headers, body, &opened.memory).await?;
    let target = CallTarget { path: format!("{}{query}", target.path), ..target };
    make_call(opened, dialect, target, head.headers, (body, memory)).await
}

/// Selects the model servers of a call.
async fn make_call(
    opened: &Arc<OpenTry>,
    dialect: ModelDialect,
    target: CallTarget,
    headers: HeaderMap,
    (body, memory): (Bytes, BodyMemory),
) -> Result<Call, OwnReply> {
    let members = requested(&body).await;
    let model = target.model.or(members.model);
    Ok(Call {
        opened: Arc::clone(opened),
        servers: opened.upstreams.select(dialect, model.as_deref())?,
        endpoint: target.endpoint,
        model,
        output_limit: members.output_limit,
        path: target.path,
        headers,
        body,
        _memory: memory,
    })
}

/// Members of a request that the gateway reads.
#[derive(Debug, Default, PartialEq, Eq)]
struct RequestMembers {
    model: Option<String>,
    output_limit: Option<u64>,
}

/// These members in the dialects' forms. A body that has one twice has none: servers differ in which
/// of them they take.
#[derive(Deserialize)]
struct RawMembers<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    max_completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    max_output_tokens: Option<&'a RawValue>,
    #[serde(borrow, rename = "generationConfig")]
    generation_config: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct GenerationConfig {
    #[serde(rename = "maxOutputTokens")]
    max_output_tokens: Option<u64>,
}

impl RequestMembers {
    fn read(body: &[u8]) -> Self {
        let Ok(raw) = serde_json::from_slice::<RawMembers<'_>>(body) else {
            return Self::default();
        };
        let count = |value: &RawValue| serde_json::from_str::<u64>(value.get()).ok();
        let limits = [raw.max_completion_tokens, raw.max_output_tokens, raw.max_tokens];
        let config = raw.generation_config.and_then(|config| {
            serde_json::from_str::<GenerationConfig>(config.get()).ok()?.max_output_tokens
        });
        Self {
            model: raw.model.and_then(|model| serde_json::from_str(model.get()).ok()),
            output_limit: limits.into_iter().flatten().find_map(count).or(config),
        }
    }
}

/// Reads the members of a body.
async fn requested(body: &Bytes) -> RequestMembers {
    let body = body.clone();
    supervise::blocking(move || RequestMembers::read(&body)).await
}

/// The headers of a request that its record has.
pub(super) fn recorded_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let recorded = headers.iter().filter(|(name, _)| recorder::is_recorded(name.as_str()));
    recorded
        .map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_and_output_limit_are_read_in_every_dialect() {
        let read = |body: &str| {
            let RequestMembers { model, output_limit } = RequestMembers::read(body.as_bytes());
            (model, output_limit)
        };
        let of = |limit| (Some("m".to_owned()), limit);
        assert_eq!(read(r#"{"model":"m","messages":[{"model":"x"}]}"#), of(None));
        assert_eq!(read(r#"{"model":"m","max_tokens":9,"max_completion_tokens":7}"#), of(Some(7)));
        assert_eq!(read(r#"{"model":"m","max_output_tokens":5}"#), of(Some(5)));
        let gemini = r#"{"generationConfig":{"maxOutputTokens":3,"x":[]}}"#;
        assert_eq!(read(gemini), (None, Some(3)));
        assert_eq!(read(r#"{"model":"m","max_tokens":"many"}"#), of(None));
        assert_eq!(read(r#"{"model":"m","model":"n"}"#), (None, None));
        assert_eq!(read("["), (None, None));
    }
}
