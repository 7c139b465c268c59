//! Requests of the REST API: paths, access, and the verbs of objects.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::cluster::{Cluster, RecordedRequest};
use super::fault_plan::RequestFault;
use super::objects::ObjectKey;
use super::query::QueryParameters;
use super::resources::{self, ResourceType};
use super::status::ApiError;
use super::{access, delete, exec, list, logs, write};

/// Largest body of a request, as in etcd.
const BODY_LIMIT: usize = 3 << 20;

/// Reason of the error that becomes a dropped connection.
const DROP_REASON: &str = "DroppedConnection";

/// Mark of an answer in whose place the connection is closed.
#[derive(Debug, Clone)]
pub(super) struct DroppedConnection;

/// A request about objects.
#[derive(Debug)]
pub(super) struct ObjectRequest {
    pub(super) resource: &'static ResourceType,
    /// `None` for all namespaces; empty for resources without namespaces.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
    pub(super) query: QueryParameters,
}

impl ObjectRequest {
    /// Key of the object that is named.
    pub(super) fn key(&self) -> Result<ObjectKey, ApiError> {
        let name = self.name.as_deref().ok_or_else(ApiError::method_not_allowed)?;
        Ok(ObjectKey::new(
            self.resource.plural,
            self.namespace.as_deref().unwrap_or_default(),
            name,
        ))
    }

    fn parse(path: &str, query: QueryParameters) -> Option<Self> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if *plural != "status" => {
                (Some((*namespace).to_owned()), [&[*plural], rest].concat())
            }
            rest => (None, rest.to_vec()),
        };
        let (plural, rest) = rest.split_first()?;
        let resource = ResourceType::find(group, version, plural)?;
        let namespace = if resource.namespaced { namespace } else { Some(String::new()) };
        let mut rest = rest.iter().map(|&segment| segment.to_owned());
        let (name, subresource) = (rest.next(), rest.next());
        Some(Self { resource, namespace, name, subresource, query })
    }

    fn verb(&self, method: &Method) -> Result<&'static str, ApiError> {
        let named = self.name.is_some();
        Ok(match *method {
            Method::GET if self.query.flag("watch") => "watch",
            Method::GET if named => "get",
            Method::GET => "list",
            Method::POST => "create",
            Method::PUT if named => "update",
            Method::PATCH if named => "patch",
            Method::DELETE if named => "delete",
            Method::DELETE => "deletecollection",
            _ => return Err(ApiError::method_not_allowed()),
        })
    }

    fn resource_name(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.resource.plural),
            None => self.resource.plural.to_owned(),
        }
    }
}

/// Answers a request.
pub(super) async fn handle(
    cluster: Arc<Cluster>,
    token: Arc<str>,
    request: Request<Body>,
) -> Response {
    match answer(cluster, &token, request).await {
        Ok(response) => response,
        Err(error) if error.reason == DROP_REASON => {
            let mut response = Response::default();
            response.extensions_mut().insert(DroppedConnection);
            response
        }
        Err(error) => error_response(&error),
    }
}

async fn answer(
    cluster: Arc<Cluster>,
    token: &str,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    // `kubectl` sends no token without TLS, so that only a wrong one is refused.
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if bearer.is_some_and(|bearer| bearer.strip_prefix("Bearer ") != Some(token)) {
        return Err(ApiError::unauthorized());
    }
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    if let ["healthz" | "livez" | "readyz"] = segments.as_slice() {
        return Ok("ok".into_response());
    }
    if let Some(document) = resources::document(&segments) {
        return Ok(json_response(StatusCode::OK, &document));
    }
    if segments.last() == Some(&"selfsubjectaccessreviews") {
        let body = read_json(request).await?;
        return Ok(json_response(StatusCode::CREATED, &access::review(&cluster, body)));
    }
    let query = QueryParameters::parse(request.uri().query().unwrap_or_default());
    let asked = ObjectRequest::parse(&path, query).ok_or_else(ApiError::path_not_found)?;
    let verb = asked.verb(request.method())?;
    record(&cluster, &asked, verb);
    let late_by = apply_fault(&cluster, &asked, verb).await?;
    access::check(&cluster, &asked, verb, &asked.resource_name())?;
    let answer = dispatch(cluster, asked, verb, request).await;
    if let Some(late_by) = late_by {
        tokio::time::sleep(late_by).await;
    }
    answer
}

async fn dispatch(
    cluster: Arc<Cluster>,
    asked: ObjectRequest,
    verb: &str,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    match (asked.resource.plural, asked.subresource.as_deref()) {
        ("pods", Some("exec")) => return exec::handle(cluster, &asked, request).await,
        ("pods", Some("log")) => return logs::handle(&cluster, &asked).await,
        ("pods", Some("eviction")) => return delete::evict(&cluster, &asked),
        (_, None | Some("status")) => {}
        _ => return Err(ApiError::path_not_found()),
    }
    match verb {
        "get" => {
            let object = cluster.with(|state| state.objects.find(&asked.key()?))?;
            Ok(json_response(StatusCode::OK, &object))
        }
        "list" => list::list(&cluster, &asked),
        "watch" => list::watch(cluster, &asked),
        "create" => {
            let body = read_json(request).await?;
            write::create(&cluster, &asked, body)
        }
        "update" => {
            let body = read_json(request).await?;
            write::update(&cluster, &asked, body)
        }
        "patch" => {
            let content_type = request.headers().get(header::CONTENT_TYPE).cloned();
            let body = read_json(request).await?;
            let content_type = content_type.as_ref().and_then(|value| value.to_str().ok());
            write::patch(&cluster, &asked, content_type.unwrap_or_default(), &body)
        }
        _ => {
            let body = read_body(request).await?;
            let options = serde_json::from_slice(&body).unwrap_or(Value::Null);
            delete::delete(&cluster, &asked, &options)
        }
    }
}

fn record(cluster: &Cluster, asked: &ObjectRequest, verb: &'static str) {
    let request = RecordedRequest {
        verb,
        resource: asked.resource_name(),
        namespace: asked.namespace.clone().unwrap_or_default(),
        name: asked.name.clone().unwrap_or_default(),
    };
    cluster.with(|state| state.requests.push(request));
}

/// Shows the fault of a request. Returns by how much its answer is late.
async fn apply_fault(
    cluster: &Cluster,
    asked: &ObjectRequest,
    verb: &str,
) -> Result<Option<Duration>, ApiError> {
    let resource = asked.resource_name();
    match cluster.with(|state| state.faults.take_request(verb, &resource)) {
        None => Ok(None),
        Some(RequestFault::LateAnswer(time)) => Ok(Some(time)),
        Some(RequestFault::Throttle(seconds)) => Err(ApiError::too_many_requests(seconds)),
        Some(RequestFault::Error(code, message)) => {
            let reason = match code {
                500 => "InternalError",
                503 => "ServiceUnavailable",
                504 => "Timeout",
                _ => "Unknown",
            };
            Err(ApiError::new(code, reason, message))
        }
        Some(RequestFault::Slow(time)) => {
            tokio::time::sleep(time).await;
            Ok(None)
        }
        Some(RequestFault::Drop) => Err(ApiError::new(0, DROP_REASON, "")),
    }
}

/// An answer with an object.
pub(super) fn json_response(status: StatusCode, object: &Value) -> Response {
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, object.to_string()).into_response()
}

pub(super) fn error_response(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_response(status, &error.to_value());
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// The `Status` of a success without an object.
pub(super) fn success() -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    json_response(StatusCode::OK, &status)
}

async fn read_body(request: Request<Body>) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(request.into_body(), BODY_LIMIT).await.map_err(|_| {
        let message = format!("Request entity too large: limit is {BODY_LIMIT}");
        ApiError::new(413, "RequestEntityTooLarge", message)
    })
}

async fn read_json(request: Request<Body>) -> Result<Value, ApiError> {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_some_and(|kind| kind.as_bytes().ends_with(b"protobuf")) {
        let message = "the body of the request was in an unknown format - accepted media types \
                       include: application/json";
        return Err(ApiError::new(415, "UnsupportedMediaType", message));
    }
    let body = read_body(request).await?;
    serde_json::from_slice(&body).map_err(|error| {
        ApiError::bad_request(format!("the object provided is unrecognized: {error}"))
    })
}
