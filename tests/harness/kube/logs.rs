//! `pods/log`.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};

use super::cluster::Cluster;
use super::exec::container_name;
use super::rest::ObjectRequest;
use super::status::ApiError;

/// Answers a request for the log of a container.
pub(super) async fn handle(cluster: &Cluster, asked: &ObjectRequest) -> Result<Response, ApiError> {
    let key = asked.key()?;
    let pod = cluster.with(|state| state.objects.find(&key))?;
    let name = container_name(&pod, asked.query.text("container"), &key.name)?;
    let container = cluster.handle_of(&key).and_then(|handle| handle.container(&name));
    let Some(container) = container else {
        let message = format!(
            "container \"{name}\" in pod \"{}\" is waiting to start: ContainerCreating",
            key.name
        );
        return Err(ApiError::bad_request(message));
    };
    if asked.query.flag("follow") {
        container.ended().await;
    }
    let mut log = tokio::fs::read(container.log_path()).await.unwrap_or_default();
    if let Some(lines) = asked.query.number("tailLines") {
        let ends: Vec<usize> = log
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .map(|(at, _)| at + 1)
            .collect();
        let skipped = ends.len().saturating_sub(lines as usize);
        if let Some(at) = skipped.checked_sub(1).and_then(|last| ends.get(last)) {
            log.drain(..*at);
        }
    }
    log.truncate(asked.query.number("limitBytes").map_or(usize::MAX, |limit| limit as usize));
    Ok(([(header::CONTENT_TYPE, "text/plain")], Body::from(log)).into_response())
}
