//! Pods of the provider's own that find something out.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::oneshot;

use super::cluster::Cluster;
use super::labels::{PodRole, ROLE};
use super::settings::PodSettings;
use super::{Shared, create, manifest, network};
use crate::environment::{EnvironmentLabels, Failure, FailureKind};
use crate::supervise;

impl Shared {
    /// Makes sure that pods with the label have no network in the namespace of `settings`.
    pub(super) async fn require_policies(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        labels: &EnvironmentLabels,
        settings: &PodSettings,
    ) -> Result<(), Failure> {
        let namespace = settings.namespace.as_ref().unwrap_or(&cluster.namespace);
        let probe = || self.probe_policies(cluster, labels, settings, namespace);
        Box::pin(self.policies.require(cluster, namespace, settings, probe)).await
    }

    /// Probes network policies in a task of its own, which removes its pod also when the caller is
    /// gone.
    async fn probe_policies(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        labels: &EnvironmentLabels,
        settings: &PodSettings,
        namespace: &str,
    ) -> Result<bool, Failure> {
        let (options, creator) = (&cluster.options, &cluster.creator);
        let settings = &network::probe_settings(settings, options)?;
        let name = format!("rollout-probe-{}-{:08x}", creator.instance, rand::random::<u32>());
        let now = cluster.now().await;
        let mut metadata = manifest::metadata(labels, name, options, creator, namespace, now)?;
        let role = PodRole::Probe.as_str().to_owned();
        metadata.labels.get_or_insert_default().insert(ROLE.to_owned(), role);
        let container = manifest::small_container(&options.probe_image, settings, options);
        let pod = manifest::bare_pod(metadata, container, settings);
        let (shared, cluster) = (Arc::clone(self), Arc::clone(cluster));
        let (answer, answered) = oneshot::channel();
        self.tasks.track(supervise::spawn("kubernetes network probe", async move {
            let result = Box::pin(shared.probe_with(&cluster, &pod)).await;
            // A later caller probes again.
            drop(answer.send(result));
        }));
        answered.await.unwrap_or_else(|_| {
            Err(Failure::new(FailureKind::Bug, "the probe of network policies was interrupted"))
        })
    }

    async fn probe_with(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        manifest: &Pod,
    ) -> Result<bool, Failure> {
        let made = create::create_pod(cluster, manifest).await.map_err(network::probe_failure)?;
        let pod = self.adopt_pod(cluster, &made, BTreeMap::new(), "/bin/sh");
        let result = match pod.wait_started().await {
            Ok(()) => network::probe_in(&pod).await,
            Err(failure) => Err(failure),
        };
        self.leftovers.remove_or_defer(cluster, pod.id()).await;
        result.map_err(network::probe_failure)
    }
}
