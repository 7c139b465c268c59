//! An environment that is a pod.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use rollout_base::dependency::Dependency;
use rollout_environment::{
    ByteStream, CommandExit, Environment, EnvironmentLabels, ExecCommand, Failure, FailureKind,
    ListenerRoute, OutputSink, Upload,
};
use rollout_protocol::record::EnforcedLimits;
use rollout_protocol::spec::task::NetworkPolicy;
use serde_json::json;

use super::labels::{self, PRESERVED};
use super::network::{self, PodNetwork};
use super::pod::KubePod;
use super::rights::Right;
use super::service_containers::PodService;
use super::settings::PodSettings;
use super::{Shared, manifest};

/// One pod.
#[derive(Debug)]
pub(super) struct PodEnvironment {
    pub(super) pod: Arc<KubePod>,
    pub(super) services: Vec<PodService>,
    pub(super) shared: Arc<Shared>,
    pub(super) workdir: String,
    pub(super) limits: EnforcedLimits,
    pub(super) network: PodNetwork,
    pub(super) labels: EnvironmentLabels,
    pub(super) settings: PodSettings,
}

impl PodEnvironment {
    /// Whether this pod, while it has a network, or others of its kind have connected to the API server.
    async fn has_connected(&self) -> Result<bool, Failure> {
        let (policies, pod) = (&self.shared.policies, &self.pod);
        if policies.have_connected(&self.settings) {
            return Ok(true);
        }
        let connects = pod.tells_network() && pod.can_connect().await? == Some(true);
        // A program of the image may say anything.
        if connects && pod.has_helper() {
            policies.note_connected(&self.settings);
        }
        Ok(connects)
    }
}

#[async_trait]
impl Environment for PodEnvironment {
    fn id(&self) -> &str {
        &self.pod.name
    }

    fn workdir(&self) -> &str {
        &self.workdir
    }

    fn limits(&self) -> EnforcedLimits {
        self.limits
    }

    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        self.pod.copy_to(uploads).await
    }

    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        self.pod.copy_from(path).await
    }

    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        self.pod.exec(command, &self.workdir, output).await
    }

    async fn kill_processes(&self) -> Result<(), Failure> {
        self.pod.kill_processes().await
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        let open = network::is_open(policy)?;
        if self.network.is_denied {
            return Ok(());
        }
        let mut now = self.network.is_open.lock().await;
        if *now == Some(open) {
            return Ok(());
        }
        let mut has_connected = false;
        if !open {
            network::warn_of_closing(self.network.service_with_networks.as_ref());
            let cluster = &self.pod.cluster;
            self.shared.require_policies(cluster, &self.labels, &self.settings).await?;
            has_connected = self.has_connected().await?;
        }
        // If this future is dropped, the state stays unknown.
        *now = None;
        self.pod.set_network_label(open).await?;
        if !open {
            self.pod.until_isolated(has_connected).await?;
        }
        *now = Some(open);
        drop(now);
        Ok(())
    }

    fn dependency(&self) -> Option<&Dependency> {
        Some(self.pod.cluster.service())
    }

    fn service(&self, name: &str) -> Option<&dyn Environment> {
        let service = self.services.iter().find(|service| service.service == name)?;
        Some(service)
    }

    async fn listener_route(&self) -> Result<ListenerRoute, Failure> {
        let given = self.pod.cluster.options.gateway_address;
        let own = || manifest::own_address(|name| std::env::var(name).ok());
        given.or_else(own).map(ListenerRoute::HostAddress).ok_or_else(|| {
            let text = "pods know no address of the worker: set `ROLLOUT_POD_IP` in the worker's pod, \
                        or `gateway_address` in the file of `--kubernetes-config`";
            Failure::new(FailureKind::Unsupported, text)
        })
    }

    /// The processes of images do not run in pods, only those that the task's file names.
    fn has_own_programs(&self) -> bool {
        self.pod.has_own_process
    }

    async fn oom_killed(&self) -> bool {
        self.pod.is_oom_killed()
    }

    async fn check_storage(&self) -> Result<(), Failure> {
        match self.pod.watched.state().and_then(|state| state.lost()) {
            Some(failure) if failure.kind == FailureKind::StorageExceeded => Err(failure),
            _ => Ok(()),
        }
    }

    async fn stop(&self) -> Result<(), Failure> {
        self.pod.stop().await
    }

    /// A removal that fails is repeated in the background until it succeeds.
    async fn destroy(&self) -> Result<(), Failure> {
        self.shared.leftovers.try_remove(&self.pod.cluster, &self.pod.id()).await?;
        self.pod.watched.update(None);
        Ok(())
    }

    /// The cluster still ends it at its active deadline, which cannot be lifted.
    async fn preserve(&self) -> Result<String, Failure> {
        let pod = &self.pod;
        let what = format!("cannot preserve the pod {}", pod.name);
        let patch = json!({"metadata": {
            "uid": pod.uid,
            "labels": {PRESERVED: "true"},
            "annotations": {labels::ALIVE_UNTIL: null},
            "ownerReferences": null,
        }});
        let pods = pod.cluster.pods(&pod.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patching = || pods.patch(&pod.name, &params, &patch);
        let _patched: Pod = pod.cluster.call(Right::to("patch", &pods), &what, patching).await?;
        let (namespace, name, shell) = (&pod.namespace, &pod.name, pod.shell);
        Ok(format!("kubectl exec -it -n {namespace} {name} -c {} -- {shell}", manifest::MAIN))
    }
}
