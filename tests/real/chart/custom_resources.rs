//! Schemas of the custom resources in the chart: the fields that it uses, of the published definitions
//! of KEDA 2 and of the Prometheus operator.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Fields of every object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CustomResource<S> {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: CustomMetadata,
    spec: S,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CustomMetadata {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScaledObjectSpec {
    scale_target_ref: ScaleTarget,
    min_replica_count: u32,
    max_replica_count: u32,
    cooldown_period: u32,
    triggers: Vec<ScaleTrigger>,
}

/// A Deployment, unless it names another kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleTarget {
    name: String,
}

/// KEDA takes text only, also for numbers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleTrigger {
    #[serde(rename = "type")]
    scaler: String,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceMonitorSpec {
    selector: MonitorSelector,
    endpoints: Vec<MonitorEndpoint>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MonitorSelector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MonitorEndpoint {
    port: String,
    interval: String,
}

fn read<S: DeserializeOwned>(object: &Value) -> Result<CustomResource<S>, String> {
    let read: CustomResource<S> =
        serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let CustomMetadata { name, namespace, labels } = &read.metadata;
    if name.is_empty() || namespace.is_empty() || labels.is_empty() {
        return Err(format!("lacks a name, namespace or label: {:?}", read.metadata));
    }
    Ok(read)
}

/// Checks a ScaledObject.
pub(crate) fn check_scaled_object(object: &Value) -> Result<(), String> {
    let spec = read::<ScaledObjectSpec>(object)?.spec;
    if spec.scale_target_ref.name.is_empty() || spec.min_replica_count > spec.max_replica_count {
        return Err(format!("{spec:?}"));
    }
    let required: &[(&str, &[&str])] = &[
        ("prometheus", &["serverAddress", "query", "threshold"]),
        ("nats-jetstream", &["natsServerMonitoringEndpoint", "account", "stream", "consumer"]),
    ];
    for ScaleTrigger { scaler, metadata } in &spec.triggers {
        let Some((_, keys)) = required.iter().find(|(name, _)| name == scaler) else {
            return Err(format!("unknown trigger {scaler}"));
        };
        if let Some(key) = keys.iter().find(|key| !metadata.contains_key(**key)) {
            return Err(format!("{scaler} lacks {key}"));
        }
    }
    if spec.triggers.is_empty() || spec.cooldown_period == 0 {
        return Err("scales by nothing".to_owned());
    }
    Ok(())
}

/// Checks a ServiceMonitor.
pub(crate) fn check_service_monitor(object: &Value) -> Result<(), String> {
    let spec = read::<ServiceMonitorSpec>(object)?.spec;
    if spec.selector.match_labels.is_empty() || spec.endpoints.is_empty() {
        return Err("selects nothing".to_owned());
    }
    let bad = spec.endpoints.iter().find(|e| e.port.is_empty() || !e.interval.ends_with('s'));
    bad.map_or(Ok(()), |endpoint| Err(format!("{endpoint:?}")))
}

#[test]
fn faults_of_custom_resources_are_found() {
    let object = |spec: Value| {
        serde_json::json!({
            "apiVersion": "v", "kind": "k", "spec": spec,
            "metadata": {"name": "n", "namespace": "s", "labels": {"a": "b"}},
        })
    };
    let scaled = |threshold: Value| {
        object(serde_json::json!({
            "scaleTargetRef": {"name": "w"}, "minReplicaCount": 0, "maxReplicaCount": 1,
            "cooldownPeriod": 300,
            "triggers": [{"type": "prometheus", "metadata": {
                "serverAddress": "http://p", "query": "q", "threshold": threshold,
            }}],
        }))
    };
    assert_eq!(check_scaled_object(&scaled("5".into())), Ok(()));
    assert!(check_scaled_object(&scaled(5.into())).is_err(), "a number");
    let monitor = serde_json::json!({"selector": {"matchLabels": {}}, "endpoints": []});
    assert!(check_service_monitor(&object(monitor)).is_err());
}
