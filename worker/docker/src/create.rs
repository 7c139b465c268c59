//! Creation and start of a container.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HealthConfig, HealthStatusEnum, HostConfig,
    HostConfigLogConfig,
};
use bollard::query_parameters::{CreateContainerOptions, InspectContainerOptions};
use rollout_environment::service_hosts::lists_of;
use rollout_environment::{
    CreateRequest, EnvironmentLabels, EnvironmentPurpose, Failure, FailureKind, OwnHealthcheck,
};
use rollout_protocol::record::{EnforcedLimits, LimitEnforcement};
use rollout_protocol::spec::environment::DockerSettings;
use rollout_protocol::spec::resources::Resources;

use super::client::DockerClient;
use super::compose::ComposeProject;
use super::container::{self, Container, PREFIX};
use super::deferred_removal::{DeferredRemoval, DeferredRemovals};
use super::failure::{has_status, says};
use super::image_health::ImageHealthchecks;
use super::network::ContainerNetwork;
use super::storage::StorageLimit;
use super::{labels, oom};
pub(super) use rollout_environment::start::KEEP_ALIVE;

/// Delays of the checks whether an entrypoint is still running, each after the previous one.
const ENTRYPOINT_CHECKS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(100)];

/// Limit of processes and threads in one container: enough for parallel builds and test runs, and
/// low enough to contain a fork bomb.
pub(super) const PIDS: i64 = 512;

/// Limit of the container's own output, which only matters when it does not come up: a chatty
/// ENTRYPOINT must not fill the host's disk.
pub(super) const LOG_BYTES: &str = "1m";

/// Timeout for an earlier attempt's container to appear and be removed, and the poll interval.
const NAME_FREE_WITHIN: Duration = Duration::from_secs(30);
const NAME_PAUSE: Duration = Duration::from_millis(50);

/// Storage drivers that refuse a limit they cannot enforce; others may ignore it.
const LIMITING_DRIVERS: [&str; 4] = ["overlay2", "btrfs", "zfs", "devicemapper"];

const MIB: u64 = 1024 * 1024;

/// A container that is running.
#[derive(Debug)]
pub(super) struct StartedContainer {
    pub(super) container: Container,
    pub(super) workdir: String,
    /// Whether it runs a program besides the command that keeps it alive.
    pub(super) has_own_programs: bool,
    pub(super) own_healthcheck: Option<OwnHealthcheck>,
    pub(super) limits: EnforcedLimits,
    /// Its storage limit.
    pub(super) storage: StorageLimit,
    /// The project that it belongs to, if any.
    pub(super) project: Option<ComposeProject>,
}

/// Creates and starts a container with the request's files in place. On failure nothing is left
/// behind. The engine's lack of storage limits and the healthchecks of images are kept for later calls.
pub(super) async fn create(
    client: &Arc<DockerClient>,
    (no_storage_limits, healthchecks): (&AtomicBool, &ImageHealthchecks),
    leftovers: &DeferredRemovals,
    settings: &DockerSettings,
    request: CreateRequest,
) -> Result<StartedContainer, Failure> {
    let network = ContainerNetwork::for_policy(settings, &request.network);
    let name = name(&request.labels, request.purpose);
    let (id, limits) = make(client, no_storage_limits, settings, &request, &name).await?;
    let container = Container::new(Arc::clone(client), id, name, network);
    let up = async {
        let state = bring_up(&container, request, limits).await?;
        let check = healthchecks.find(client, &state.image).await?;
        Ok::<_, Failure>((state, check.map(OwnHealthcheck::OfImage)))
    };
    match up.await {
        Ok((RunningState { workdir, limits, has_own_programs, .. }, own_healthcheck)) => {
            let storage = StorageLimit::for_container(&container, Vec::new(), limits).await;
            Ok(StartedContainer {
                container,
                workdir,
                has_own_programs,
                own_healthcheck,
                limits,
                storage,
                project: None,
            })
        }
        Err(failure) => {
            leftovers
                .remove_or_defer(DeferredRemoval::Container(container.engine_id, container.name))
                .await;
            Err(failure)
        }
    }
}

/// The name of an execution's container: readable, and unique by the execution and the purpose.
pub(super) fn name(labels: &EnvironmentLabels, purpose: EnvironmentPurpose) -> String {
    let suffix = match purpose {
        EnvironmentPurpose::Agent => "",
        EnvironmentPurpose::Verifier => "-verifier",
    };
    format!("{PREFIX}{}-{}{suffix}", labels.item.short(), labels.exec)
}

async fn make(
    client: &DockerClient,
    no_storage_limits: &AtomicBool,
    settings: &DockerSettings,
    request: &CreateRequest,
    name: &str,
) -> Result<(String, EnforcedLimits), Failure> {
    let docker = client.docker().await?;
    let began = Instant::now();
    loop {
        let resources = &request.resources;
        let limit_storage =
            resources.storage_ceiling_mb().is_some() && !no_storage_limits.load(Ordering::Relaxed);
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            platform: settings.platform.clone().unwrap_or_default(),
        };
        let body = body(settings, request, limit_storage);
        match docker.create_container(Some(options), body).await {
            Ok(made) => {
                return Ok((made.id, enforced_limits(&made.warnings, resources, limit_storage)));
            }
            Err(error) if limit_storage && says(&error, "storage-opt") => {
                tracing::info!("the engine's storage driver cannot limit storage: measuring it");
                no_storage_limits.store(true, Ordering::Relaxed);
            }
            Err(error) if has_status(&error, 409) && began.elapsed() < NAME_FREE_WITHIN => {
                remove_own(client, name, &request.labels, error).await?;
            }
            Err(error) => return Err(create_failure(client, name, request, error)),
        }
    }
}

/// Removes the container of an earlier attempt of this execution, which may have been cancelled
/// while the engine created the container. The name is taken for some time before the container is
/// visible.
async fn remove_own(
    client: &DockerClient,
    name: &str,
    owner: &EnvironmentLabels,
    conflict: bollard::errors::Error,
) -> Result<(), Failure> {
    let docker = client.docker().await?;
    let found = match docker.inspect_container(name, None::<InspectContainerOptions>).await {
        Ok(found) => found,
        Err(error) if has_status(&error, 404) => {
            tokio::time::sleep(NAME_PAUSE).await;
            return Ok(());
        }
        Err(error) => return Err(client.failure(&format!("cannot look for {name}"), error)),
    };
    let exec = found.config.and_then(|config| config.labels?.remove(labels::EXEC));
    if exec == Some(owner.exec.to_string()) {
        container::remove(client, name, name).await
    } else {
        Err(client.failure(&format!("cannot create the container {name}"), conflict))
    }
}

fn create_failure(
    client: &DockerClient,
    name: &str,
    request: &CreateRequest,
    error: bollard::errors::Error,
) -> Failure {
    let image = &request.image.reference;
    let missing = has_status(&error, 404) && says(&error, "No such image");
    let mut failure = client
        .failure(&format!("cannot create the container {name} from the image {image}"), error);
    if missing {
        // It existed when it was prepared, so a retry may find it again.
        failure.kind = FailureKind::Service;
        failure.message.push_str(" (the image was removed after its preparation)");
    }
    failure
}

fn body(
    settings: &DockerSettings,
    request: &CreateRequest,
    limit_storage: bool,
) -> ContainerCreateBody {
    let command = ["/bin/sh", "-c", KEEP_ALIVE].map(str::to_owned).to_vec();
    ContainerCreateBody {
        image: Some(request.image.reference.clone()),
        cmd: Some(command),
        env: (!request.env.is_empty()).then(|| variables(&request.env)),
        // The engine creates it if the image does not have it.
        working_dir: request.workdir.clone(),
        labels: Some(labels::for_container(&request.labels)),
        stop_signal: Some("SIGTERM".to_owned()),
        // The engine would run an image's check as long as the container lives.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..Default::default()
        }),
        host_config: Some(host_config(settings, request, limit_storage)),
        ..Default::default()
    }
}

fn host_config(
    settings: &DockerSettings,
    request: &CreateRequest,
    limit_storage: bool,
) -> HostConfig {
    let resources = &request.resources;
    let memory = resources.memory_ceiling_mb().map(bytes);
    let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    HostConfig {
        init: Some(true),
        nano_cpus: resources.cpu_ceiling().map(nano_cpus),
        memory,
        // Equal to the memory: no swap.
        memory_swap: memory,
        pids_limit: Some(PIDS),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        network_mode: Some(ContainerNetwork::mode(settings).to_owned()),
        device_requests: (resources.gpus > 0).then(|| vec![gpus(resources.gpus)]),
        runtime: settings.runtime.clone(),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([text("max-size", LOG_BYTES), text("max-file", "1")])),
        }),
        storage_opt: limit_storage
            .then(|| HashMap::from([("size".to_owned(), format!("{}M", resources.storage_mb))])),
        ..Default::default()
    }
}

/// Variables in the engine's format.
pub(super) fn variables(env: &BTreeMap<String, String>) -> Vec<String> {
    env.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// A memory limit in the engine's format.
fn bytes(mib: u64) -> i64 {
    i64::try_from(mib.saturating_mul(MIB)).unwrap_or(i64::MAX)
}

/// A processor limit in the engine's format.
fn nano_cpus(cpus: u32) -> i64 {
    i64::from(cpus) * 1_000_000_000
}

/// Any GPUs of the engine's host, with any driver.
fn gpus(count: u32) -> DeviceRequest {
    DeviceRequest {
        count: Some(i64::from(count)),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..Default::default()
    }
}

/// The enforced limits, from the request and the engine's warnings.
pub(super) fn enforced_limits(
    warnings: &[String],
    resources: &Resources,
    limit_storage: bool,
) -> EnforcedLimits {
    let asked = |asked: bool, texts: &[&str]| {
        let warned = |text: &&str| warnings.iter().any(|warning| warning.contains(*text));
        if !asked || texts.iter().any(warned) {
            LimitEnforcement::No
        } else {
            LimitEnforcement::Enforced
        }
    };
    EnforcedLimits {
        cpus: asked(resources.cpu_ceiling().is_some(), &["CPU CFS", "support cpu"]),
        memory: asked(resources.memory_ceiling_mb().is_some(), &["support memory limit"]),
        pids: asked(true, &["support pids limit", "PIDs limit"]),
        storage: match resources.storage_ceiling_mb() {
            None => LimitEnforcement::No,
            Some(_) if limit_storage => LimitEnforcement::Enforced,
            Some(_) => LimitEnforcement::Measured,
        },
    }
}

/// Checks that the container stays up. The engine reports success for an entrypoint that cannot be
/// run: the container's init starts, fails to run it, and ends. That takes milliseconds; images
/// without an entrypoint do not wait.
async fn stays_up(container: &Container) -> Result<(), Failure> {
    for pause in ENTRYPOINT_CHECKS {
        tokio::time::sleep(pause).await;
        let state = container.inspect().await?.state.unwrap_or_default();
        if state.running != Some(true) {
            return Err(container.exit_failure().await);
        }
    }
    Ok(())
}

/// Places the files, starts the container and checks that it stays up.
async fn bring_up(
    container: &Container,
    request: CreateRequest,
    limits: EnforcedLimits,
) -> Result<RunningState, Failure> {
    if !request.uploads.is_empty() {
        container.copy_to(request.uploads).await?;
    }
    container.close_before_start().await?;
    let docker = container.client.docker().await?;
    docker.start_container(&container.engine_id, None).await.map_err(|error| {
        let mut failure = container.failure("cannot start the first process", error);
        if failure.kind == FailureKind::Refused {
            failure.kind = FailureKind::NotStarted;
        }
        failure
    })?;
    check_running(container, limits).await
}

/// A container as its engine describes it after the start.
#[derive(Debug)]
pub(super) struct RunningState {
    pub(super) workdir: String,
    pub(super) limits: EnforcedLimits,
    /// Whether it runs a program besides the command that keeps it alive.
    pub(super) has_own_programs: bool,
    /// The id of its image.
    pub(super) image: String,
    /// Whether it has a healthcheck that the engine runs, which has succeeded.
    pub(super) is_healthy: bool,
    /// The lists of hosts without a proxy among its variables.
    pub(super) own_lists: BTreeMap<String, String>,
}

/// Checks that a started container stays up.
pub(super) async fn check_running(
    container: &Container,
    mut limits: EnforcedLimits,
) -> Result<RunningState, Failure> {
    let found = container.inspect().await?;
    let state = found.state.unwrap_or_default();
    if state.running != Some(true) {
        return Err(container.exit_failure().await);
    }
    let config = found.config.unwrap_or_default();
    let has_entrypoint = config.entrypoint.is_some_and(|entrypoint| !entrypoint.is_empty());
    if has_entrypoint {
        stays_up(container).await?;
    }
    // A service's file may replace the command.
    let is_kept = |command: &Vec<String>| command.last().is_some_and(|last| last == KEEP_ALIVE);
    let has_own_programs = has_entrypoint || !config.cmd.as_ref().is_some_and(is_kept);
    let health = state.health.and_then(|health| health.status);
    let is_healthy = health == Some(HealthStatusEnum::HEALTHY);
    if let Some(file) = state.pid.and_then(|pid| oom::oom_count_file(pid, &container.engine_id)) {
        container.oom_count.set(file).ok();
    }
    let limiting = found.driver.is_some_and(|driver| LIMITING_DRIVERS.contains(&driver.as_str()));
    if limits.storage == LimitEnforcement::Enforced && !limiting {
        limits.storage = LimitEnforcement::Measured;
    }
    let own_lists = own_lists(config.env.as_deref());
    let workdir = workdir(config.working_dir);
    let image = found.image.unwrap_or_default();
    Ok(RunningState { workdir, limits, has_own_programs, image, is_healthy, own_lists })
}

/// The lists of hosts without a proxy among a container's variables, from the engine's description.
pub(super) fn own_lists(variables: Option<&[String]>) -> BTreeMap<String, String> {
    let variables = variables.unwrap_or_default().iter();
    lists_of(variables.filter_map(|variable| variable.split_once('=')))
}

/// A container's working directory, from the engine's description.
pub(super) fn workdir(found: Option<String>) -> String {
    found.filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned())
}
