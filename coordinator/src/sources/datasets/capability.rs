//! Checks that the job's environment supports a task's demands. A task that it cannot run settles
//! as unsupported, with the key and the reason, and the others run; a strict run is refused
//! instead. No demand of a task is ignored silently.
//!
//! A process sandbox has no image, so a task whose image provides more than the sandbox is
//! unsupported too, unless the job sets `ignore_dockerfile`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollout_base::confined::ConfinedDir;
use rollout_environment::descriptor::{self, CapabilitySupport, ProviderDescriptor};
use rollout_environment::{ComposeFile, FailureKind};
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::spec::agent::{AgentSpec, TaskFeature};
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::task::McpServer;

use super::discover::TASK_FILE;
use super::{TaskParts, trajectory};
use crate::config::{
    ConfigError, Demand, DemandKind, Diagnostics, ErrorKind, Job, SourceLocation, TaskFile,
    trajectory_file,
};
use crate::providers;

/// Demands named in the error of a trial; the others are only counted.
const MAX_NAMED_DEMANDS: usize = 5;

/// Input of a capability check.
pub(super) struct CapabilityCheck<'a> {
    pub(super) job: &'a Job,
    pub(super) dir: &'a Path,
    pub(super) root: &'a ConfinedDir,
    pub(super) file: &'a TaskFile,
    pub(super) parts: &'a TaskParts,
}

impl CapabilityCheck<'_> {
    fn descriptor(&self) -> &'static ProviderDescriptor {
        descriptor::for_kind(self.job.settings.environment.provider.kind())
    }

    /// Whether there are services beside the environment, of the task or of the job.
    fn has_services(&self) -> bool {
        self.parts.compose.is_some() || !self.job.settings.compose_overlays.is_empty()
    }
}

/// Demands of a task that the job's environment or its agents do not support, and files that cannot
/// be read.
#[derive(Debug, Default)]
pub(super) struct UnsupportedDemands {
    /// Under every agent.
    pub(super) always: Vec<ConfigError>,
    /// Only under agents that call models.
    pub(super) for_models: Vec<ConfigError>,
    /// Features that an agent of the job cannot use: its worker refuses the trials.
    for_agents: Vec<ConfigError>,
}

impl UnsupportedDemands {
    /// The demands that matter for the agents of a job.
    pub(super) fn into_job_errors(self, job: &Job) -> impl Iterator<Item = ConfigError> {
        let calls_models = job.agents.iter().any(|agent| agent.spec.kind.calls_models());
        let for_models = self.for_models.into_iter().filter(move |_| calls_models);
        self.always.into_iter().chain(for_models).chain(self.for_agents)
    }
}

/// The error of the trials of the task `shown` in `dir`; `None` if all demands are supported.
pub(super) fn fault(
    shown: &str,
    dir: &Path,
    provider: ProviderKind,
    demands: &[ConfigError],
) -> Option<TrialError> {
    let demand = |error: &ConfigError| {
        let file = error.file.strip_prefix(dir).unwrap_or(&error.file).display();
        let line = error.line.map(|line| format!(":{line}")).unwrap_or_default();
        let key = if error.key.is_empty() { String::new() } else { format!(" {}", error.key) };
        format!("{file}{line}{key}: {}", error.found)
    };
    let is_demand = |error: &&ConfigError| {
        matches!(error.kind, ErrorKind::Unsupported | ErrorKind::UnsupportedInstruction)
    };
    if let Some(broken) = demands.iter().find(|error| !is_demand(error)) {
        let message = format!("the task {shown} cannot run: {}", demand(broken));
        let (kind, code) = (ErrorType::TaskInvalid, ErrorCode::REFUSED);
        return Some(super::task::invalid(kind, code, message));
    }
    let mut demands: Vec<String> = demands.iter().map(demand).collect();
    if demands.is_empty() {
        return None;
    }
    let more = demands.len().saturating_sub(MAX_NAMED_DEMANDS);
    demands.truncate(MAX_NAMED_DEMANDS);
    if more > 0 {
        demands.push(format!("and {more} more"));
    }
    let demands = demands.join("; ");
    let message = format!("the environment `{provider}` cannot run the task {shown}: {demands}");
    Some(TrialError::unsupported(message))
}

/// Collects the demands that the job's environment does not support. Unreadable files are errors.
pub(super) fn check(task: &CapabilityCheck<'_>, problems: &mut Diagnostics) -> UnsupportedDemands {
    let provider = &task.job.settings.environment.provider;
    let mut found = UnsupportedDemands::default();
    for demand in &task.file.demands {
        if let Some(why) = unsupported_reason(provider.kind(), demand, task.has_services()) {
            let location = &demand.location;
            let at = task.dir.join(TASK_FILE);
            let error = location.error(&at, ErrorKind::Unsupported, why, expected(provider.kind()));
            found.always.push(error);
        }
    }
    if task.job.agents.iter().any(|agent| agent.spec.kind.calls_models()) {
        trajectories(task, &mut found.for_models);
    }
    agent_features(task, &mut found.for_agents);
    let descriptor = task.descriptor();
    for at in services(task) {
        match descriptor.capabilities.services {
            CapabilitySupport::No(why) => refuse_services(&at, descriptor, why, &mut found.always),
            CapabilitySupport::Yes => check_services(&at, provider.kind(), &mut found.always),
        }
    }
    if !descriptor.capabilities.images.is_supported() && !provider.ignores_dockerfile() {
        check_images(task, &mut found.always, problems);
    }
    found
}

/// The compose files of a task, with their directories.
fn services(task: &CapabilityCheck<'_>) -> impl Iterator<Item = (PathBuf, String)> {
    let own = task.parts.compose.as_ref().map(|file| (PathBuf::from("environment"), file));
    let of_verifiers =
        task.parts.steps.iter().filter_map(|step| {
            Some((step.verifier_context.clone()?, step.verifier_compose.as_ref()?))
        });
    let files: BTreeSet<_> = own.into_iter().chain(of_verifiers).collect();
    let in_task = |(dir, file): (PathBuf, &String)| (task.dir.join(dir), file.clone());
    files.into_iter().map(in_task).collect::<Vec<_>>().into_iter()
}

/// Refuses compose files that read files outside the task's environment directory. If this program
/// cannot decide, the worker refuses the trials.
fn check_services(
    (dir, file): &(PathBuf, String),
    provider: ProviderKind,
    found: &mut Vec<ConfigError>,
) {
    let built = providers::for_kind(provider);
    let Some(check) = built.and_then(|built| built.check_services) else { return };
    let Err(failure) = check(&ComposeFile::of_task(dir, file)) else { return };
    let location = SourceLocation { key: String::new(), line: None };
    let (kind, expected) = match failure.kind {
        FailureKind::Unsupported => {
            (ErrorKind::Unsupported, "services of the task's own environment directory")
        }
        _ => (ErrorKind::Syntax, "a compose file"),
    };
    // The location already names the file.
    let why = failure.chain();
    let why = why.strip_prefix(&format!("{file}: ")).unwrap_or(&why).to_owned();
    found.push(location.error(&dir.join(file), kind, why, expected));
}

/// The reason why a provider does not support a demand; `None` if it does.
fn unsupported_reason(
    provider: ProviderKind,
    demand: &Demand,
    has_services: bool,
) -> Option<String> {
    let capabilities = &descriptor::for_kind(provider).capabilities;
    match &demand.kind {
        DemandKind::User(user) => {
            capabilities.users.unsupported_reason().map(|why| format!("the user `{user}`; {why}"))
        }
        DemandKind::NetworkOfPhase => {
            let shared = has_services.then_some("services share the network for the whole trial");
            let why = capabilities.phase_networks.unsupported_reason().or(shared);
            why.map(|why| format!("a network policy other than the environment's; {why}"))
        }
        DemandKind::Allowlist => {
            let shared = has_services.then_some("services share one network");
            let why = capabilities.allowlists.unsupported_reason().or(shared);
            why.map(|why| format!("an allowlist of hosts; {why}"))
        }
        DemandKind::Gpus => {
            capabilities.gpus.unsupported_reason().map(|why| format!("GPUs; {why}"))
        }
        DemandKind::GpuTypes(types) => Some(format!(
            "GPUs of the type {}; this environment cannot choose one",
            types.join(" or ")
        )),
        DemandKind::Tpu => Some("TPUs, which this environment does not have".into()),
        DemandKind::Windows => Some("Windows, which this environment does not have".into()),
        DemandKind::Service(name) => (!has_services).then(|| {
            format!("the service `{name}`; the task has no environment/docker-compose.yaml")
        }),
    }
}

fn expected(provider: ProviderKind) -> String {
    format!("what the environment `{provider}` supports")
}

/// Refuses features of the task that an agent of the job cannot use.
fn agent_features(task: &CapabilityCheck<'_>, found: &mut Vec<ConfigError>) {
    let file = task.file;
    let in_task = || task.dir.join(TASK_FILE);
    let of_job = &task.job.environment_changes.mcp_servers;
    let in_job = || task.job.file.clone();
    let mcp = (!file.mcp_servers.is_empty()).then(in_task);
    let mcp = mcp.or_else(|| (!of_job.is_empty()).then(in_job));
    let sse = file.mcp_servers.iter().any(McpServer::has_sse).then(in_task);
    let sse = sse.or_else(|| of_job.iter().any(McpServer::has_sse).then(in_job));
    let skills = file.skills_dir.is_some().then(in_task);
    let trajectory = trajectory_files(task.dir, file).into_iter().next();
    let trajectory = trajectory.map(|file| task.dir.join(file));
    let features = [
        (TaskFeature::Mcp, "environment.mcp_servers", mcp),
        (TaskFeature::McpSse, "environment.mcp_servers", sse),
        (TaskFeature::Skills, "environment.skills_dir", skills),
        (TaskFeature::Trajectory, "", trajectory),
    ];
    for (feature, key, at) in features {
        let Some(at) = at else { continue };
        // An agent without any MCP servers is refused once.
        let is_reported =
            |agent: &AgentSpec| feature == TaskFeature::McpSse && !agent.can_use(TaskFeature::Mcp);
        let lacks = |agent: &AgentSpec| !agent.can_use(feature) && !is_reported(agent);
        for agent in task.job.agents.iter().filter(|agent| lacks(&agent.spec)) {
            let location = SourceLocation { key: key.to_owned(), line: None };
            let (name, features) = (&agent.spec.name, feature.description());
            let text = format!("{features}, which the agent `{name}` cannot use");
            let expected = format!("an agent that uses {features}, or none of them");
            found.push(location.error(&at, ErrorKind::Unsupported, text, expected));
        }
    }
}

/// Refuses initial conversations that cannot be read.
fn trajectories(task: &CapabilityCheck<'_>, found: &mut Vec<ConfigError>) {
    for file in trajectory_files(task.dir, task.file) {
        let read = trajectory_file::read_valid_of_task(task.dir, &file);
        let Err(why) = read else { continue };
        let location = SourceLocation { key: String::new(), line: None };
        let text = format!("an initial conversation that cannot be read: {why}");
        let expected = "a trajectory in Harbor's format (ATIF), or no such file";
        let file = task.dir.join(file);
        found.push(location.error(&file, ErrorKind::BadFile, text, expected));
    }
}

/// The initial conversation files of the task and its steps, by their paths in it.
pub(crate) fn trajectory_files(dir: &Path, file: &TaskFile) -> Vec<PathBuf> {
    let steps = file.steps.iter().enumerate();
    steps.filter_map(|(index, step)| trajectory::find(dir, index, step)).collect()
}

fn refuse_services(
    (dir, file): &(PathBuf, String),
    descriptor: &ProviderDescriptor,
    why: &str,
    found: &mut Vec<ConfigError>,
) {
    let location = SourceLocation { key: String::new(), line: None };
    let text = format!("services beside the environment; {why}");
    let expected = expected(descriptor.kind);
    found.push(location.error(&dir.join(file), ErrorKind::Unsupported, text, expected));
}

/// Checks every image of the task.
fn check_images(
    task: &CapabilityCheck<'_>,
    found: &mut Vec<ConfigError>,
    problems: &mut Diagnostics,
) {
    let main = &task.file.environment;
    let key = "environment.docker_image";
    let named = main.docker_image.is_some();
    check_image(task, (Path::new("environment"), named, key), found, problems);
    let mut seen = Vec::new();
    for (step, parts) in task.file.steps.iter().zip(&task.parts.steps) {
        let Some(own) = &step.verifier.environment else { continue };
        let dir = parts.verifier_context.clone().unwrap_or_else(|| "tests".into());
        if !seen.contains(&dir) {
            let key = "verifier.environment.docker_image";
            // The same image as the agent's was checked with the agent's.
            let named = own.docker_image.is_some() && own.docker_image != main.docker_image;
            check_image(task, (&dir, named, key), found, problems);
            seen.push(dir);
        }
    }
}

/// Checks an image with the directory `dir`. `named` is whether the key `key` names one.
fn check_image(
    task: &CapabilityCheck<'_>,
    (dir, named, key): (&Path, bool, &str),
    found: &mut Vec<ConfigError>,
    problems: &mut Diagnostics,
) {
    let dockerfile = dir.join("Dockerfile");
    if task.root.has_file(&dockerfile) {
        check_instructions(task, &dockerfile, found, problems);
    } else if named {
        let location = SourceLocation { key: key.to_owned(), line: None };
        let text = "an image without a Dockerfile that describes it";
        found.push(rejection(task.descriptor(), &location, &task.dir.join(TASK_FILE), text));
    }
}

/// Refuses instructions that the environment does not support. If this program cannot decide, the
/// worker refuses the trials.
fn check_instructions(
    task: &CapabilityCheck<'_>,
    path: &Path,
    found: &mut Vec<ConfigError>,
    problems: &mut Diagnostics,
) {
    let descriptor = task.descriptor();
    let built = providers::for_kind(descriptor.kind);
    let Some(check) = built.and_then(|built| built.check_dockerfile) else { return };
    let Some(text) = crate::config::read_task_text(task.dir, path, problems) else { return };
    let file = &task.dir.join(path);
    for unsupported in check(&text) {
        let text = format!("an unsupported instruction: {}", unsupported.reason);
        let location =
            SourceLocation { key: unsupported.instruction, line: Some(unsupported.line) };
        found.push(rejection(descriptor, &location, file, &text));
    }
}

fn rejection(
    descriptor: &ProviderDescriptor,
    location: &SourceLocation,
    file: &Path,
    found: &str,
) -> ConfigError {
    let expected = format!("what the {} environment supports", descriptor.name);
    let hint = "use `environment.type: docker`, or set `ignore_dockerfile: true` in \
                `environment.provider_config` to run on the host's own files";
    ConfigError {
        hint: Some(hint.to_owned()),
        ..location.error(file, ErrorKind::UnsupportedInstruction, found, expected)
    }
}
