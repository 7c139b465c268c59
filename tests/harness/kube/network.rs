//! Effect of network policies on pods.

use std::time::Instant;

use super::cluster::Cluster;
use super::objects::ObjectKey;
use super::selectors::label_selector_matches;

/// Whether a pod has a network. A policy that selects it for egress and allows no destination takes
/// it away, perhaps some time after it is first looked at; policies that allow some destinations leave
/// it as it is.
pub(super) fn allows_egress(cluster: &Cluster, key: &ObjectKey) -> bool {
    cluster.with(|state| {
        let Some(pod) = state.objects.get(key) else { return true };
        if !state.faults.enforces_network_policies() {
            return true;
        }
        let labels = &pod["metadata"]["labels"];
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let mut is_selected = false;
        for (_, policy) in state.objects.list("networkpolicies", Some(&key.namespace)) {
            let spec = &policy["spec"];
            let types = spec["policyTypes"].as_array();
            let concerns_egress =
                types.is_some_and(|types| types.iter().any(|name| name == "Egress"));
            if concerns_egress && label_selector_matches(&spec["podSelector"], labels) {
                is_selected = true;
                if spec["egress"].as_array().is_some_and(|rules| !rules.is_empty()) {
                    return true;
                }
            }
        }
        if !is_selected {
            state.isolated_since.remove(&uid);
            return true;
        }
        let since = state.isolated_since.entry(uid).or_insert_with(Instant::now);
        since.elapsed() < state.faults.network_policy_delay
    })
}
