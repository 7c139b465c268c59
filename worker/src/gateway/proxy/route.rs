//! Requests of agents: their execution, their endpoint and their body.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use rollout_protocol::limits;
use rollout_protocol::record::ModelEndpoint;
use rollout_protocol::spec::gateway::ModelDialect;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::call::Call;
use super::listener::ListenerScope;
use super::reply_body::ReplyBody;
use super::server::{self, ModelServer};
use super::{OpenTry, headers};
use crate::gateway::{GatewayReply, dialect, recorder};
use crate::supervise;

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
        let body = dialect::error_body(dialect, self.status.as_u16(), &self.message);
        let mut response = Response::new(ReplyBody::whole(body.clone()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        (response, body)
    }
}

/// Answers a request. The call itself runs in a task of its own: its record is completed also if the
/// agent breaks off.
pub(super) async fn answer(
    scope: &ListenerScope,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let path = request.uri().path().to_owned();
    let Some((dialect, endpoint)) = find_endpoint(&path, request.method()) else {
        let refusal = OwnReply::new(StatusCode::NOT_FOUND, "the gateway has no such endpoint");
        return refusal.response(dialect_of(&path)).0;
    };
    match accept(scope, request, dialect, endpoint).await {
        Ok((opened, call)) => run(&opened, call, dialect).await,
        Err(refusal) => refusal.response(dialect).0,
    }
}

async fn run(opened: &OpenTry, call: Call, dialect: ModelDialect) -> Response<ReplyBody> {
    let (sender, receiver) = oneshot::channel();
    opened.keep(supervise::spawn("model-call", call.run(sender)));
    receiver.await.unwrap_or_else(|_| {
        let refusal = OwnReply::new(StatusCode::BAD_GATEWAY, "the call has no reply");
        refusal.response(dialect).0
    })
}

/// A call of an agent that runs in this process.
pub(super) async fn call_directly(
    opened: &Arc<OpenTry>,
    dialect: ModelDialect,
    path: &str,
    body: Bytes,
) -> GatewayReply {
    let response = match direct_call(opened, dialect, path, body).await {
        Ok(call) => run(opened, call, dialect).await,
        Err(refusal) => refusal.response(dialect).0,
    };
    let (head, body) = response.into_parts();
    let retry_after = server::asked_wait(&head.headers);
    match body.collect().await {
        Ok(body) => {
            GatewayReply { status: head.status.as_u16(), retry_after, body: body.to_bytes() }
        }
        Err(error) => {
            let text = dialect::error_body(dialect, 502, &error.to_string());
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
    let endpoint = dialect::endpoint(dialect, path)
        .ok_or_else(|| OwnReply::new(StatusCode::NOT_FOUND, "the gateway has no such endpoint"))?;
    let server = server_of(opened, dialect)?;
    let memory = Arc::clone(&opened.memory).acquire_many_owned(kibibytes(body.len())).await;
    let json = HeaderValue::from_static("application/json");
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
    if dialect == ModelDialect::Anthropic {
        let version = HeaderName::from_static("anthropic-version");
        headers.insert(version, HeaderValue::from_static("2023-06-01"));
    }
    Ok(Call {
        opened: Arc::clone(opened),
        server,
        endpoint,
        path: dialect::upstream_path(endpoint).to_owned(),
        headers,
        body,
        _memory: memory.expect("the semaphore is never closed"),
    })
}

fn server_of(opened: &OpenTry, dialect: ModelDialect) -> Result<Arc<ModelServer>, OwnReply> {
    opened.servers.get(&dialect).cloned().ok_or_else(|| {
        let message = format!("the job has no model server of the dialect {dialect}");
        OwnReply::new(StatusCode::NOT_FOUND, message)
    })
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

fn dialect_of(path: &str) -> ModelDialect {
    if path.starts_with("/anthropic") { ModelDialect::Anthropic } else { ModelDialect::Openai }
}

fn find_endpoint(path: &str, method: &Method) -> Option<(ModelDialect, ModelEndpoint)> {
    let dialect = dialect_of(path);
    let below = path.strip_prefix('/')?.strip_prefix(dialect.as_str())?;
    let endpoint = dialect::endpoint(dialect, below).filter(|_| method == Method::POST)?;
    Some((dialect, endpoint))
}

/// Checks a request and reads its body.
async fn accept(
    scope: &ListenerScope,
    request: Request<Incoming>,
    dialect: ModelDialect,
    endpoint: ModelEndpoint,
) -> Result<(Arc<OpenTry>, Call), OwnReply> {
    let opened = headers::sent_key(request.headers()).and_then(|key| scope.find(key));
    let opened = opened.filter(|opened| !*opened.closed.borrow());
    let opened = opened.ok_or_else(|| {
        OwnReply::new(StatusCode::UNAUTHORIZED, "the key is not that of an execution that runs")
    })?;
    let server = server_of(&opened, dialect)?;
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let (head, body) = request.into_parts();
    let (body, memory) = read_body(body, &opened).await?;
    let path = format!("{}{query}", dialect::upstream_path(endpoint));
    let opened_too = Arc::clone(&opened);
    let call = Call {
        opened: opened_too,
        server,
        endpoint,
        path,
        headers: head.headers,
        body,
        _memory: memory,
    };
    Ok((opened, call))
}

/// Reads a body, when the execution has memory for it.
async fn read_body(
    body: Incoming,
    opened: &OpenTry,
) -> Result<(Bytes, OwnedSemaphorePermit), OwnReply> {
    let most = limits::GATEWAY_REQUEST_BYTES;
    let too_large = || {
        let message = format!("the request has more than {most} bytes");
        OwnReply::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let announced = body.size_hint().upper().map_or(Ok(most), usize::try_from);
    let announced = announced.ok().filter(|bytes| *bytes <= most).ok_or_else(too_large)?;
    let memory = Arc::clone(&opened.memory).acquire_many_owned(kibibytes(announced)).await;
    let mut memory = memory.expect("the semaphore is never closed");
    let body = match Limited::new(body, most).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
        Err(error) => {
            let message = format!("cannot read the request: {error}");
            return Err(OwnReply::new(StatusCode::BAD_REQUEST, message));
        }
    };
    let unused = memory.num_permits().saturating_sub(kibibytes(body.len()) as usize);
    drop(memory.split(unused));
    Ok((body, memory))
}

/// Memory for a body, rounded up.
fn kibibytes(bytes: usize) -> u32 {
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX)
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
