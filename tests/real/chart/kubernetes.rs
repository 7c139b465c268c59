//! Every object of the chart read by the types of the Kubernetes API.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::chart::custom_resources;
use crate::chart::render::cases;

/// Reads an object and writes it again: a field that the type does not have is lost, one with a wrong
/// type is an error.
fn check<T: DeserializeOwned + Serialize>(object: &Value) -> Result<(), String> {
    let read: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let again = serde_json::to_value(read).map_err(|error| error.to_string())?;
    let mut lost = Vec::new();
    differences(object, &again, "", &mut lost);
    if lost.is_empty() { Ok(()) } else { Err(format!("unknown or changed: {}", lost.join(", "))) }
}

/// Paths of values of `a` that `b` lacks or has changed. `b` may have fields with default values.
fn differences(a: &Value, b: &Value, path: &str, found: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                let other = b.get(key).unwrap_or(&Value::Null);
                differences(value, other, &format!("{path}/{key}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (n, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{path}/{n}"), found);
            }
        }
        (a, b) if a == b => {}
        _ => found.push(path.to_owned()),
    }
}

/// Checks an object by the type that its version and kind name.
fn check_object(object: &Value) -> Result<(), String> {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let check: fn(&Value) -> Result<(), String> = match (text("apiVersion"), text("kind")) {
        ("apps/v1", "Deployment") => check::<Deployment>,
        ("apps/v1", "StatefulSet") => check::<StatefulSet>,
        ("batch/v1", "Job") => check::<Job>,
        ("networking.k8s.io/v1", "NetworkPolicy") => check::<NetworkPolicy>,
        ("policy/v1", "PodDisruptionBudget") => check::<PodDisruptionBudget>,
        ("rbac.authorization.k8s.io/v1", "Role") => check::<Role>,
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => check::<RoleBinding>,
        ("v1", "ConfigMap") => check::<ConfigMap>,
        ("v1", "PersistentVolumeClaim") => check::<PersistentVolumeClaim>,
        ("v1", "Pod") => check::<Pod>,
        ("v1", "ResourceQuota") => check::<ResourceQuota>,
        ("v1", "Secret") => check::<Secret>,
        ("v1", "Service") => check::<Service>,
        ("v1", "ServiceAccount") => check::<ServiceAccount>,
        ("keda.sh/v1alpha1", "ScaledObject") => custom_resources::check_scaled_object,
        ("monitoring.coreos.com/v1", "ServiceMonitor") => custom_resources::check_service_monitor,
        (version, kind) => return Err(format!("no type for {version} {kind}")),
    };
    check(object)
}

#[test]
fn objects_fit_types_of_kubernetes() {
    for case in cases() {
        let objects = case.objects();
        assert!(objects.len() > 10, "{}: {}", case.name, objects.len());
        for object in objects {
            let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
            check_object(&object).unwrap_or_else(|e| panic!("{}: {kind} {name}: {e}", case.name));
        }
    }
}

#[test]
fn faults_of_objects_are_found() {
    let pod = |spec: Value| serde_json::json!({"apiVersion": "v1", "kind": "Pod", "spec": spec});
    let fault = |spec| check_object(&pod(spec)).expect_err("a fault");
    let containers = serde_json::json!([{"name": "a", "port": 1}]);
    let unknown = fault(serde_json::json!({"containers": containers}));
    assert_eq!(unknown, "unknown or changed: /spec/containers/0/port");
    let wrong = fault(serde_json::json!({"containers": [], "hostNetwork": "yes"}));
    assert!(wrong.contains("invalid type"), "{wrong}");
    let kind = serde_json::json!({"apiVersion": "v1", "kind": "Pods"});
    assert_eq!(check_object(&kind), Err("no type for v1 Pods".to_owned()));
}
