//! Lists and watches of objects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::fault_plan::ExpiredForm;
use super::objects::{ObjectChange, list_object};
use super::resources::ResourceType;
use super::rest::{ObjectRequest, json_response};
use super::selectors::ObjectSelector;
use super::status::ApiError;

/// Time of a watch without `timeoutSeconds`; servers choose 30 to 60 minutes.
const WATCH_TIMEOUT: Duration = Duration::from_secs(1800);

/// Time between two bookmarks; servers send one a minute.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(5);

/// Answers a list.
pub(super) fn list(cluster: &Cluster, asked: &ObjectRequest) -> Result<Response, ApiError> {
    let selector = selector(asked)?;
    let (list, oldest) = cluster.with(|state| {
        let mut items: Vec<_> = state
            .objects
            .list(asked.resource.plural, asked.namespace.as_deref())
            .filter(|(_, object)| selector.matches(object))
            .map(|(key, object)| (format!("{}/{}", key.namespace, key.name), Arc::clone(object)))
            .collect();
        let mut version = state.objects.version();
        if let Some((at, after)) = asked.query.text("continue").split_once(':') {
            version = at.parse().unwrap_or_default();
            items.retain(|(name, _)| name.as_str() > after);
        }
        let limit = asked.query.number("limit").unwrap_or(0) as usize;
        let remaining = if limit == 0 { 0 } else { items.len().saturating_sub(limit) };
        items.truncate(items.len() - remaining);
        let objects: Vec<_> = items.iter().map(|(_, object)| Arc::clone(object)).collect();
        let mut list = list_object(asked.resource, version, &objects);
        if remaining > 0
            && let Some((last, _)) = items.last()
        {
            list["metadata"]["continue"] = format!("{version}:{last}").into();
            list["metadata"]["remainingItemCount"] = remaining.into();
        }
        ((version, list), state.objects.oldest())
    });
    if list.0 < oldest {
        let message = "The provided continue parameter is too old to display a consistent list result. \
                       You can start a new list without the continue parameter.";
        return Err(ApiError::new(410, "Expired", message));
    }
    Ok(json_response(StatusCode::OK, &list.1))
}

fn selector(asked: &ObjectRequest) -> Result<ObjectSelector, ApiError> {
    let mut fields = asked.query.text("fieldSelector").to_owned();
    if let Some(name) = &asked.name {
        fields = format!("metadata.name={name}");
    }
    ObjectSelector::parse(asked.query.text("labelSelector"), &fields)
}

/// A watch that runs.
struct RunningWatch {
    cluster: Arc<Cluster>,
    resource: &'static ResourceType,
    namespace: Option<String>,
    selector: ObjectSelector,
    versions: watch::Receiver<u64>,
    seen: u64,
    ready: VecDeque<Value>,
    end: Instant,
    next_bookmark: Option<Instant>,
    is_over: bool,
}

/// Answers a watch with a stream of events.
pub(super) fn watch(cluster: Arc<Cluster>, asked: &ObjectRequest) -> Result<Response, ApiError> {
    let selector = selector(asked)?;
    let start = asked.query.number("resourceVersion").unwrap_or(0);
    let timeout = asked.query.number("timeoutSeconds").map_or(WATCH_TIMEOUT, Duration::from_secs);
    let mut watch = RunningWatch {
        versions: cluster.versions(),
        resource: asked.resource,
        namespace: asked.namespace.clone(),
        selector,
        seen: start,
        ready: VecDeque::new(),
        end: Instant::now() + timeout,
        next_bookmark: asked
            .query
            .flag("allowWatchBookmarks")
            .then(|| Instant::now() + BOOKMARK_INTERVAL),
        is_over: false,
        cluster,
    };
    let sends_objects = asked.query.flag("sendInitialEvents");
    watch.begin(start, sends_objects)?;
    let events = stream::unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(format!("{event}\n"))), watch))
    });
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    Ok((content_type, Body::from_stream(events)).into_response())
}

impl RunningWatch {
    /// Begins with the objects that exist, or checks that the version is not too old.
    fn begin(&mut self, start: u64, sends_objects: bool) -> Result<(), ApiError> {
        let cluster = Arc::clone(&self.cluster);
        cluster.with(|state| {
            let oldest = state.objects.oldest();
            if start == 0 || sends_objects {
                for (_, object) in
                    state.objects.list(self.resource.plural, self.namespace.as_deref())
                {
                    if self.selector.matches(object) {
                        self.ready.push_back(json!({"type": "ADDED", "object": **object}));
                    }
                }
                self.seen = state.objects.version();
                if sends_objects {
                    let mut end = self.bookmark();
                    let mark = json!({"k8s.io/initial-events-end": "true"});
                    end["object"]["metadata"]["annotations"] = mark;
                    self.ready.push_back(end);
                }
            } else if start < oldest && state.faults.expired_form == ExpiredForm::HttpStatus {
                return Err(ApiError::expired(start, oldest));
            }
            Ok(())
        })
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            self.versions.mark_unchanged();
            self.read_changes();
            if !self.ready.is_empty() {
                continue;
            }
            let wake = self.next_bookmark.unwrap_or(self.end).min(self.end);
            tokio::select! {
                changed = self.versions.changed() => changed.ok()?,
                () = tokio::time::sleep_until(wake) => self.pause_over(),
            }
        }
    }

    fn pause_over(&mut self) {
        let now = Instant::now();
        if now >= self.end {
            self.is_over = true;
        } else if self.next_bookmark.is_some_and(|at| at <= now) {
            self.next_bookmark = Some(now + BOOKMARK_INTERVAL);
            self.ready.push_back(self.bookmark());
        }
    }

    fn bookmark(&self) -> Value {
        json!({"type": "BOOKMARK", "object": {
            "kind": self.resource.kind, "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": self.seen.to_string(), "creationTimestamp": null},
        }})
    }

    fn read_changes(&mut self) {
        let cluster = Arc::clone(&self.cluster);
        cluster.with(|state| {
            let oldest = state.objects.oldest();
            if self.seen < oldest {
                let error = ApiError::expired(self.seen, oldest);
                self.ready.push_back(json!({"type": "ERROR", "object": error.to_value()}));
                self.is_over = true;
                return;
            }
            for change in state.objects.changes_after(self.seen) {
                let concerned = change.plural == self.resource.plural
                    && self.namespace.as_ref().is_none_or(|name| *name == change.namespace);
                if concerned && let Some(event) = self.event(change) {
                    self.ready.push_back(event);
                }
            }
            self.seen = state.objects.version();
        });
    }

    /// The event of a change as the selector sees it.
    fn event(&self, change: &ObjectChange) -> Option<Value> {
        let before = change.before.as_ref().is_some_and(|object| self.selector.matches(object));
        let after = !change.removed && self.selector.matches(&change.object);
        let kind = match (before, after) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(json!({"type": kind, "object": *change.object}))
    }
}
