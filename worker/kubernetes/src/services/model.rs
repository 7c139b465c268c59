//! Services as a pod runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use rollout_environment::service_hosts::{ServiceHosts, is_inner};

/// Everything that a compose file asks of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct ServicesPlan {
    /// The environment's own service.
    pub(in super::super) main: ServiceSpec,
    /// The others. Those that are started one after another are in this order.
    pub(in super::super) others: Vec<ServiceSpec>,
    /// Names for the address of the pod itself.
    pub(in super::super) host_names: BTreeSet<String>,
    /// Further names by address.
    pub(in super::super) extra_hosts: BTreeMap<String, BTreeSet<String>>,
    /// Whether the file takes the network away.
    pub(in super::super) has_no_network: bool,
    /// A service beside the environment that names networks, which it would keep elsewhere when the
    /// environment has none.
    pub(in super::super) service_with_networks: Option<String>,
    /// Architecture of the node.
    pub(in super::super) architecture: Option<String>,
}

/// One service.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct ServiceSpec {
    pub(in super::super) name: String,
    pub(in super::super) image: ServiceImage,
    pub(in super::super) entrypoint: Option<Vec<String>>,
    pub(in super::super) command: Option<Vec<String>>,
    pub(in super::super) env: BTreeMap<String, String>,
    pub(in super::super) workdir: Option<String>,
    pub(in super::super) user: Option<ContainerUser>,
    pub(in super::super) waits_for: BTreeMap<String, StartCondition>,
    pub(in super::super) health: Option<HealthCheck>,
    pub(in super::super) mounts: Vec<ServiceMount>,
    pub(in super::super) limits: ServiceAmounts,
    pub(in super::super) requests: ServiceAmounts,
    /// Whether it is restarted when it ends.
    pub(in super::super) restarts: bool,
    /// Linux capabilities that it does without.
    pub(in super::super) dropped: Vec<String>,
    pub(in super::super) is_read_only: bool,
    pub(in super::super) has_terminal: bool,
    pub(in super::super) has_stdin: bool,
    pub(in super::super) role: ServiceRole,
    pub(super) links: ServiceLinks,
}

/// The network as the file describes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ServiceLinks {
    /// Networks; empty for those of another service, or for none.
    pub(super) networks: BTreeSet<String>,
    /// Whether the file names them.
    pub(super) names_networks: bool,
    pub(super) mode: NetworkMode,
    /// Further names of the service.
    pub(super) aliases: BTreeSet<String>,
    /// Names that it gives to other services.
    pub(super) links: Vec<(String, String)>,
    pub(super) extra_hosts: Vec<(String, String)>,
    /// Ports in the container, with the key that declares them.
    pub(super) ports: BTreeMap<(String, String), String>,
    pub(super) architecture: Option<String>,
}

/// The network mode of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum NetworkMode {
    /// Networks of the file.
    #[default]
    Networks,
    /// No network.
    None,
    /// That of another service.
    Service,
}

/// Source of a service's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum ServiceImage {
    /// The environment's own image, which was prepared.
    Prepared,
    /// An image by its name.
    Named(String),
    /// An image that is built from a directory.
    Built(PathBuf),
}

/// The user of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct ContainerUser {
    pub(in super::super) user: i64,
    pub(in super::super) group: Option<i64>,
}

/// State of another service that one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum StartCondition {
    Started,
    Healthy,
    Completed,
}

/// The check that decides when a service has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct HealthCheck {
    pub(in super::super) command: Vec<String>,
    pub(in super::super) interval: Duration,
    pub(in super::super) timeout: Duration,
    pub(in super::super) start_period: Duration,
    pub(in super::super) retries: u32,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct ServiceMount {
    pub(in super::super) volume: MountVolume,
    pub(in super::super) target: String,
    pub(in super::super) is_read_only: bool,
}

/// The volume of a mount.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum MountVolume {
    /// Shared by the services that name it.
    Shared(String),
    /// Of this service alone.
    Own,
    /// Of this service alone, in memory, of at most this many bytes.
    Memory(Option<u64>),
}

/// Amounts of resources.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in super::super) struct ServiceAmounts {
    pub(in super::super) cpus: Option<f64>,
    pub(in super::super) memory_bytes: Option<f64>,
}

/// How a container runs in the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in super::super) enum ServiceRole {
    /// Beside the environment, started at the same time.
    #[default]
    Beside,
    /// Before those that wait for it, as an init container that continues and is restarted.
    Sidecar,
    /// To its end before those that wait for it.
    Init,
}

impl ServicesPlan {
    /// The hosts that no proxy leads to.
    pub(in super::super) fn service_hosts(&self) -> ServiceHosts {
        let added = self.extra_hosts.iter().filter(|(address, _)| is_inner(address));
        let added = added.flat_map(|(_, names)| names);
        ServiceHosts::new(self.host_names.iter().chain(added).cloned())
    }

    /// Exempts them from the proxies that the file gives to its services.
    pub(super) fn exempt_hosts(&mut self) {
        let hosts = self.service_hosts();
        for service in std::iter::once(&mut self.main).chain(&mut self.others) {
            hosts.exempt(&mut service.env);
        }
    }
}

/// Commands of the environment's service that only keep it alive.
const IDLE_COMMANDS: [&[&str]; 4] =
    [&["sleep", "infinity"], &["sleep", "inf"], &["tail", "-f", "/dev/null"], &["cat"]];

impl ServiceSpec {
    /// Whether something of the task runs in the service before any command does.
    pub(in super::super) fn runs_by_itself(&self) -> bool {
        self.has_own_process() || self.health.is_some()
    }

    /// Whether the file gives the service a process that does more than keep it alive.
    pub(in super::super) fn has_own_process(&self) -> bool {
        let words: Vec<&str> = [&self.entrypoint, &self.command]
            .into_iter()
            .flatten()
            .flatten()
            .map(String::as_str)
            .collect();
        let words: Vec<&str> = match words.as_slice() {
            ["sh" | "/bin/sh" | "bash" | "/bin/bash", "-c", script] => {
                script.trim().trim_end_matches(';').split_whitespace().collect()
            }
            ["sh" | "/bin/sh" | "bash" | "/bin/bash"] => Vec::new(),
            _ => words,
        };
        !words.is_empty() && !IDLE_COMMANDS.contains(&words.as_slice())
    }
}
