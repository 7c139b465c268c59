//! Manifests of pods, as pure functions of requests and settings.
//!
//! No setting of a job can make a container privileged, mount the host into it or share the host's
//! namespaces. Variables of a trial are not in the manifest: they may be secrets, and everybody who
//! may read pods would see them. They travel with each command.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, LocalObjectReference, Pod, PodSecurityContext,
    PodSpec, ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rollout_environment::{CreateRequest, Failure, FailureKind};
use rollout_protocol::record::{EnforcedLimits, LimitEnforcement};
use rollout_protocol::spec::resources::Resources;

use super::labels::{self, PodRole};
use super::options::KubernetesOptions;
use super::services::{ServiceSetup, add_services};
use super::settings::PodSettings;
pub(super) use rollout_environment::compose::MAIN;
pub(super) use rollout_environment::start::KEEP_ALIVE;

/// Directory of the provider's own files in a container: spooled output of commands, and helper
/// programs. On a volume, so that every user can write there and the image needs no such directory.
pub(super) const BASE_DIR: &str = "/.rollout";

/// Directory of the helper's programs. On a volume of its own that the environment cannot write to: they
/// are the operator's whatever has run in it.
const HELPER_DIR: &str = "/.rollout/bin";

/// Path of the helper's shell.
pub(super) const HELPER_SHELL: &str = "/.rollout/bin/sh";

/// Copies a static `busybox` to the helper's directory, with a link for each of its programs.
const INSTALL_HELPER: &str = "mkdir -p /.rollout/bin && \
    cp \"$(command -v busybox)\" /.rollout/bin/busybox && \
    /.rollout/bin/busybox --install -s /.rollout/bin";

/// Names of the volumes of [`BASE_DIR`] and [`HELPER_DIR`].
const BASE_VOLUME: &str = "rollout";
const HELPER_VOLUME: &str = "rollout-programs";

/// Seconds between TERM and KILL when somebody else deletes a pod.
const GRACE_SECONDS: i64 = 2;

/// Identity of the process that creates pods.
#[derive(Debug, Clone)]
pub(super) struct PodCreator {
    /// The provider object.
    pub(super) instance: String,
    /// The worker's own pod, when it runs in the same namespace of the cluster.
    pub(super) own_pod: Option<OwnPod>,
}

/// The pod of the worker itself. The cluster removes the pods of a trial with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnPod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) namespace: String,
}

/// Port of the model gateway in the pod of a worker.
const GATEWAY_PORT: u16 = 4290;

/// The address at which pods reach this worker, from the variable that its manifest sets.
pub(super) fn own_address(variable: impl Fn(&str) -> Option<String>) -> Option<SocketAddr> {
    let ip: IpAddr = variable("ROLLOUT_POD_IP")?.parse().ok()?;
    Some(SocketAddr::new(ip, GATEWAY_PORT))
}

impl OwnPod {
    /// From the variables that the worker's manifest sets.
    pub(super) fn from_env(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        Some(Self {
            name: set("ROLLOUT_POD_NAME")?,
            uid: set("ROLLOUT_POD_UID")?,
            namespace: set("ROLLOUT_POD_NAMESPACE")?,
        })
    }
}

/// Path of the shell that runs the provider's own scripts.
pub(super) fn shell(options: &KubernetesOptions) -> &'static str {
    if options.helper_image.is_some() { HELPER_SHELL } else { "/bin/sh" }
}

/// The pod of an environment.
pub(super) fn pod(
    request: &CreateRequest,
    settings: &PodSettings,
    options: &KubernetesOptions,
    creator: &PodCreator,
    namespace: &str,
    now: SystemTime,
    services: Option<ServiceSetup<'_>>,
) -> Result<Pod, Failure> {
    if request.workdir.as_ref().is_some_and(|path| !path.starts_with('/')) {
        let text = "cannot create a pod: the working directory is not an absolute path";
        return Err(Failure::new(FailureKind::Refused, text));
    }
    let name = labels::pod_name(&request.labels, request.purpose);
    let meta = metadata(&request.labels, name, options, creator, namespace, now)?;
    let container = Container {
        name: MAIN.to_owned(),
        image: Some(request.image.reference.clone()),
        command: Some([shell(options), "-c", KEEP_ALIVE].map(str::to_owned).to_vec()),
        // The runtime creates it if the image does not have it.
        working_dir: request.workdir.clone(),
        resources: Some(resources(&request.resources, settings, options)),
        security_context: Some(security_context(settings, options)),
        volume_mounts: Some(vec![base_mount()]),
        ..Container::default()
    };
    let mut pod = bare_pod(meta, container, settings);
    add_helper(&mut pod, settings, options);
    if let Some(services) = services {
        add_services(&mut pod, services, &request.resources);
    }
    Ok(pod)
}

/// The metadata of a pod.
pub(super) fn metadata(
    owner: &rollout_environment::EnvironmentLabels,
    name: String,
    options: &KubernetesOptions,
    creator: &PodCreator,
    namespace: &str,
    now: SystemTime,
) -> Result<ObjectMeta, Failure> {
    let lease = Duration::from_secs(options.abandoned_after_sec);
    Ok(ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels::labels(owner, &creator.instance, PodRole::Environment)),
        annotations: Some(labels::annotations(owner, now, lease)?),
        owner_references: owner_references(creator, namespace),
        ..ObjectMeta::default()
    })
}

/// An owner in another namespace would be no owner: the cluster would remove the pod at once.
fn owner_references(creator: &PodCreator, namespace: &str) -> Option<Vec<OwnerReference>> {
    let own = creator.own_pod.as_ref().filter(|own| own.namespace == namespace)?;
    Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: own.name.clone(),
        uid: own.uid.clone(),
        ..OwnerReference::default()
    }])
}

/// A pod with one container and the settings that all pods share.
pub(super) fn bare_pod(metadata: ObjectMeta, main: Container, settings: &PodSettings) -> Pod {
    let secrets = settings.image_pull_secrets.iter();
    let secrets: Vec<_> = secrets.map(|name| LocalObjectReference { name: name.clone() }).collect();
    let spec = PodSpec {
        containers: vec![main],
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        enable_service_links: Some(false),
        active_deadline_seconds: Some(settings.active_deadline_sec),
        automount_service_account_token: Some(settings.service_account.is_some()),
        service_account_name: settings.service_account.clone(),
        runtime_class_name: settings.runtime_class.clone(),
        priority_class_name: settings.priority_class.clone(),
        node_selector: some_map(&settings.node_selector),
        tolerations: Some(settings.tolerations.clone()).filter(|list| !list.is_empty()),
        affinity: settings.affinity.clone(),
        image_pull_secrets: Some(secrets).filter(|list| !list.is_empty()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: settings.run_as_non_root.then_some(true),
            run_as_user: settings.run_as_user,
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        volumes: Some(vec![empty_volume(BASE_VOLUME)]),
        ..PodSpec::default()
    };
    Pod { metadata, spec: Some(spec), status: None }
}

fn empty_volume(name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}

/// The mount of [`BASE_DIR`].
pub(super) fn base_mount() -> VolumeMount {
    VolumeMount {
        name: BASE_VOLUME.to_owned(),
        mount_path: BASE_DIR.to_owned(),
        ..VolumeMount::default()
    }
}

/// The mount of [`HELPER_DIR`].
fn helper_mount(read_only: bool) -> VolumeMount {
    VolumeMount {
        name: HELPER_VOLUME.to_owned(),
        mount_path: HELPER_DIR.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// A container of the provider's own that needs little.
pub(super) fn small_container(
    image: &str,
    settings: &PodSettings,
    options: &KubernetesOptions,
) -> Container {
    let small = |cpu: &str, memory: &str| {
        let values = [("cpu", cpu), ("memory", memory)];
        Some(values.map(|(key, value)| (key.to_owned(), Quantity(value.to_owned()))).into())
    };
    Container {
        name: MAIN.to_owned(),
        image: Some(options.mirrored(image)),
        command: Some(["/bin/sh", "-c", KEEP_ALIVE].map(str::to_owned).to_vec()),
        resources: Some(ResourceRequirements {
            limits: small("1", "64Mi"),
            requests: small("10m", "16Mi"),
            ..ResourceRequirements::default()
        }),
        security_context: Some(security_context(settings, options)),
        volume_mounts: Some(vec![base_mount()]),
        ..Container::default()
    }
}

/// Adds the operator's programs for images without them, if there are any.
pub(super) fn add_helper(pod: &mut Pod, settings: &PodSettings, options: &KubernetesOptions) {
    if let (Some(image), Some(spec)) = (&options.helper_image, pod.spec.as_mut()) {
        spec.init_containers = Some(vec![helper(image, settings, options)]);
        spec.volumes.get_or_insert_default().push(empty_volume(HELPER_VOLUME));
        for container in &mut spec.containers {
            container.volume_mounts.get_or_insert_default().push(helper_mount(true));
        }
    }
}

/// The init container that provides programs for images without them.
fn helper(image: &str, settings: &PodSettings, options: &KubernetesOptions) -> Container {
    Container {
        name: "helper".to_owned(),
        command: Some(["sh", "-c", INSTALL_HELPER].map(str::to_owned).to_vec()),
        volume_mounts: Some(vec![base_mount(), helper_mount(false)]),
        ..small_container(image, settings, options)
    }
}

/// The security context of a container.
pub(super) fn security_context(
    settings: &PodSettings,
    options: &KubernetesOptions,
) -> SecurityContext {
    // A user other than root needs none.
    let add = if settings.run_as_non_root { Vec::new() } else { options.capabilities.clone() };
    SecurityContext {
        allow_privilege_escalation: Some(false),
        privileged: Some(false),
        capabilities: Some(Capabilities {
            add: Some(add).filter(|list| !list.is_empty()),
            drop: Some(vec!["ALL".to_owned()]),
        }),
        ..SecurityContext::default()
    }
}

/// Requests and limits. Values that are no ceilings are only requested, except storage, which few
/// nodes account for.
fn resources(
    resources: &Resources,
    settings: &PodSettings,
    options: &KubernetesOptions,
) -> ResourceRequirements {
    let mib = |mib: u64| Quantity(format!("{mib}Mi"));
    let (mut limits, mut requests) = (BTreeMap::new(), BTreeMap::new());
    if let Some(cpus) = resources.cpu_ceiling() {
        limits.insert("cpu".to_owned(), Quantity(cpus.to_string()));
    }
    if let Some(mb) = resources.memory_ceiling_mb() {
        limits.insert("memory".to_owned(), mib(mb));
    }
    if let Some(mb) = resources.storage_ceiling_mb() {
        limits.insert("ephemeral-storage".to_owned(), mib(mb));
        requests.insert("ephemeral-storage".to_owned(), mib(mb));
    }
    let cpus = settings.cpu_request.clone();
    let cpus = cpus.or_else(|| (resources.cpus > 0).then(|| Quantity(resources.cpus.to_string())));
    requests.extend(cpus.map(|cpus| ("cpu".to_owned(), cpus)));
    let memory = settings.memory_request.clone();
    let memory = memory.or_else(|| (resources.memory_mb > 0).then(|| mib(resources.memory_mb)));
    requests.extend(memory.map(|memory| ("memory".to_owned(), memory)));
    if resources.gpus > 0 {
        // An extended resource is requested by its limit.
        limits.insert(options.gpu_resource.clone(), Quantity(resources.gpus.to_string()));
    }
    ResourceRequirements {
        limits: some_map(&limits),
        requests: some_map(&requests),
        ..ResourceRequirements::default()
    }
}

/// The limits that the cluster enforces. The kubelet measures storage and evicts pods above their
/// limit. The limit of processes belongs to the node.
pub(super) fn enforced_limits(resources: &Resources) -> EnforcedLimits {
    let when = |set: bool, enforcement| if set { enforcement } else { LimitEnforcement::No };
    EnforcedLimits {
        cpus: when(resources.cpu_ceiling().is_some(), LimitEnforcement::Enforced),
        memory: when(resources.memory_ceiling_mb().is_some(), LimitEnforcement::Enforced),
        pids: LimitEnforcement::No,
        storage: when(resources.storage_ceiling_mb().is_some(), LimitEnforcement::Measured),
    }
}

fn some_map<T: Clone>(map: &BTreeMap<String, T>) -> Option<BTreeMap<String, T>> {
    (!map.is_empty()).then(|| map.clone())
}

#[cfg(test)]
mod tests;
