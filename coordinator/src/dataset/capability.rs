//! Which tasks the job's environment can honour. What it cannot is refused before the run, with the
//! task, the key and the reason: nothing that a task asks for is left out in silence.
//!
//! A process sandbox has no image, so whatever a task's image would have that the sandbox cannot
//! give refuses the run too, unless the job says `ignore_dockerfile`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollout_protocol::spec::environment::{ProviderKind, ProviderSpec};
use rollout_protocol::spec::task::TaskFormat;

use super::discover::TASK_FILE;
use super::{Parts, layout};
use crate::config::{
    ConfigError, ConfigWarning, Demand, DemandKind, ErrorKind, Job, Problems, Spot, TaskFile,
};

/// A conversation to begin with, which no agent is given.
const TRAJECTORY: &str = "trajectory.json";

/// A task to judge.
pub(super) struct Judged<'a> {
    pub(super) job: &'a Job,
    pub(super) dir: &'a Path,
    pub(super) file: &'a TaskFile,
    pub(super) parts: &'a Parts,
}

/// Records why the task cannot run in the job's environment.
pub(super) fn check(task: &Judged<'_>, problems: &mut Problems) {
    let provider = &task.job.settings.environment.provider;
    for demand in &task.file.demands {
        if let Some(why) = why_not(provider.kind(), demand, task.parts) {
            let spot = &demand.spot;
            let at = task.dir.join(TASK_FILE);
            problems.error(spot.error(&at, ErrorKind::Unsupported, why, expected(provider.kind())));
        }
    }
    check_trajectories(task, problems);
    match provider {
        ProviderSpec::Process(settings) => {
            services(task).for_each(|at| refuse_services(&at, problems));
            if !settings.ignore_dockerfile {
                check_images(task, problems);
            }
        }
        ProviderSpec::Docker(_) => {
            services(task).for_each(|at| check_services(&at, problems));
        }
    }
    warn_of_services(task, problems);
}

/// The files that describe services, in their directories.
fn services(task: &Judged<'_>) -> impl Iterator<Item = (PathBuf, String)> {
    let own = task.parts.compose.as_ref().map(|file| (PathBuf::from("environment"), file));
    let of_verifiers =
        task.parts.steps.iter().filter_map(|step| {
            Some((step.verifier_context.clone()?, step.verifier_compose.as_ref()?))
        });
    let files: BTreeSet<_> = own.into_iter().chain(of_verifiers).collect();
    let in_task = |(dir, file): (PathBuf, &String)| (task.dir.join(dir), file.clone());
    files.into_iter().map(in_task).collect::<Vec<_>>().into_iter()
}

/// In Rollout's format such a file means nothing, which its author may not know.
fn warn_of_services(task: &Judged<'_>, problems: &mut Problems) {
    let file = task.dir.join("environment/docker-compose.yaml");
    if task.file.format.format == TaskFormat::Rollout && file.is_file() {
        problems.warning(ConfigWarning {
            file,
            line: None,
            key: String::new(),
            message: "ignored: only tasks in Harbor's format have services (`format: harbor`)"
                .to_owned(),
        });
    }
}

/// What a file with services may not make its program read.
#[cfg(feature = "docker")]
fn check_services((dir, file): &(PathBuf, String), problems: &mut Problems) {
    use rollout_worker::environment::{ComposeFile, docker};

    let compose = ComposeFile { dir: dir.clone(), file: file.into() };
    if let Err(failure) = docker::check_compose(&compose) {
        let spot = Spot { key: String::new(), line: None };
        let expected = "services of the task's own environment directory";
        let at = dir.join(file);
        problems.error(spot.error(&at, ErrorKind::Unsupported, failure.chain(), expected));
    }
}

/// Without the provider nothing can be said of it; its worker refuses the trials.
#[cfg(not(feature = "docker"))]
fn check_services(_: &(PathBuf, String), _: &mut Problems) {}

/// Why a provider does not have what is asked for.
fn why_not(provider: ProviderKind, demand: &Demand, parts: &Parts) -> Option<String> {
    let is_process = provider == ProviderKind::Process;
    let has_services = parts.compose.is_some();
    match &demand.kind {
        DemandKind::User(user) => is_process.then(|| {
            format!("the user `{user}`; everything in a process sandbox runs as its root")
        }),
        DemandKind::NetworkOfPhase if is_process => {
            Some("another network than the environment's; a process sandbox keeps one".into())
        }
        DemandKind::NetworkOfPhase => has_services.then(|| {
            "another network than the environment's; services share it all the time".into()
        }),
        DemandKind::Allowlist => {
            Some("an allowlist of hosts, which this environment cannot enforce".into())
        }
        DemandKind::Gpus => {
            is_process.then(|| "graphics processors; a process sandbox has none".into())
        }
        DemandKind::Service(name) => (!has_services).then(|| {
            format!("the service `{name}`; the task has no environment/docker-compose.yaml")
        }),
    }
}

fn expected(provider: ProviderKind) -> String {
    format!("what the environment `{provider}` can honour")
}

fn check_trajectories(task: &Judged<'_>, problems: &mut Problems) {
    if task.file.format.format != TaskFormat::Harbor {
        return;
    }
    let own = task.file.steps.iter().map(layout::step_dir);
    let dirs: BTreeSet<PathBuf> = own.chain([PathBuf::new()]).collect();
    for dir in dirs {
        let file = task.dir.join(dir).join(TRAJECTORY);
        if file.is_file() {
            let spot = Spot { key: String::new(), line: None };
            let found = "a conversation to begin with, which agents are not given";
            problems.error(spot.error(&file, ErrorKind::Unsupported, found, "no such file"));
        }
    }
}

fn refuse_services((dir, file): &(PathBuf, String), problems: &mut Problems) {
    let spot = Spot { key: String::new(), line: None };
    let found = "services beside the environment; a process sandbox has none";
    let expected = expected(ProviderKind::Process);
    problems.error(spot.error(&dir.join(file), ErrorKind::Unsupported, found, expected));
}

/// Every image that the task would have.
fn check_images(task: &Judged<'_>, problems: &mut Problems) {
    let main = &task.file.environment;
    let key = "environment.docker_image";
    check_image(task, Path::new("environment"), main.docker_image.is_some(), key, problems);
    let mut seen = Vec::new();
    for (step, parts) in task.file.steps.iter().zip(&task.parts.steps) {
        let Some(own) = &step.verifier.environment else { continue };
        let dir = parts.verifier_context.clone().unwrap_or_else(|| "tests".into());
        if !seen.contains(&dir) {
            let key = "verifier.environment.docker_image";
            // One that is as the agent's was judged there.
            let named = own.docker_image.is_some() && own.docker_image != main.docker_image;
            check_image(task, &dir, named, key, problems);
            seen.push(dir);
        }
    }
}

fn check_image(task: &Judged<'_>, dir: &Path, named: bool, key: &str, problems: &mut Problems) {
    let dockerfile = task.dir.join(dir).join("Dockerfile");
    if dockerfile.is_file() {
        check_instructions(&dockerfile, problems);
    } else if named {
        let spot = Spot { key: key.to_owned(), line: None };
        let found = "an image without a Dockerfile that says what is in it";
        refuse(&spot, &task.dir.join(TASK_FILE), found, problems);
    }
}

/// Without the provider nothing can be said of its instructions; its worker refuses the trials.
#[cfg(not(feature = "process"))]
fn check_instructions(_: &Path, _: &mut Problems) {}

#[cfg(feature = "process")]
fn check_instructions(file: &Path, problems: &mut Problems) {
    let Some(text) = crate::config::read_text(file, problems) else { return };
    for unsupported in rollout_worker::environment::process::dockerfile::check(&text) {
        let found = format!("an instruction that it cannot honour: {}", unsupported.reason);
        let spot = Spot { key: unsupported.instruction, line: Some(unsupported.line) };
        refuse(&spot, file, &found, problems);
    }
}

fn refuse(spot: &Spot, file: &Path, found: &str, problems: &mut Problems) {
    let expected = "what the process environment can honour";
    let hint = "use `environment.type: docker`, or set `ignore_dockerfile: true` in \
                `environment.provider_config` to run on the host's own files";
    problems.error(ConfigError {
        hint: Some(hint.to_owned()),
        ..spot.error(file, ErrorKind::UnsupportedInstruction, found, expected)
    });
}
