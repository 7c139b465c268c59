//! The containers and volumes of a pod with services.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVar, ExecAction, HostAlias, Pod, PodSpec, Probe,
    ResourceRequirements, SecurityContext, Sysctl, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rollout_environment::compose::{self, HOST_PATHS, HostPath, MAIN, RequestedLimits};
use rollout_environment::service_hosts::lists_of;
use rollout_protocol::spec::resources::Resources;

use super::super::manifest;
use super::super::options::KubernetesOptions;
use super::super::settings::{PodSettings, amount};
use super::model::{
    HealthCheck, MountVolume, ServiceAmounts, ServiceMount, ServiceRole, ServiceSpec, ServicesPlan,
};

/// Runs the environment's own process as the oldest child of the first one, which ends with it.
const RUN_OWN_PROCESS: &str = "trap \"exit 0\" TERM; \"$@\" & p=$!; wait $p";

/// Lets every user listen on low ports, as container engines do.
const LOW_PORTS: &str = "net.ipv4.ip_unprivileged_port_start";

/// Longest name of a service that is the name of a container.
const MAX_NAME: usize = 50;

/// Inputs of a pod with services.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct ServiceSetup<'a> {
    pub(in super::super) plan: &'a ServicesPlan,
    pub(in super::super) shares: &'a ServiceShares,
    /// Images by the name of the service.
    pub(in super::super) images: &'a BTreeMap<String, String>,
    pub(in super::super) settings: &'a PodSettings,
    pub(in super::super) options: &'a KubernetesOptions,
}

/// Limits of services, by their names.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct ServiceShares(BTreeMap<String, ServiceAmounts>);

/// A container of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct ServiceContainer {
    pub(in super::super) service: String,
    pub(in super::super) container: String,
    pub(in super::super) role: ServiceRole,
    /// Whether the file wants it to be restarted.
    pub(in super::super) restarts: bool,
    /// The lists of hosts without a proxy among its variables.
    pub(in super::super) own_lists: BTreeMap<String, String>,
}

impl ServicesPlan {
    /// The containers of the services beside the environment.
    pub(in super::super) fn containers(&self) -> Vec<ServiceContainer> {
        let container = |(number, service): (usize, &ServiceSpec)| ServiceContainer {
            service: service.name.clone(),
            container: container_name(number, &service.name),
            role: service.role,
            restarts: service.restarts,
            own_lists: lists_of(
                service.env.iter().map(|(name, list)| (name.as_str(), list.as_str())),
            ),
        };
        self.others.iter().enumerate().map(container).collect()
    }
}

impl ServiceShares {
    /// The limits of the services beside an environment with `resources`.
    ///
    /// # Errors
    /// The reason why they do not fit.
    pub(in super::super) fn divide(
        plan: &ServicesPlan,
        resources: &Resources,
    ) -> Result<Self, String> {
        let requested = |service: &ServiceSpec| RequestedLimits {
            containers: 1,
            cpus: service.limits.cpus,
            memory_bytes: service.limits.memory_bytes,
        };
        let requested: Vec<_> = plan.others.iter().map(requested).collect();
        let even = compose::even_share(&requested, resources)?;
        let share = |service: &ServiceSpec| {
            let limits = service.limits;
            let cpus = limits.cpus.or(even.cpus);
            let memory_bytes = limits.memory_bytes.or(even.memory_bytes);
            (service.name.clone(), ServiceAmounts { cpus, memory_bytes })
        };
        Ok(Self(plan.others.iter().map(share).collect()))
    }
}

/// Whether a container is that of a service.
pub(in super::super) fn is_service(container: &str) -> bool {
    container.starts_with("service-") || container.starts_with("services-")
}

/// Service names are host names, which may be longer than names of containers, and have dots.
fn container_name(number: usize, service: &str) -> String {
    if service.len() <= MAX_NAME && !service.contains('.') {
        format!("service-{service}")
    } else {
        format!("services-{number}")
    }
}

/// Adds the services to the pod of an environment.
pub(in super::super) fn add_services(
    pod: &mut Pod,
    setup: ServiceSetup<'_>,
    resources: &Resources,
) {
    let Some(spec) = pod.spec.as_mut() else { return };
    let plan = setup.plan;
    let shared = shared_host_paths(plan);
    let mut volumes = VolumeSet::default();
    if let Some(main) = spec.containers.first_mut() {
        adapt_main(main, setup, &shared, &mut volumes);
    }
    for (service, names) in plan.others.iter().zip(plan.containers()) {
        let container = container(service, &names.container, setup, resources, &mut volumes);
        match service.role {
            ServiceRole::Beside => spec.containers.push(container),
            ServiceRole::Sidecar | ServiceRole::Init => {
                spec.init_containers.get_or_insert_default().push(container);
            }
        }
    }
    spec.volumes.get_or_insert_default().extend(volumes.made);
    spec.host_aliases = Some(host_aliases(plan));
    if let Some(architecture) = &plan.architecture {
        let label = ("kubernetes.io/arch".to_owned(), architecture.clone());
        spec.node_selector.get_or_insert_default().extend([label]);
    }
    allow_low_ports(spec);
}

fn allow_low_ports(spec: &mut PodSpec) {
    let sysctl = Sysctl { name: LOW_PORTS.to_owned(), value: "0".to_owned() };
    spec.security_context.get_or_insert_default().sysctls = Some(vec![sysctl]);
}

fn host_aliases(plan: &ServicesPlan) -> Vec<HostAlias> {
    let alias = |(ip, names): (&str, &BTreeSet<String>)| HostAlias {
        ip: ip.to_owned(),
        hostnames: Some(names.iter().cloned().collect()),
    };
    let others = plan.extra_hosts.iter().map(|(ip, names)| (ip.as_str(), names));
    [("127.0.0.1", &plan.host_names)].into_iter().chain(others).map(alias).collect()
}

/// The keys of the file that the environment's own container takes.
fn adapt_main(
    container: &mut Container,
    setup: ServiceSetup<'_>,
    shared: &[&HostPath],
    volumes: &mut VolumeSet,
) {
    let main = &setup.plan.main;
    if let Some(image) = setup.images.get(MAIN) {
        container.image = Some(image.clone());
    }
    container.working_dir = container.working_dir.take().or_else(|| main.workdir.clone());
    if main.has_own_process() {
        let shell = manifest::shell(setup.options);
        let start = [shell, "-c", RUN_OWN_PROCESS, "rollout"].map(str::to_owned);
        let words = [&main.entrypoint, &main.command].into_iter().flatten().flatten();
        container.command = Some(start.into_iter().chain(words.map(|w| literal(w))).collect());
    }
    if main.runs_by_itself() {
        container.env = Some(variables(main)).filter(|list| !list.is_empty());
    }
    container.startup_probe = main.health.as_ref().map(startup_probe);
    let own: Vec<_> =
        main.mounts.iter().filter(|mount| !is_own_host_path(mount)).cloned().collect();
    let at_host_path = |path: &&HostPath| ServiceMount {
        volume: MountVolume::Shared(path.volume.to_owned()),
        target: path.inside.to_owned(),
        is_read_only: false,
    };
    let mounts: Vec<_> = own.into_iter().chain(shared.iter().map(at_host_path)).collect();
    container.volume_mounts.get_or_insert_default().extend(volumes.mounts(&mounts));
    container.security_context = Some(security_context(main, setup));
    container.tty = main.has_terminal.then_some(true);
    container.stdin = main.has_stdin.then_some(true);
}

/// Whether a mount only puts a directory of the host where the environment has its own.
fn is_own_host_path(mount: &ServiceMount) -> bool {
    HOST_PATHS.iter().any(|path| is_of(mount, path) && mount.target == path.inside)
}

fn is_of(mount: &ServiceMount, path: &HostPath) -> bool {
    mount.volume == MountVolume::Shared(path.volume.to_owned())
}

/// The directories that services share with the environment.
fn shared_host_paths(plan: &ServicesPlan) -> Vec<&'static HostPath> {
    let is_added = |mount: &&ServiceMount| !is_own_host_path(mount);
    let of_main = plan.main.mounts.iter().filter(is_added);
    let of_others = plan.others.iter().flat_map(|service| &service.mounts);
    let mounts: Vec<_> = of_main.chain(of_others).collect();
    HOST_PATHS.iter().filter(|path| mounts.iter().any(|mount| is_of(mount, path))).collect()
}

/// The container of a service.
fn container(
    service: &ServiceSpec,
    name: &str,
    setup: ServiceSetup<'_>,
    resources: &Resources,
    volumes: &mut VolumeSet,
) -> Container {
    let words = |words: &Option<Vec<String>>| {
        words.as_ref().map(|words| words.iter().map(|word| literal(word)).collect())
    };
    // The end of a service of this kind is its success, which no probe decides.
    let probe = service.health.as_ref().filter(|_| service.role != ServiceRole::Init);
    let is_sidecar = service.role == ServiceRole::Sidecar;
    let mut mounts = vec![volumes.base()];
    mounts.extend(volumes.mounts(&service.mounts));
    Container {
        name: name.to_owned(),
        image: setup.images.get(&service.name).cloned(),
        command: words(&service.entrypoint),
        args: words(&service.command),
        env: Some(variables(service)).filter(|list| !list.is_empty()),
        working_dir: service.workdir.clone(),
        restart_policy: is_sidecar.then(|| "Always".to_owned()),
        startup_probe: probe.map(startup_probe),
        resources: Some(requirements(service, setup, resources)),
        security_context: Some(security_context(service, setup)),
        volume_mounts: Some(mounts),
        tty: service.has_terminal.then_some(true),
        stdin: service.has_stdin.then_some(true),
        ..Container::default()
    }
}

/// A text that Kubernetes takes as it is: it replaces `$(NAME)`, and `$$` by `$`.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn variables(service: &ServiceSpec) -> Vec<EnvVar> {
    let variable = |(name, value): (&String, &String)| EnvVar {
        name: name.clone(),
        value: Some(literal(value)),
        value_from: None,
    };
    service.env.iter().map(variable).collect()
}

/// A probe that succeeds when the check first does. It fails no sooner than the check would: probes
/// count whole seconds, and begin at once.
fn startup_probe(health: &HealthCheck) -> Probe {
    let seconds = |time: std::time::Duration| time.as_secs_f64().ceil().clamp(1.0, 1e6) as i32;
    let period = seconds(health.interval);
    let grace = (health.start_period.as_secs_f64() / f64::from(period)).ceil().min(1e6) as i32;
    let retries = i32::try_from(health.retries).unwrap_or(i32::MAX / 2);
    let command = health.command.iter().map(|word| literal(word)).collect();
    Probe {
        exec: Some(ExecAction { command: Some(command) }),
        period_seconds: Some(period),
        timeout_seconds: Some(seconds(health.timeout)),
        failure_threshold: Some(retries.saturating_add(grace).saturating_add(1)),
        ..Probe::default()
    }
}

fn security_context(service: &ServiceSpec, setup: ServiceSetup<'_>) -> SecurityContext {
    let mut context = manifest::security_context(setup.settings, setup.options);
    if let Some(capabilities) = context.capabilities.as_mut()
        && let Some(added) = capabilities.add.take()
    {
        let is_dropped =
            |name: &String| service.dropped.iter().any(|drop| drop == name || drop == "ALL");
        let kept: Vec<_> = added.into_iter().filter(|name| !is_dropped(name)).collect();
        capabilities.add = Some(kept).filter(|kept| !kept.is_empty());
    }
    // The settings of the operator and the job come first.
    if let Some(user) = service.user.filter(|_| setup.settings.run_as_user.is_none()) {
        context.run_as_user = Some(user.user);
        context.run_as_group = user.group;
    }
    context.read_only_root_filesystem = service.is_read_only.then_some(true);
    context
}

/// Limits are the service's share. Without a reservation of its own, a service requests the same
/// part of its limits as the environment.
fn requirements(
    service: &ServiceSpec,
    setup: ServiceSetup<'_>,
    resources: &Resources,
) -> ResourceRequirements {
    let limits = setup.shares.0.get(&service.name).copied().unwrap_or_default();
    let settings = setup.settings;
    let part = |request: &Option<Quantity>, of: f64| {
        let request = request.as_ref().and_then(amount);
        request.filter(|_| of > 0.0).map_or(1.0, |request| (request / of).min(1.0))
    };
    let cpu_part = part(&settings.cpu_request, f64::from(resources.cpus));
    let memory_part = part(&settings.memory_request, (resources.memory_mb << 20) as f64);
    let request = |own: Option<f64>, limit: Option<f64>, part: f64| match (own, limit) {
        (Some(own), Some(limit)) => Some(own.min(limit)),
        (own, limit) => own.or(limit.map(|limit| limit * part)),
    };
    let requests = ServiceAmounts {
        cpus: request(service.requests.cpus, limits.cpus, cpu_part),
        memory_bytes: request(service.requests.memory_bytes, limits.memory_bytes, memory_part),
    };
    ResourceRequirements {
        limits: quantities(limits),
        requests: quantities(requests),
        ..ResourceRequirements::default()
    }
}

fn quantities(amounts: ServiceAmounts) -> Option<BTreeMap<String, Quantity>> {
    let cpus = |cpus: f64| Quantity(format!("{}m", (cpus * 1000.0).floor().max(1.0)));
    let memory = |bytes: f64| Quantity(format!("{}", bytes.floor()));
    let cpu = amounts.cpus.map(|amount| ("cpu".to_owned(), cpus(amount)));
    let memory = amounts.memory_bytes.map(|amount| ("memory".to_owned(), memory(amount)));
    let all: BTreeMap<_, _> = cpu.into_iter().chain(memory).collect();
    (!all.is_empty()).then_some(all)
}

/// The volumes of a pod beside that of the provider. Names of a file are no names of volumes.
#[derive(Debug, Default)]
struct VolumeSet {
    made: Vec<Volume>,
    shared: BTreeMap<String, String>,
}

impl VolumeSet {
    /// The mount of the provider's own files in the container of a service. Each has its own volume,
    /// so that no container can change what commands in another one run.
    fn base(&mut self) -> VolumeMount {
        let name = self.add(None, None);
        VolumeMount { name, ..manifest::base_mount() }
    }

    /// The mounts of a service. Of several at one place, the last counts.
    fn mounts(&mut self, mounts: &[ServiceMount]) -> Vec<VolumeMount> {
        let mut made: Vec<VolumeMount> = Vec::new();
        for mount in mounts {
            let name = match &mount.volume {
                MountVolume::Shared(volume) => match self.shared.get(volume) {
                    Some(name) => name.clone(),
                    None => {
                        let name = self.add(None, None);
                        self.shared.insert(volume.clone(), name.clone());
                        name
                    }
                },
                MountVolume::Own => self.add(None, None),
                MountVolume::Memory(size) => self.add(Some("Memory"), *size),
            };
            made.retain(|other| other.mount_path != mount.target);
            made.push(VolumeMount {
                name,
                mount_path: mount.target.clone(),
                read_only: mount.is_read_only.then_some(true),
                ..VolumeMount::default()
            });
        }
        made
    }

    fn add(&mut self, medium: Option<&str>, size: Option<u64>) -> String {
        let name = format!("services-{}", self.made.len());
        let empty_dir = EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            size_limit: size.map(|bytes| Quantity(bytes.to_string())),
        };
        let empty_dir = Some(empty_dir);
        self.made.push(Volume { name: name.clone(), empty_dir, ..Volume::default() });
        name
    }
}
