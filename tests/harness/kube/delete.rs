//! Deletion of objects, and evictions.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::objects::{ObjectKey, list_object, now};
use super::pod_admission::is_terminal;
use super::rest::{ObjectRequest, json_response, success};
use super::selectors::ObjectSelector;
use super::status::ApiError;

/// Resources whose objects may have an owner.
const OWNED_RESOURCES: [&str; 6] =
    ["pods", "jobs", "networkpolicies", "secrets", "configmaps", "leases"];

/// Answers a deletion of one object, or of all that selectors match.
pub(super) fn delete(
    cluster: &Arc<Cluster>,
    asked: &ObjectRequest,
    options: &Value,
) -> Result<Response, ApiError> {
    let grace =
        options["gracePeriodSeconds"].as_u64().or_else(|| asked.query.number("gracePeriodSeconds"));
    if asked.name.is_some() {
        let key = asked.key()?;
        check_preconditions(cluster, asked, &key, &options["preconditions"])?;
        let policy = options["propagationPolicy"].as_str();
        if policy.unwrap_or_else(|| asked.query.text("propagationPolicy")) == "Orphan" {
            orphan_dependents(cluster, &*cluster.with(|state| state.objects.find(&key))?);
        }
        let object = delete_object(cluster, &key, grace)?;
        // Only pods answer with the object that was deleted.
        return Ok(if key.plural == "pods" {
            json_response(StatusCode::OK, &object)
        } else {
            deleted_status(asked, &object)
        });
    }
    let Some(namespace) = asked.namespace.as_deref() else {
        return Err(ApiError::method_not_allowed());
    };
    let selector = ObjectSelector::parse(
        asked.query.text("labelSelector"),
        asked.query.text("fieldSelector"),
    )?;
    let (keys, version): (Vec<ObjectKey>, u64) = cluster.with(|state| {
        let selected = state
            .objects
            .list(asked.resource.plural, Some(namespace))
            .filter(|(_, object)| selector.matches(object))
            .map(|(key, _)| key.clone())
            .collect();
        (selected, state.objects.version())
    });
    let deleted: Vec<Arc<Value>> =
        keys.iter().filter_map(|key| delete_object(cluster, key, grace).ok()).collect();
    Ok(json_response(StatusCode::OK, &list_object(asked.resource, version, &deleted)))
}

fn deleted_status(asked: &ObjectRequest, object: &Value) -> Response {
    let name = &object["metadata"]["name"];
    let uid = &object["metadata"]["uid"];
    let mut details = json!({"name": name, "kind": asked.resource.plural, "uid": uid});
    if !asked.resource.group.is_empty() {
        details["group"] = asked.resource.group.into();
    }
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    json_response(StatusCode::OK, &status)
}

fn check_preconditions(
    cluster: &Cluster,
    asked: &ObjectRequest,
    key: &ObjectKey,
    preconditions: &Value,
) -> Result<(), ApiError> {
    let object = cluster.with(|state| state.objects.find(key))?;
    for (field, name) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let wanted = &preconditions[field];
        let found = &object["metadata"][field];
        if wanted.is_string() && wanted != found {
            let cause = format!(
                "Precondition failed: {name} in precondition: {}, {name} in object meta: {}",
                wanted.as_str().unwrap_or_default(),
                found.as_str().unwrap_or_default()
            );
            let resource = asked.resource;
            return Err(ApiError::conflict(resource.plural, resource.group, &key.name, &cause));
        }
    }
    Ok(())
}

/// Deletes an object. A pod with processes and a time of grace stays until they are gone.
pub(super) fn delete_object(
    cluster: &Arc<Cluster>,
    key: &ObjectKey,
    grace: Option<u64>,
) -> Result<Arc<Value>, ApiError> {
    if key.plural == "pods" {
        return delete_pod(cluster, key, grace);
    }
    let object = cluster.with(|state| {
        let object = state.objects.find(key)?;
        state.objects.remove(key);
        Ok::<_, ApiError>(object)
    })?;
    delete_dependents(cluster, &object);
    cluster.wake();
    Ok(object)
}

fn delete_pod(
    cluster: &Arc<Cluster>,
    key: &ObjectKey,
    grace: Option<u64>,
) -> Result<Arc<Value>, ApiError> {
    let handle = cluster.handle_of(key);
    let (object, grace) = cluster.with(|state| {
        let pod = state.objects.find(key)?;
        let own = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        let mut grace = grace.unwrap_or(own);
        if pod["spec"]["nodeName"].is_null() || is_terminal(&pod) {
            grace = 0;
        }
        if let Some(old) = pod["metadata"]["deletionGracePeriodSeconds"].as_u64() {
            grace = grace.min(old);
        }
        if grace == 0 {
            let removed = state.objects.remove(key);
            return Ok((removed.unwrap_or(pod), 0));
        }
        let marked = state.objects.update(key, |pod| {
            let metadata = &mut pod["metadata"];
            metadata["deletionTimestamp"] = now().into();
            metadata["deletionGracePeriodSeconds"] = grace.into();
        });
        Ok::<_, ApiError>((marked.unwrap_or(pod), grace))
    })?;
    if let Some(handle) = handle {
        handle.delete(grace);
    }
    if grace == 0 {
        delete_dependents(cluster, &object);
        cluster.wake();
    }
    Ok(object)
}

/// Deletes the objects that an object owned, as the garbage collector does.
pub(super) fn delete_dependents(cluster: &Arc<Cluster>, owner: &Value) {
    for key in dependents(cluster, owner) {
        // One that is gone needs no deletion.
        drop(delete_object(cluster, &key, None));
    }
}

/// Deletes an object whose owners do not exist in its namespace, as the garbage collector does.
pub(super) fn delete_orphan(cluster: &Arc<Cluster>, plural: &'static str, object: &Value) {
    let metadata = &object["metadata"];
    let Some(owners) = metadata["ownerReferences"].as_array().filter(|list| !list.is_empty())
    else {
        return;
    };
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    let exists = |owner: &Value| {
        cluster.with(|state| {
            OWNED_RESOURCES
                .iter()
                .flat_map(|plural| state.objects.list(plural, Some(namespace)))
                .any(|(_, object)| object["metadata"]["uid"] == owner["uid"])
        })
    };
    if !owners.iter().any(exists) {
        let name = metadata["name"].as_str().unwrap_or_default();
        // One that is gone needs no deletion.
        drop(delete_object(cluster, &ObjectKey::new(plural, namespace, name), None));
    }
}

/// Takes the owner from the objects that an object owns.
fn orphan_dependents(cluster: &Cluster, owner: &Value) {
    let uid = &owner["metadata"]["uid"];
    for key in dependents(cluster, owner) {
        cluster.with(|state| {
            state.objects.update(&key, |object| {
                if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
                    owners.retain(|owner| owner["uid"] != *uid);
                }
            });
        });
    }
}

fn dependents(cluster: &Cluster, owner: &Value) -> Vec<ObjectKey> {
    let uid = &owner["metadata"]["uid"];
    let is_owned = |object: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *uid))
    };
    cluster.with(|state| {
        OWNED_RESOURCES
            .iter()
            .flat_map(|plural| state.objects.list(plural, None))
            .filter(|(_, object)| is_owned(object))
            .map(|(key, _)| key.clone())
            .collect()
    })
}

/// Answers an eviction by request.
pub(super) fn evict(cluster: &Arc<Cluster>, asked: &ObjectRequest) -> Result<Response, ApiError> {
    delete_object(cluster, &asked.key()?, None)?;
    Ok(success())
}
