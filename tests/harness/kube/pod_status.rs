//! The status of a pod, as a kubelet writes it.

use serde_json::{Value, json};

use super::objects::now;

/// Sets a condition; a condition that changes its status gets a new transition time.
pub(super) fn set_condition(
    pod: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
) {
    let conditions = &mut pod["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let mut condition = json!({
        "type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": now(),
    });
    for (field, text) in [("reason", reason), ("message", message)] {
        if !text.is_empty() {
            condition[field] = text.into();
        }
    }
    match conditions.iter_mut().find(|old| old["type"] == kind) {
        Some(old) => {
            if old["status"] == status {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
}

/// Sets the state of a container.
pub(super) fn set_container_state(pod: &mut Value, name: &str, state: &Value) {
    let specs = ["containers", "initContainers"].map(|list| pod["spec"][list].clone());
    let spec = specs.iter().filter_map(Value::as_array).flatten().find(|spec| spec["name"] == name);
    let has_probe = spec.is_some_and(|spec| spec["startupProbe"].is_object());
    let is_init = specs[1].as_array().into_iter().flatten().any(|spec| spec["name"] == name);
    let ends = is_init && !spec.is_some_and(is_sidecar);
    for list in ["containerStatuses", "initContainerStatuses"] {
        for status in pod["status"][list].as_array_mut().into_iter().flatten() {
            if status["name"] == name {
                let is_running = state.get("running").is_some();
                let is_done = state["terminated"]["exitCode"] == 0;
                let is_started = is_running && !has_probe;
                status["ready"] = if ends { is_done } else { is_started }.into();
                status["started"] = is_started.into();
                status["state"] = state.clone();
                if is_running {
                    status["containerID"] =
                        format!("containerd://{:032x}", rand::random::<u128>()).into();
                    status["imageID"] = status["image"].clone();
                }
            }
        }
    }
}

/// Whether an init container goes on beside the containers of its pod.
pub(super) fn is_sidecar(spec: &Value) -> bool {
    spec["restartPolicy"] == "Always"
}

fn statuses<'a>(pod: &'a mut Value, name: &'a str) -> impl Iterator<Item = &'a mut Value> {
    let status = pod["status"].as_object_mut().into_iter().flatten();
    let lists = status.filter(|(key, _)| key.ends_with("ontainerStatuses"));
    let all = lists.filter_map(|(_, list)| list.as_array_mut()).flatten();
    all.filter(move |status| status["name"] == name)
}

/// Records that the probe of a container has succeeded.
pub(super) fn set_started(pod: &mut Value, name: &str) {
    for status in statuses(pod, name) {
        status["started"] = true.into();
        status["ready"] = true.into();
    }
}

/// Records that a container that has ended is started again after a pause.
pub(super) fn set_restarting(pod: &mut Value, name: &str) {
    for status in statuses(pod, name) {
        let count = status["restartCount"].as_u64().unwrap_or(0) + 1;
        status["restartCount"] = count.into();
        status["lastState"] = status["state"].take();
        let message = format!("back-off 10s restarting failed container={name}");
        status["state"] = waiting("CrashLoopBackOff", &message);
    }
}

pub(super) fn waiting(reason: &str, message: &str) -> Value {
    if message.is_empty() {
        json!({"waiting": {"reason": reason}})
    } else {
        json!({"waiting": {"reason": reason, "message": message}})
    }
}

pub(super) fn running() -> Value {
    json!({"running": {"startedAt": now()}})
}

/// The state of a container that ended; `reason` is derived from the exit code if it is empty.
pub(super) fn terminated(exit_code: i32, reason: &str, message: &str, started: &Value) -> Value {
    let reason = match reason {
        "" if exit_code == 0 => "Completed",
        "" => "Error",
        given => given,
    };
    let now = now();
    let started = if started.is_string() { started.clone() } else { now.clone().into() };
    let mut state = json!({
        "exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": now,
    });
    if !message.is_empty() {
        state["message"] = message.into();
    }
    json!({"terminated": state})
}

/// Ends the states of all containers that run or wait.
pub(super) fn terminate_all(pod: &mut Value, exits: &[(String, i32)], reason: &str) {
    let names: Vec<(String, Value)> = ["containerStatuses", "initContainerStatuses"]
        .iter()
        .filter_map(|list| pod["status"][list].as_array())
        .flatten()
        .filter(|status| status["state"]["terminated"].is_null())
        .map(|status| {
            let name = status["name"].as_str().unwrap_or_default().to_owned();
            (name, status["state"]["running"]["startedAt"].clone())
        })
        .collect();
    for (name, started) in names {
        let exit = exits.iter().find(|(container, _)| *container == name).map(|(_, code)| *code);
        let state = terminated(exit.unwrap_or(137), reason, "", &started);
        set_container_state(pod, &name, &state);
    }
    set_condition(pod, "Ready", "False", "PodFailed", "");
    set_condition(pod, "ContainersReady", "False", "PodFailed", "");
}

/// The status of a pod that a node has accepted.
pub(super) fn accept(pod: &mut Value, address: u32) {
    let has_init = pod["spec"]["initContainers"].as_array().is_some_and(|list| !list.is_empty());
    let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
    for (list, statuses) in
        [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")]
    {
        let Some(containers) = pod["spec"][list].as_array() else { continue };
        let entries: Vec<Value> = containers
            .iter()
            .map(|container| {
                json!({
                    "name": container["name"], "image": container["image"], "imageID": "",
                    "ready": false, "started": false, "restartCount": 0, "lastState": {},
                    "state": waiting(reason, ""),
                })
            })
            .collect();
        pod["status"][statuses] = entries.into();
    }
    let [_, _, high, low] = address.to_be_bytes();
    let own = format!("10.244.{high}.{low}");
    let status = &mut pod["status"];
    status["hostIP"] = "192.0.2.7".into();
    status["hostIPs"] = json!([{"ip": "192.0.2.7"}]);
    status["podIP"] = own.clone().into();
    status["podIPs"] = json!([{"ip": own}]);
    status["startTime"] = now().into();
    let (initialized, cause) =
        if has_init { ("False", "ContainersNotInitialized") } else { ("True", "") };
    set_condition(pod, "PodReadyToStartContainers", "True", "", "");
    set_condition(pod, "Initialized", initialized, cause, "");
    set_condition(pod, "Ready", "False", "ContainersNotReady", "");
    set_condition(pod, "ContainersReady", "False", "ContainersNotReady", "");
}
