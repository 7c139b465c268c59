//! `pods/exec`: checks of a request, and the upgrade to a websocket.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts as _;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::{Method, Request, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

use super::cluster::Cluster;
use super::exec_session::{ExecSession, ExecStreams};
use super::fault_plan::{ExecFault, refused_upgrade};
use super::objects::ObjectKey;
use super::rest::ObjectRequest;
use super::status::ApiError;

/// Protocols of exec, the preferred one first.
pub(super) const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// Largest message that a client may send.
const MESSAGE_LIMIT: usize = 64 << 20;

/// Answers an exec.
pub(super) async fn handle(
    cluster: Arc<Cluster>,
    asked: &ObjectRequest,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let key = asked.key()?;
    let pod = cluster.with(|state| state.objects.find(&key))?;
    let container = container_name(&pod, asked.query.text("container"), &key.name)?;
    if pod["spec"]["nodeName"].is_null() {
        let message = format!("pod {} does not have a host assigned", key.name);
        return Err(ApiError::bad_request(message));
    }
    let command = asked.query.all("command");
    if command.is_empty() {
        return Err(ApiError::bad_request("you must specify at least 1 command for the container"));
    }
    let offered: Vec<&'static str> = cluster.with(|state| {
        let protocols = &state.faults.exec_protocols;
        PROTOCOLS
            .into_iter()
            .filter(|protocol| protocols.is_empty() || protocols.contains(protocol))
            .collect()
    });
    let protocol = negotiate(&request, &offered)?;
    let fault = cluster.with(|state| state.faults.take_exec(&command));
    if let Some(ExecFault::Refuse(code)) = fault {
        return Err(refused_upgrade(code));
    }
    if protocol != PROTOCOLS[0] && !is_running(&cluster, &key, &container) {
        let message =
            format!("unable to upgrade connection: container not found (\"{container}\")");
        return Err(ApiError::internal(message));
    }
    let streams = ExecStreams {
        stdin: asked.query.flag("stdin"),
        stdout: asked.query.flag("stdout"),
        stderr: asked.query.flag("stderr"),
        tty: asked.query.flag("tty"),
        can_half_close: protocol == PROTOCOLS[0],
    };
    let session = ExecSession { key, container, command, streams, fault };
    let (mut parts, _) = request.into_parts();
    // Clients upgrade by POST, too.
    parts.method = Method::GET;
    let upgrade = match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
        Ok(upgrade) => upgrade.max_message_size(MESSAGE_LIMIT).max_frame_size(MESSAGE_LIMIT),
        Err(refused) => return Ok(refused.into_response()),
    };
    Ok(upgrade.protocols([protocol]).on_upgrade(move |socket| session.run(cluster, socket)))
}

/// The protocol that the client prefers among those offered.
fn negotiate(request: &Request<Body>, offered: &[&'static str]) -> Result<&'static str, ApiError> {
    let headers = request.headers();
    let is_websocket = headers
        .get(header::UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    if !is_websocket {
        return Err(ApiError::bad_request("Upgrade request required"));
    }
    let wanted: Vec<&str> = headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    wanted
        .iter()
        .find_map(|wanted| offered.iter().find(|offered| *offered == wanted))
        .copied()
        .ok_or_else(|| {
            let message = format!(
                "unable to negotiate protocol: client supports {wanted:?}, \
                                   server accepts {offered:?}"
            );
            ApiError::new(403, "Forbidden", message)
        })
}

/// The container that is meant.
pub(super) fn container_name(pod: &Value, asked: &str, name: &str) -> Result<String, ApiError> {
    let names: Vec<&str> = ["containers", "initContainers"]
        .iter()
        .filter_map(|list| pod["spec"][list].as_array())
        .flatten()
        .filter_map(|container| container["name"].as_str())
        .collect();
    let main = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    if asked.is_empty() {
        return match names.first() {
            Some(only) if main == 1 => Ok((*only).to_owned()),
            _ => Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                names.join(" ")
            ))),
        };
    }
    if names.contains(&asked) {
        Ok(asked.to_owned())
    } else {
        Err(ApiError::bad_request(format!("container {asked} is not valid for pod {name}")))
    }
}

/// Whether a container of a pod has begun and not ended.
pub(super) fn is_running(cluster: &Cluster, key: &ObjectKey, container: &str) -> bool {
    cluster
        .handle_of(key)
        .and_then(|handle| handle.container(container))
        .is_some_and(|container| container.exit_code().is_none())
}
