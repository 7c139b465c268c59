//! One task: its file, what it must have, what it may refer to.

use std::fs;
use std::path::{Path, PathBuf};

use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::limits::INSTRUCTION_BYTES;
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::environment::ProviderKind;

use super::discover::TASK_FILE;
use super::git::Commits;
use super::{Parts, Task, sandbox};
use crate::config::{ConfigError, ErrorKind, Job, Options, Problems, Spot, TaskFile, read_task};

/// The instruction of a task.
pub(super) const INSTRUCTION: &str = "instruction.md";

/// The build context of a task.
pub(super) const ENVIRONMENT: &str = "environment";

/// What a task is loaded for.
pub(super) struct Context<'a> {
    pub(super) job: &'a Job,
    pub(super) options: &'a Options<'a>,
    /// Name of the dataset.
    pub(super) dataset: &'a str,
}

/// Loads the task in `dir`; nothing when a fault was recorded that leaves nothing to work with.
pub(super) fn load(
    context: &Context<'_>,
    name: String,
    dir: PathBuf,
    commits: &mut Commits,
    problems: &mut Problems,
) -> Option<Task> {
    let top_level = [TASK_FILE, INSTRUCTION, ENVIRONMENT, "solution", "tests"];
    let outside = top_level.iter().filter(|entry| !stays_inside(&dir, entry, problems)).count();
    if outside > 0 {
        return None;
    }
    let file = read_task(&dir.join(TASK_FILE), problems)?;
    check_variables(context, &dir, &file, problems);
    check_size(&dir, problems);
    sandbox::check(context.job, &dir, &file, problems);
    let builds = builds_image(context.job, &file);
    let missing = missing(context, &dir, builds);
    if context.options.strict {
        refuse_missing(context, &dir, &missing, problems);
    }
    let fault = (!missing.is_empty()).then(|| {
        let message = format!("the task {}/{name} lacks {}", context.dataset, missing.join(", "));
        invalid(ErrorType::TaskInvalid, ErrorCode::MISSING_FILE, message)
    });
    let process = context.job.settings.environment.provider.kind() == ProviderKind::Process;
    let parts = Parts {
        environment: (builds || process) && dir.join(ENVIRONMENT).is_dir(),
        solution: dir.join("solution/solve.sh").is_file(),
        tests: dir.join("tests").is_dir(),
    };
    Some(Task { name, git_commit_id: commits.of(&dir), dir, file, parts, fault })
}

/// An error of a task's definition.
pub(super) fn invalid(kind: ErrorType, code: ErrorCode, message: String) -> TrialError {
    TrialError::new(kind, code, ErrorClass::Task, RetryClass::Permanent, message)
}

/// Whether an image is built for the task.
fn builds_image(job: &Job, file: &TaskFile) -> bool {
    let environment = &job.settings.environment;
    environment.provider.kind() == ProviderKind::Docker
        && (file.docker_image.is_none() || environment.force_build)
}

/// The files that the task needs under every agent and does not have.
fn missing(context: &Context<'_>, dir: &Path, builds: bool) -> Vec<&'static str> {
    let verified = !context.job.settings.verifier.disable;
    [(INSTRUCTION, true), ("tests/test.sh", verified), ("environment/Dockerfile", builds)]
        .into_iter()
        .filter(|(path, needed)| *needed && !dir.join(path).is_file())
        .map(|(path, _)| path)
        .collect()
}

fn refuse_missing(context: &Context<'_>, dir: &Path, missing: &[&str], problems: &mut Problems) {
    let oracle = context.job.agents.iter().any(|agent| agent.spec.kind == AgentKind::Oracle);
    let unsolved = oracle && !dir.join("solution/solve.sh").is_file();
    for path in missing.iter().copied().chain(unsolved.then_some("solution/solve.sh")) {
        let spot = Spot { key: String::new(), line: None };
        let expected = "a file that the task needs";
        problems.error(spot.error(&dir.join(path), ErrorKind::MissingFile, "nothing", expected));
    }
}

fn check_size(dir: &Path, problems: &mut Problems) {
    let file = dir.join(INSTRUCTION);
    let size = fs::metadata(&file).map_or(0, |metadata| metadata.len());
    if size > INSTRUCTION_BYTES {
        let spot = Spot { key: String::new(), line: None };
        let expected = format!("at most {INSTRUCTION_BYTES} bytes");
        problems.error(spot.error(&file, ErrorKind::TooLarge, format!("{size} bytes"), expected));
    }
}

/// Whether an entry of the task's directory is in that directory, not a link to somewhere else.
/// Links below the parts are judged when the parts are packed.
fn stays_inside(dir: &Path, entry: &str, problems: &mut Problems) -> bool {
    let path = dir.join(entry);
    if !fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
        return true;
    }
    let inside = match (fs::canonicalize(dir), fs::canonicalize(&path)) {
        (Ok(dir), Ok(target)) => target.starts_with(dir),
        // A link to nothing is as good as no entry.
        _ => return true,
    };
    if !inside {
        let spot = Spot { key: String::new(), line: None };
        let found = "a link that leads out of the task's directory";
        let expected = "files and directories inside it";
        problems.error(spot.error(&path, ErrorKind::BadFile, found, expected));
    }
    inside
}

/// A task file is not the job's author's: it may use only the variables that the job lists.
fn check_variables(context: &Context<'_>, dir: &Path, file: &TaskFile, problems: &mut Problems) {
    let path = dir.join(TASK_FILE);
    for variable in file.env.values() {
        for (name, has_default) in variable.template.variables() {
            let fault = |kind, found: String, expected: &str, hint: String| ConfigError {
                hint: Some(hint),
                ..variable.spot.error(&path, kind, found, expected)
            };
            if !context.job.task_env.contains(&name) {
                problems.error(fault(
                    ErrorKind::VariableNotListed,
                    format!("`${{{name}}}`, which the job does not let tasks use"),
                    "variables listed in the job's `task_env`",
                    format!("add {name} to `task_env` in {}", context.job.file.display()),
                ));
            } else if !has_default && !(context.options.is_set)(&name) {
                problems.error(fault(
                    ErrorKind::UnsetVariable,
                    format!("`${{{name}}}`, which is not set in the environment"),
                    "variables that are set",
                    format!("export {name}, or write `${{{name}:-default}}`"),
                ));
            }
        }
    }
}
