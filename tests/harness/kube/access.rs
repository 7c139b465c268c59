//! Permissions of the client.

use serde_json::{Value, json};

use super::cluster::Cluster;
use super::rest::ObjectRequest;
use super::status::ApiError;

/// User of every request.
const USER: &str = "system:serviceaccount:default:rollout";

/// Refuses a request that is denied.
pub(super) fn check(
    cluster: &Cluster,
    asked: &ObjectRequest,
    verb: &str,
    resource: &str,
) -> Result<(), ApiError> {
    let (starting, is_denied) =
        cluster.with(|state| (state.faults.starting_code(), state.faults.denies(verb, resource)));
    if starting == Some(401) {
        return Err(ApiError::unauthorized());
    }
    if starting.is_none() && !is_denied {
        return Ok(());
    }
    let place = match asked.namespace.as_deref() {
        None | Some("") => "at the cluster scope".to_owned(),
        Some(namespace) => format!("in the namespace \"{namespace}\""),
    };
    let cause = format!(
        "User \"{USER}\" cannot {verb} resource \"{resource}\" in API group \"{}\" {place}",
        asked.resource.group
    );
    Err(ApiError::forbidden(
        asked.resource.plural,
        asked.name.as_deref().unwrap_or_default(),
        &cause,
    ))
}

/// Answers a `SelfSubjectAccessReview`.
pub(super) fn review(cluster: &Cluster, mut review: Value) -> Value {
    let attributes = &review["spec"]["resourceAttributes"];
    let verb = attributes["verb"].as_str().unwrap_or_default();
    let mut resource = attributes["resource"].as_str().unwrap_or_default().to_owned();
    if let Some(subresource) = attributes["subresource"].as_str().filter(|name| !name.is_empty()) {
        resource = format!("{resource}/{subresource}");
    }
    let denied = cluster.with(|state| state.faults.denies(verb, &resource));
    review["kind"] = "SelfSubjectAccessReview".into();
    review["apiVersion"] = "authorization.k8s.io/v1".into();
    review["status"] = json!({"allowed": !denied});
    review
}
