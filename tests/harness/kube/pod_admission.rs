//! Validation, defaults and quotas of new pods.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::cluster::ClusterState;
use super::pod_status::is_sidecar;
use super::quantity::{format_milli, parse_milli};
use super::status::ApiError;

/// Checks a new pod and fills in its defaults.
pub(super) fn admit(
    state: &mut ClusterState,
    namespace: &str,
    pod: &mut Value,
) -> Result<(), ApiError> {
    validate(pod)?;
    set_defaults(pod);
    if let Some(message) = &state.faults.admission_denial {
        let cause =
            format!("admission webhook \"policy.example.com\" denied the request: {message}");
        return Err(ApiError::new(403, "Forbidden", cause));
    }
    check_quotas(state, namespace, pod)?;
    pod["status"] = json!({"phase": "Pending", "qosClass": quality_class(pod)});
    Ok(())
}

/// Checks a changed pod: of its spec, only images and a few numbers may change.
pub(super) fn check_update(old: &Value, new: &Value) -> Result<(), ApiError> {
    let frozen = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("activeDeadlineSeconds");
            spec.remove("tolerations");
            spec.remove("terminationGracePeriodSeconds");
        }
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                container["image"] = Value::Null;
            }
        }
        spec
    };
    if frozen(old) == frozen(new) {
        return Ok(());
    }
    let cause = "Forbidden: pod updates may not change fields other than \
                 `spec.containers[*].image`,`spec.initContainers[*].image`,\
                 `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                 tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                 previously negative)";
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    Err(ApiError::invalid("Pod", name, &[("spec".to_owned(), cause.to_owned())]))
}

fn validate(pod: &Value) -> Result<(), ApiError> {
    let mut causes: Vec<(String, String)> = Vec::new();
    let spec = &pod["spec"];
    let containers = spec["containers"].as_array().map_or(&[][..], Vec::as_slice);
    if containers.is_empty() {
        causes.push(("spec.containers".to_owned(), "Required value".to_owned()));
    }
    let mut names: Vec<&str> = Vec::new();
    for (list, containers) in [
        ("containers", containers),
        ("initContainers", spec["initContainers"].as_array().map_or(&[][..], Vec::as_slice)),
    ] {
        for (index, container) in containers.iter().enumerate() {
            let field = |name: &str| format!("spec.{list}[{index}].{name}");
            match container["name"].as_str().unwrap_or_default() {
                "" => causes.push((field("name"), "Required value".to_owned())),
                name if names.contains(&name) => {
                    causes.push((field("name"), format!("Duplicate value: \"{name}\"")));
                }
                name => names.push(name),
            }
            if container["image"].as_str().unwrap_or_default().is_empty() {
                causes.push((field("image"), "Required value".to_owned()));
            }
            if list == "initContainers"
                && !is_sidecar(container)
                && !container["startupProbe"].is_null()
            {
                let cause = "Forbidden: may not be set for init containers without \
                             restartPolicy=Always";
                causes.push((field("startupProbe"), cause.to_owned()));
            }
            validate_container(spec, container, &field, &mut causes);
        }
    }
    validate_host_aliases(spec, &mut causes);
    validate_labels(pod, &mut causes);
    if causes.is_empty() {
        return Ok(());
    }
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    Err(ApiError::invalid("Pod", name, &causes))
}

fn validate_container(
    spec: &Value,
    container: &Value,
    field: &dyn Fn(&str) -> String,
    causes: &mut Vec<(String, String)>,
) {
    for (kind, amounts) in container["resources"].as_object().into_iter().flatten() {
        for (name, amount) in amounts.as_object().into_iter().flatten() {
            let limit = parse_milli(container["resources"]["limits"][name].as_str().unwrap_or(""));
            let parsed = parse_milli(amount.as_str().unwrap_or_default());
            let place = field(&format!("resources.{kind}"));
            if parsed.is_none() && amount.is_string() {
                causes.push((
                    place,
                    format!(
                        "Invalid value: {amount}: quantities must match the \
                                             regular expression"
                    ),
                ));
            } else if kind == "requests" && limit.is_some() && parsed > limit {
                let cause = format!(
                    "Invalid value: {amount}: must be less than or equal to {name} \
                                     limit of {}",
                    container["resources"]["limits"][name].as_str().unwrap_or_default()
                );
                causes.push((place, cause));
            }
        }
    }
    let volumes = spec["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let mut paths: Vec<&Value> = Vec::new();
    for (index, mount) in container["volumeMounts"].as_array().into_iter().flatten().enumerate() {
        if paths.contains(&&mount["mountPath"]) {
            let cause = format!("Invalid value: {}: must be unique", mount["mountPath"]);
            causes.push((field(&format!("volumeMounts[{index}].mountPath")), cause));
        }
        paths.push(&mount["mountPath"]);
        if !volumes.iter().any(|volume| volume["name"] == mount["name"]) {
            let name = mount["name"].as_str().unwrap_or_default();
            causes.push((
                field(&format!("volumeMounts[{index}].name")),
                format!("Not found: \"{name}\""),
            ));
        }
    }
}

fn validate_host_aliases(spec: &Value, causes: &mut Vec<(String, String)>) {
    let is_name = |name: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        name.split('.')
            .all(|label| !label.is_empty() && label.chars().all(inner) && !label.starts_with('-'))
    };
    for (index, alias) in spec["hostAliases"].as_array().into_iter().flatten().enumerate() {
        for name in alias["hostnames"].as_array().into_iter().flatten() {
            if !is_name(name.as_str().unwrap_or_default()) {
                let cause =
                    format!("Invalid value: {name}: a lowercase RFC 1123 subdomain must consist");
                causes.push((format!("spec.hostAliases[{index}].hostnames"), cause));
            }
        }
    }
}

/// Whether a text consists of letters, digits, `-`, `_` and `.`, with letters or digits at its ends.
fn is_label_name(text: &str) -> bool {
    let is_ordinary = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.len() <= 63
        && text.chars().all(is_ordinary)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn validate_labels(pod: &Value, causes: &mut Vec<(String, String)>) {
    let mut refuse = |text: &str, cause: &str| {
        let message = format!("Invalid value: \"{text}\": {cause}");
        causes.push(("metadata.labels".to_owned(), message));
    };
    for (key, value) in pod["metadata"]["labels"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if value.len() > 63 {
            refuse(value, "must be no more than 63 characters");
        } else if !value.is_empty() && !is_label_name(value) {
            let cause = "a valid label must be an empty string or consist of alphanumeric \
                         characters, '-', '_' or '.', and must start and end with an alphanumeric \
                         character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
                         validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
            refuse(value, cause);
        }
        if !key.rsplit('/').next().is_some_and(is_label_name) {
            let cause = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
                         must start and end with an alphanumeric character";
            refuse(key, cause);
        }
    }
}

fn set_default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

fn set_defaults(pod: &mut Value) {
    let spec = &mut pod["spec"];
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("serviceAccountName", json!("default")),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("priority", json!(0)),
        ("securityContext", json!({})),
    ] {
        set_default(spec, field, value);
    }
    spec["serviceAccount"] = spec["serviceAccountName"].clone();
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let image = container["image"].as_str().unwrap_or_default();
            let last = image.rsplit('/').next().unwrap_or_default();
            let always = last.ends_with(":latest") || !last.contains([':', '@']);
            let policy = if always { "Always" } else { "IfNotPresent" };
            set_default(container, "imagePullPolicy", policy.into());
            set_default(container, "resources", json!({}));
            set_default(container, "terminationMessagePath", json!("/dev/termination-log"));
            set_default(container, "terminationMessagePolicy", json!("File"));
            let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (name, amount) in limits {
                set_default(&mut container["resources"]["requests"], &name, amount);
            }
        }
    }
}

fn quality_class(pod: &Value) -> &'static str {
    let containers = pod["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice);
    let has_any = containers.iter().any(|container| {
        container["resources"]["requests"].is_object()
            || container["resources"]["limits"].is_object()
    });
    let is_full = containers.iter().all(|container| {
        let resources = &container["resources"];
        ["cpu", "memory"].iter().all(|name| {
            !resources["limits"][name].is_null()
                && resources["limits"][name] == resources["requests"][name]
        })
    });
    match (has_any, is_full) {
        (_, true) => "Guaranteed",
        (true, false) => "Burstable",
        (false, false) => "BestEffort",
    }
}

/// Amount that the containers of a pod ask for, in thousandths.
pub(super) fn amount(pod: &Value, kind: &str, name: &str) -> u64 {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let init = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    containers
        .chain(init.filter(|container| is_sidecar(container)))
        .filter_map(|container| parse_milli(container["resources"][kind][name].as_str()?))
        .sum()
}

/// Usage of a pod by the name of a quota.
fn usage(pod: &Value, name: &str) -> u64 {
    match name {
        "pods" | "count/pods" => 1000,
        "cpu" | "memory" | "ephemeral-storage" => amount(pod, "requests", name),
        other => other.split_once('.').map_or(0, |(kind, name)| amount(pod, kind, name)),
    }
}

/// Whether a pod has ended.
pub(super) fn is_terminal(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn check_quotas(state: &ClusterState, namespace: &str, pod: &Value) -> Result<(), ApiError> {
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    for (key, quota) in state.objects.list("resourcequotas", Some(namespace)) {
        let Some(hard) = quota["spec"]["hard"].as_object() else { continue };
        check_specified(pod, pod_name, &key.name, hard)?;
        let mut exceeded: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for (name, limit) in hard {
            let limit = parse_milli(limit.as_str().unwrap_or_default()).unwrap_or(u64::MAX);
            let used: u64 = state
                .objects
                .list("pods", Some(namespace))
                .filter(|(_, pod)| !is_terminal(pod))
                .map(|(_, pod)| usage(pod, name))
                .sum();
            let asked = usage(pod, name);
            if used + asked > limit {
                exceeded.insert(name, (asked, used, limit));
            }
        }
        if !exceeded.is_empty() {
            let texts = |pick: fn(&(u64, u64, u64)) -> u64| -> String {
                let texts: Vec<String> = exceeded
                    .iter()
                    .map(|(name, amounts)| format!("{name}={}", format_milli(pick(amounts))))
                    .collect();
                texts.join(",")
            };
            let cause = format!(
                "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                key.name,
                texts(|amounts| amounts.0),
                texts(|amounts| amounts.1),
                texts(|amounts| amounts.2)
            );
            return Err(ApiError::forbidden("pods", pod_name, &cause));
        }
    }
    Ok(())
}

fn check_specified(
    pod: &Value,
    pod_name: &str,
    quota: &str,
    hard: &serde_json::Map<String, Value>,
) -> Result<(), ApiError> {
    let mut missing: Vec<String> = Vec::new();
    for name in hard.keys() {
        let (kind, resource) = name.split_once('.').unwrap_or(("requests", name));
        if !["cpu", "memory"].contains(&resource) || !["requests", "limits"].contains(&kind) {
            continue;
        }
        let without: Vec<&str> = pod["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|container| container["resources"][kind][resource].is_null())
            .filter_map(|container| container["name"].as_str())
            .collect();
        if !without.is_empty() {
            missing.push(format!("{name} for: {}", without.join(",")));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let cause = format!("failed quota: {quota}: must specify {}", missing.join("; "));
    Err(ApiError::forbidden("pods", pod_name, &cause))
}
