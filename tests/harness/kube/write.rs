//! Creation and change of objects.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::rest::{ObjectRequest, json_response};
use super::status::ApiError;
use super::{delete, jobs, patch, pod_admission, pod_run};

/// Answers a creation.
pub(super) fn create(
    cluster: &Arc<Cluster>,
    asked: &ObjectRequest,
    mut body: Value,
) -> Result<Response, ApiError> {
    let resource = asked.resource;
    let namespace = asked.namespace.clone().ok_or_else(ApiError::method_not_allowed)?;
    check_type(asked, &body)?;
    if !body["metadata"].is_object() {
        body["metadata"] = json!({});
    }
    let own = body["metadata"]["namespace"].as_str().unwrap_or(&namespace);
    if resource.namespaced && own != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    check_name(asked, &body)?;
    let is_dry = asked.query.get("dryRun").is_some();
    let object = cluster.with(|state| {
        if resource.namespaced {
            let key = super::objects::ObjectKey::new("namespaces", "", &namespace);
            state.objects.find(&key)?;
        }
        match resource.plural {
            "pods" => pod_admission::admit(state, &namespace, &mut body)?,
            "secrets" => encode_string_data(&mut body),
            _ => {}
        }
        if is_dry {
            return Ok(Arc::new(body));
        }
        state.objects.create(resource, &namespace, body)
    })?;
    if !is_dry {
        match resource.plural {
            "pods" => pod_run::start(cluster, &object),
            "jobs" => jobs::start(cluster, &object),
            _ => {}
        }
        delete::delete_orphan(cluster, resource.plural, &object);
    }
    Ok(json_response(StatusCode::CREATED, &object))
}

/// Answers a replacement of an object or of its status.
pub(super) fn update(
    cluster: &Cluster,
    asked: &ObjectRequest,
    body: Value,
) -> Result<Response, ApiError> {
    let key = asked.key()?;
    check_type(asked, &body)?;
    let object = cluster.with(|state| {
        let old = state.objects.find(&key)?;
        check_version(asked, &old, &body)?;
        let new = merged(asked, &old, body)?;
        Ok::<_, ApiError>(state.objects.update(&key, |object| *object = new))
    })?;
    cluster.wake();
    let object = object.ok_or_else(ApiError::path_not_found)?;
    Ok(json_response(StatusCode::OK, &object))
}

/// Answers a patch of an object or of its status.
pub(super) fn patch(
    cluster: &Arc<Cluster>,
    asked: &ObjectRequest,
    content_type: &str,
    body: &Value,
) -> Result<Response, ApiError> {
    let key = asked.key()?;
    let is_applied = content_type.starts_with("application/apply-patch");
    if is_applied && cluster.with(|state| state.objects.get(&key).is_none()) {
        let mut body = body.clone();
        body["metadata"]["name"] = key.name.into();
        return create(cluster, asked, body);
    }
    let object = cluster.with(|state| {
        let old = state.objects.find(&key)?;
        let mut new = Value::clone(&old);
        patch::apply(&mut new, content_type, body)?;
        check_version(asked, &old, &new)?;
        let new = merged(asked, &old, new)?;
        Ok::<_, ApiError>(state.objects.update(&key, |object| *object = new))
    })?;
    cluster.wake();
    let object = object.ok_or_else(ApiError::path_not_found)?;
    Ok(json_response(StatusCode::OK, &object))
}

fn check_type(asked: &ObjectRequest, body: &Value) -> Result<(), ApiError> {
    let resource = asked.resource;
    let kind = body["kind"].as_str().unwrap_or(resource.kind);
    if kind != resource.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}: no kind \"{kind}\" is registered \
             for version \"{}\"",
            resource.version, resource.kind, resource.version
        )));
    }
    Ok(())
}

fn check_name(asked: &ObjectRequest, body: &Value) -> Result<(), ApiError> {
    let kind = asked.resource.kind;
    let metadata = &body["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        let prefix = metadata["generateName"].as_str().unwrap_or_default();
        if prefix.is_empty() {
            let cause = "Required value: name or generateName is required".to_owned();
            return Err(ApiError::invalid(kind, "", &[("metadata.name".to_owned(), cause)]));
        }
        return Ok(());
    }
    if !is_subdomain(name) {
        let cause = format!(
            "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case \
             alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
             character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        );
        return Err(ApiError::invalid(kind, name, &[("metadata.name".to_owned(), cause)]));
    }
    Ok(())
}

/// Whether a name is a DNS subdomain.
fn is_subdomain(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !label.is_empty()
                && label.chars().all(inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

fn check_version(asked: &ObjectRequest, old: &Value, new: &Value) -> Result<(), ApiError> {
    let wanted = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if wanted.is_empty() || old["metadata"]["resourceVersion"] == wanted {
        return Ok(());
    }
    let name = asked.name.as_deref().unwrap_or_default();
    let cause = "the object has been modified; please apply your changes to the latest version and \
                 try again";
    Err(ApiError::conflict(asked.resource.plural, asked.resource.group, name, cause))
}

/// The new object: only the status changes through `status`, and only the rest without it. Fields
/// that the server owns stay.
fn merged(asked: &ObjectRequest, old: &Value, mut new: Value) -> Result<Value, ApiError> {
    if asked.subresource.as_deref() == Some("status") {
        let mut object = old.clone();
        object["status"] = new["status"].take();
        return Ok(object);
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        match &old["metadata"][field] {
            Value::Null => {
                if let Some(metadata) = new["metadata"].as_object_mut() {
                    metadata.remove(field);
                }
            }
            value => new["metadata"][field] = value.clone(),
        }
    }
    new["apiVersion"] = old["apiVersion"].clone();
    new["kind"] = old["kind"].clone();
    if asked.resource.plural == "pods" {
        new["status"] = old["status"].clone();
        pod_admission::check_update(old, &new)?;
    }
    Ok(new)
}

fn encode_string_data(secret: &mut Value) {
    let Some(texts) = secret.as_object_mut().and_then(|secret| secret.remove("stringData")) else {
        return;
    };
    for (name, text) in texts.as_object().into_iter().flatten() {
        let text = text.as_str().unwrap_or_default();
        secret["data"][name] = data_encoding::BASE64.encode(text.as_bytes()).into();
    }
}
