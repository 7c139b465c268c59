//! Environments in which tries run: provider, settings, prices.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::task::HostRule;

/// The environment part of a trial's spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentSpec {
    /// Provider and its own settings.
    pub provider: ProviderSpec,
    /// Build without cache, even when the task names an image.
    pub force_build: bool,
    /// Whether the environment is kept after the trial.
    pub preserve_env: PreservePolicy,
    /// Prices; all zero unless `provider_config` sets them.
    pub rates: EnvironmentRates,
}

/// A provider with its typed settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ProviderSpec {
    /// Containers of a Docker engine.
    Docker(DockerSettings),
    /// Namespaces of this host's kernel.
    Process(ProcessSettings),
    /// Pods of a Kubernetes cluster. Boxed: its settings are several times as large as the others.
    Kubernetes(Box<KubernetesSettings>),
}

/// A provider without settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// Containers of a Docker engine.
    Docker,
    /// Namespaces of this host's kernel.
    Process,
    /// Pods of a Kubernetes cluster.
    Kubernetes,
}

impl ProviderSpec {
    /// The kind of provider.
    pub const fn kind(&self) -> ProviderKind {
        match self {
            Self::Docker(_) => ProviderKind::Docker,
            Self::Process(_) => ProviderKind::Process,
            Self::Kubernetes(_) => ProviderKind::Kubernetes,
        }
    }

    /// Whether the job denies every network, whatever its tasks allow.
    pub fn denies_network(&self) -> bool {
        match self {
            Self::Docker(settings) => settings.network == DockerNetwork::None,
            Self::Process(settings) => settings.network == ProcessNetwork::None,
            Self::Kubernetes(settings) => settings.network == KubernetesNetwork::None,
        }
    }

    /// Sets whether images, builds, addresses and allowed hosts are checked, by providers that have them:
    /// `None` if not, else the registries that images may be of although their address is not public.
    pub fn set_build_guard(&mut self, registries: Option<&[HostRule]>) {
        match self {
            Self::Docker(settings) => {
                settings.guards_builds = registries.is_some();
                settings.allowed_registries = registries.unwrap_or_default().to_vec();
            }
            Self::Process(_) | Self::Kubernetes(_) => {}
        }
    }

    /// Whether environments reach allowed hosts at public addresses only: [`Self::set_build_guard`] has
    /// set it.
    pub const fn guards_hosts(&self) -> bool {
        match self {
            Self::Docker(settings) => settings.guards_builds,
            // The documents of a server's users are checked. Kubernetes has no allowed hosts.
            Self::Process(_) | Self::Kubernetes(_) => false,
        }
    }

    /// Whether tasks run although their Dockerfile has unsupported instructions.
    pub const fn ignores_dockerfile(&self) -> bool {
        match self {
            Self::Docker(_) | Self::Kubernetes(_) => false,
            Self::Process(settings) => settings.ignore_dockerfile,
        }
    }
}

impl ProviderKind {
    /// The name used in documents, files and options.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Process => "process",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `provider_config` of `docker`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DockerSettings {
    /// Network of the containers.
    #[serde(default)]
    pub network: DockerNetwork,
    /// Platform to build, pull and run, for instance `linux/arm64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// OCI runtime, for instance `runsc` or `nvidia`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Refuse builds with base images whose triggers fetch something, and compose files with addresses
    /// of networks, or with images or builds of other registries than public ones and
    /// `allowed_registries`, and allow hosts at public addresses only. No document sets it: a server does
    /// for tasks of its users.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guards_builds: bool,
    /// The registries that images may be of although their address is not public. Set with
    /// `guards_builds`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_registries: Vec<HostRule>,
}

/// Network of Docker containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DockerNetwork {
    /// The engine's default bridge.
    #[default]
    Bridge,
    /// Loopback only.
    None,
}

/// `provider_config` of `process`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSettings {
    /// Network of the sandbox.
    #[serde(default)]
    pub network: ProcessNetwork,
    /// Run tasks although their Dockerfile has instructions that a sandbox does not support.
    #[serde(default)]
    pub ignore_dockerfile: bool,
}

/// Network of process sandboxes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessNetwork {
    /// The host's network.
    #[default]
    Host,
    /// Loopback only.
    None,
}

/// `provider_config` of `kubernetes`. Values that are absent are those of the operator of the
/// cluster's workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KubernetesSettings {
    /// Network of the pods.
    #[serde(default)]
    pub network: KubernetesNetwork,
    /// Namespace of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Service account of the pods, whose token is then mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Runtime class, for instance `gvisor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<String>,
    /// Priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Tolerations, as in the manifest of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Map<String, Value>>>,
    /// Affinity, as in the manifest of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Map<String, Value>>,
    /// Secrets with the credentials of image registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secrets: Option<Vec<String>>,
    /// Processors that the scheduler reserves, for instance `500m`; the limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<String>,
    /// Memory that the scheduler reserves, for instance `512Mi`; the limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_request: Option<String>,
    /// Refuse images whose user is root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// Number of the user of the pod's processes; the image's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<u64>,
    /// Seconds after which the cluster ends a pod whatever happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_sec: Option<u64>,
}

/// Network of Kubernetes pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KubernetesNetwork {
    /// The cluster's network.
    #[default]
    Cluster,
    /// Loopback only, by a network policy.
    None,
}

/// Whether an environment is kept after its trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreservePolicy {
    /// Removed.
    #[default]
    Never,
    /// Kept.
    Always,
    /// Kept unless the trial passed: kept on an error (other than of the teardown), on a missing
    /// reward, and on a reward other than 1.
    OnFailure,
}

/// Prices of an environment, in the user's currency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentRates {
    /// Per processor and hour.
    pub cpu_hour: f64,
    /// Per GiB of memory and hour.
    pub gib_hour: f64,
    /// Per started environment.
    pub start: f64,
}

impl EnvironmentRates {
    /// The cost of an environment with `resources` that existed for `seconds`.
    pub fn cost(&self, resources: &super::resources::Resources, seconds: f64) -> f64 {
        let hours = seconds / 3600.0;
        let gib = resources.memory_mb as f64 / 1024.0;
        self.start + hours * (self.cpu_hour * f64::from(resources.cpus) + self.gib_hour * gib)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::resources::Resources;

    #[test]
    fn build_guard_of_docker_has_registries_and_is_read_without_them() {
        let rules = ["h.example:5000", "10.0.0.0/8"].map(|rule| rule.parse().expect("a rule"));
        let mut provider = ProviderSpec::Docker(DockerSettings::default());
        provider.set_build_guard(Some(&rules));
        let written = serde_json::to_value(&provider).expect("plain data");
        assert_eq!(written["allowed_registries"], json!(["h.example:5000", "10.0.0.0/8"]));
        assert_eq!(serde_json::from_value::<ProviderSpec>(written).expect("settings"), provider);
        let earlier = json!({"type": "docker", "guards_builds": true});
        let read = serde_json::from_value::<ProviderSpec>(earlier).expect("settings");
        provider.set_build_guard(Some(&[]));
        assert_eq!(read, provider);
        provider.set_build_guard(None);
        assert_eq!(provider, ProviderSpec::Docker(DockerSettings::default()));
        let broken = json!({"type": "docker", "allowed_registries": ["http://h"]});
        assert!(serde_json::from_value::<ProviderSpec>(broken).is_err());
    }

    #[test]
    fn hosts_are_guarded_where_builds_are() {
        let specs = [
            (ProviderSpec::Docker(DockerSettings::default()), true),
            (ProviderSpec::Process(ProcessSettings::default()), false),
            (ProviderSpec::Kubernetes(Box::default()), false),
        ];
        for (plain, is_guarded) in specs {
            let mut provider = plain.clone();
            assert!(!provider.guards_hosts(), "{provider:?}");
            provider.set_build_guard(Some(&[]));
            assert_eq!(provider.guards_hosts(), is_guarded, "{provider:?}");
            let written = serde_json::to_value(&provider).expect("plain data");
            assert_eq!(serde_json::from_value::<ProviderSpec>(written).expect("read"), provider);
            provider.set_build_guard(None);
            assert_eq!(provider, plain);
        }
    }

    #[test]
    fn environment_cost_is_start_plus_hourly_rates() {
        let rates = EnvironmentRates { cpu_hour: 0.4, gib_hour: 0.1, start: 0.01 };
        let resources = Resources { cpus: 2, memory_mb: 4096, ..Resources::default() };
        let cost = rates.cost(&resources, 1800.0);
        assert!((cost - (0.01 + 0.5 * (0.8 + 0.4))).abs() < 1e-12, "{cost}");
        assert!(EnvironmentRates::default().cost(&resources, 1e6).abs() < 1e-12);
    }
}
