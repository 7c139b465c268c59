//! Renewal of the time until which pods have an owner.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::Watches;
use super::cluster::Cluster;
use super::labels;
use super::rights::Right;

/// Renewals in the life of a lease: several may fail in a row.
const RENEWALS: u32 = 8;

/// Concurrent renewals.
const AT_ONCE: usize = 4;

/// Renews the leases of this worker's pods, forever.
pub(super) async fn run(cluster: Arc<Cluster>, watches: Arc<Watches>) {
    let lease = Duration::from_secs(cluster.options.abandoned_after_sec);
    loop {
        tokio::time::sleep(lease / RENEWALS).await;
        for (namespace, pods) in watches.names() {
            let api = cluster.pods(&namespace);
            let renewals = pods.into_iter().map(|(name, uid)| {
                let (api, cluster) = (api.clone(), &cluster);
                async move {
                    let until = labels::alive_until(cluster.now().await, lease);
                    let annotations = json!({labels::ALIVE_UNTIL: until});
                    let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
                    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
                    let (right, what) =
                        (Right::to("patch", &api), "cannot renew the lease of a pod");
                    let patching = || api.patch(&name, &params, &patch);
                    let renewed = cluster.call(right, what, patching).await;
                    if let Err(failure) = renewed {
                        // A pod that ended meanwhile needs no lease.
                        tracing::debug!(name, "{}", failure.chain());
                    }
                }
            });
            futures_util::stream::iter(renewals)
                .buffer_unordered(AT_ONCE)
                .for_each(|()| std::future::ready(()))
                .await;
        }
    }
}
