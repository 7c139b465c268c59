//! Placement of pods on nodes.

use serde_json::Value;

use super::cluster::{Cluster, ClusterState, NODES};
use super::objects::ObjectKey;
use super::pod_admission::{amount, is_terminal};
use super::pod_status::{accept, set_condition};

/// Waits until a pod can be placed, and places it. Returns at once if the pod is gone.
pub(super) async fn place(cluster: &Cluster, key: &ObjectKey, uid: &str) {
    let delay = cluster.with(|state| state.faults.schedule_delay);
    tokio::time::sleep(delay).await;
    let mut wakes = cluster.wakes();
    let mut reported = String::new();
    loop {
        wakes.mark_unchanged();
        let Some(pod) = cluster.pod_with_uid(key, uid) else { return };
        let Err(obstacle) = cluster.with(|state| try_place(state, key, &pod)) else {
            let message = format!("Successfully assigned {}/{} to a node", key.namespace, key.name);
            cluster.record_event(&pod, "Normal", "Scheduled", &message);
            return;
        };
        if obstacle != reported {
            cluster.update_pod(key, uid, |pod| {
                set_condition(pod, "PodScheduled", "False", "Unschedulable", &obstacle);
            });
            cluster.record_event(&pod, "Warning", "FailedScheduling", &obstacle);
            reported = obstacle;
        }
        if wakes.changed().await.is_err() {
            return;
        }
    }
}

/// Places a pod, or says why no node has room.
fn try_place(state: &mut ClusterState, key: &ObjectKey, pod: &Value) -> Result<(), String> {
    let count = NODES.len();
    let unavailable = |cause: &str| {
        format!(
            "0/{count} nodes are available: {cause}. preemption: 0/{count} nodes are available: \
             {count} No preemption victims found for incoming pod."
        )
    };
    if let Some(cause) = &state.faults.unschedulable {
        return Err(unavailable(&format!("{count} {cause}")));
    }
    let nodes: Vec<&Value> =
        state.objects.list("nodes", Some("")).map(|(_, node)| &**node).collect();
    let wanted = pod["spec"]["nodeSelector"].as_object();
    let fits = |node: &&&Value| {
        let labels = &node["metadata"]["labels"];
        wanted.is_none_or(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value))
    };
    let fitting: Vec<&str> =
        nodes.iter().filter(fits).filter_map(|node| node["metadata"]["name"].as_str()).collect();
    let placed: Vec<&Value> = state
        .objects
        .list("pods", None)
        .map(|(_, pod)| &**pod)
        .filter(|pod| pod["spec"]["nodeName"].is_string() && !is_terminal(pod))
        .collect();
    if fitting.is_empty() {
        let cause = format!("{count} node(s) didn't match Pod's node affinity/selector");
        return Err(format!(
            "0/{count} nodes are available: {cause}. preemption: 0/{count} nodes are available: \
             {count} Preemption is not helpful for scheduling."
        ));
    }
    if state.faults.pod_capacity.is_some_and(|capacity| placed.len() >= capacity) {
        return Err(unavailable(&format!("{count} Too many pods")));
    }
    let used: u64 = placed.iter().map(|pod| amount(pod, "requests", "cpu")).sum();
    let asked = amount(pod, "requests", "cpu");
    if state.faults.cpu_capacity.is_some_and(|capacity| asked > capacity) {
        // Since 1.31: no node could take it, even without other pods.
        return Err(format!(
            "0/{count} nodes are available: {count} Insufficient cpu. preemption: 0/{count} nodes are \
             available: {count} Preemption is not helpful for scheduling."
        ));
    }
    if state.faults.cpu_capacity.is_some_and(|capacity| used + asked > capacity) {
        return Err(unavailable(&format!("{count} Insufficient cpu")));
    }
    let node = fitting[placed.len() % fitting.len()].to_owned();
    state.address_count += 1;
    let address = state.address_count;
    state.objects.update(key, |pod| {
        pod["spec"]["nodeName"] = node.into();
        set_condition(pod, "PodScheduled", "True", "", "");
        accept(pod, address);
    });
    Ok(())
}
