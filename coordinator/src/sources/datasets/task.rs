//! Loading of one task: its file, required files and variables.

use std::path::{Path, PathBuf};

use rollout_base::confined::{ConfinedDir, ConfinedKind, leads_outside};
use rollout_base::shown_path::shown;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::limits::INSTRUCTION_BYTES;
use rollout_protocol::spec::agent::AgentKind;

use super::capability::{self, CapabilityCheck};
use super::discover::TASK_FILE;
use super::faults::{self, FaultyTasks};
use super::image_rules::ImageRules;
use super::layout::{self, TaskLayout};
use super::line_ends::{self, WindowsScripts};
use super::{DatasetTask, TaskParts, harborignore, host_rules};
use crate::config::{
    ConfigError, Diagnostics, ErrorKind, FormatHints, Job, JobOptions, SourceLocation, TaskFile,
    Variable, outside_task, read_task, unreadable_task,
};

/// Context of loading a task.
pub(super) struct TaskLoadContext<'a> {
    pub(super) job: &'a Job,
    pub(super) options: &'a JobOptions<'a>,
    /// Name of the dataset.
    pub(super) dataset: &'a str,
    /// Hints at its format.
    pub(super) format: FormatHints,
    /// Rules for its images.
    pub(super) images: &'a ImageRules<'a>,
}

impl TaskLoadContext<'_> {
    fn is_set(&self, name: &str) -> bool {
        self.job.inline_secrets.names().any(|known| known == name) || (self.options.is_set)(name)
    }
}

/// Loads the task in `dir`, without its commit; `None` if it cannot be loaded in a strict run.
pub(super) fn load(
    context: &TaskLoadContext<'_>,
    name: String,
    dir: PathBuf,
    faulty: &mut FaultyTasks,
    problems: &mut Diagnostics,
) -> Option<DatasetTask> {
    let shown = format!("{}/{name}", context.dataset);
    let mut own = Diagnostics::default();
    let root = open(&dir, &mut own);
    let read = match &root {
        Some(root) if !all_inside(&dir, root, top_level_entries(), &mut own) => None,
        Some(_) => read_task(&dir.join(TASK_FILE), context.format, &mut own),
        None => None,
    };
    if own.has_errors() && !context.options.strict {
        let fault = faulty.settle(&shown, &dir, own, problems);
        let file = read.unwrap_or_else(|| unreadable_task(&dir.join(TASK_FILE), context.format));
        return Some(task_with_fault(name, dir, file, fault));
    }
    problems.extend(std::mem::take(&mut own));
    let (root, file) = (root?, read?);
    if !all_inside(&dir, &root, entries_of_steps(&file), &mut own) {
        if context.options.strict {
            problems.extend(own);
            return None;
        }
        let fault = faulty.settle(&shown, &dir, own, problems);
        return Some(task_with_fault(name, dir, file, fault));
    }
    check_variables(context, &dir, &file, (&mut own, problems));
    let layout = TaskLayout::new(context.job, &root, &file);
    let parts = layout.parts();
    context.images.check(context.job, (&dir, &root), (&file, &parts), problems);
    if context.options.is_guarded() {
        host_rules::check(&dir.join(TASK_FILE), &file, problems);
    }
    parts.steps.iter().for_each(|step| check_size(&dir, &root, &step.instruction, &mut own));
    let missing = layout.missing(&parts);
    let capability_check =
        CapabilityCheck { job: context.job, dir: &dir, root: &root, file: &file, parts: &parts };
    let unsupported = capability::check(&capability_check, &mut own);
    let provider = context.job.settings.environment.provider.kind();
    let mut fault = capability::fault(&shown, &dir, provider, &unsupported.always);
    let model_fault = capability::fault(&shown, &dir, provider, &unsupported.for_models);
    if context.options.strict {
        problems.extend(own);
        let oracle = context.job.agents.iter().any(|agent| agent.spec.kind == AgentKind::Oracle);
        let unsolved = if oracle { TaskLayout::missing_solutions(&parts) } else { Vec::new() };
        refuse_missing(&dir, missing.iter().chain(&unsolved), problems);
        unsupported.into_job_errors(context.job).for_each(|error| problems.error(error));
    } else if own.has_errors() {
        fault = Some(faulty.settle(&shown, &dir, own, problems));
    } else {
        problems.extend(own);
    }
    if fault.is_none() && !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(|path| path.display().to_string()).collect();
        let message = format!("the task {shown} lacks {}", missing.join(", "));
        fault = Some(invalid(ErrorType::TaskInvalid, ErrorCode::MISSING_FILE, message));
    }
    let windows = line_ends::find(&root, &parts, !context.job.settings.verifier.disable);
    let (of_task, solution_fault) = line_end_faults(context, (&shown, &dir), &windows, problems);
    let fault = fault.or(of_task);
    let task = task_without_faults(name, dir, file, parts);
    Some(DatasetTask { fault, model_fault, solution_fault, ..task })
}

/// The errors of the trials of a task with scripts that were written on Windows: under all agents, and
/// under the oracle. The scripts are named, as errors in a strict run.
fn line_end_faults(
    context: &TaskLoadContext<'_>,
    (shown, dir): (&str, &Path),
    scripts: &WindowsScripts,
    problems: &mut Diagnostics,
) -> (Option<TrialError>, Option<TrialError>) {
    let has_oracle = context.job.agents.iter().any(|agent| agent.spec.kind == AgentKind::Oracle);
    let of_solution = scripts.of_solution.iter().filter(|_| has_oracle);
    for error in line_ends::errors(dir, scripts.of_task.iter().chain(of_solution)) {
        if context.options.strict {
            problems.error(error);
        } else {
            problems.warning(faults::warning(error));
        }
    }
    let fault = |scripts: &[PathBuf]| {
        let first = scripts.first()?;
        let (file, why) = (first.display(), line_ends::WHY);
        let message = format!("the task {shown} cannot run: {file} has {why}");
        Some(invalid(ErrorType::TaskInvalid, ErrorCode::REFUSED, message))
    };
    (fault(&scripts.of_task), fault(&scripts.of_solution))
}

fn open(dir: &Path, problems: &mut Diagnostics) -> Option<ConfinedDir> {
    let opened = ConfinedDir::open(dir).map_err(|error| {
        let location = SourceLocation { key: String::new(), line: None };
        let message = format!("cannot open the task's directory: {error}");
        problems.error(location.failure(dir, ErrorKind::Unreadable, message));
    });
    opened.ok()
}

/// The entries of a task that are looked at before its file is read.
fn top_level_entries() -> impl Iterator<Item = PathBuf> {
    let own = [TASK_FILE, layout::STEPS_DIR, harborignore::FILE_NAME].map(PathBuf::from);
    own.into_iter().chain(layout::entries_looked_at())
}

/// The entries of the steps that a task file names.
fn entries_of_steps(file: &TaskFile) -> impl Iterator<Item = PathBuf> {
    let steps = file.steps.iter().map(layout::step_dir).filter(|step| step != Path::new(""));
    steps.flat_map(|step| {
        let below = layout::entries_looked_at().map(|entry| step.join(entry)).collect::<Vec<_>>();
        std::iter::once(step).chain(below)
    })
}

/// A task that can run as far as is known, without its commit.
fn task_without_faults(
    name: String,
    dir: PathBuf,
    file: TaskFile,
    parts: TaskParts,
) -> DatasetTask {
    DatasetTask {
        name,
        git_commit_id: None,
        dir,
        file,
        parts,
        fault: None,
        model_fault: None,
        solution_fault: None,
    }
}

/// A task whose parts are not looked at, because it cannot run.
fn task_with_fault(name: String, dir: PathBuf, file: TaskFile, fault: TrialError) -> DatasetTask {
    let task = task_without_faults(name, dir, file, TaskParts::default());
    DatasetTask { fault: Some(fault), ..task }
}

/// The task of a registry that cannot be fetched.
pub(super) fn unfetched(
    context: &TaskLoadContext<'_>,
    name: String,
    error: ConfigError,
    faulty: &mut FaultyTasks,
) -> DatasetTask {
    let fault = faulty.settle_unfetched(&format!("{}/{name}", context.dataset), error);
    let file = unreadable_task(Path::new(TASK_FILE), context.format);
    task_with_fault(name, PathBuf::new(), file, fault)
}

/// The task in `dir` whose name is too long, under the name `name`.
pub(super) fn misnamed(
    context: &TaskLoadContext<'_>,
    name: String,
    dir: PathBuf,
    error: ConfigError,
    faulty: &mut FaultyTasks,
) -> DatasetTask {
    let fault = faulty.settle_misnamed(&format!("{}/{name}", context.dataset), error);
    let file = unreadable_task(&dir.join(TASK_FILE), context.format);
    task_with_fault(name, dir, file, fault)
}

/// An error of a task's definition.
pub(super) fn invalid(kind: ErrorType, code: ErrorCode, message: String) -> TrialError {
    TrialError::new(kind, code, ErrorClass::Task, RetryClass::Permanent, message)
}

fn refuse_missing<'a>(
    dir: &Path,
    missing: impl Iterator<Item = &'a PathBuf>,
    problems: &mut Diagnostics,
) {
    for path in missing {
        let location = SourceLocation { key: String::new(), line: None };
        let expected = "a file that the task needs";
        problems.error(location.error(
            &dir.join(path),
            ErrorKind::MissingFile,
            "nothing",
            expected,
        ));
    }
}

fn check_size(dir: &Path, root: &ConfinedDir, file: &Path, problems: &mut Diagnostics) {
    let Ok(Some(ConfinedKind::File(size))) = root.kind(file) else { return };
    if size > INSTRUCTION_BYTES {
        let location = SourceLocation { key: String::new(), line: None };
        let expected = format!("at most {INSTRUCTION_BYTES} bytes");
        let found = format!("{size} bytes");
        problems.error(location.error(&dir.join(file), ErrorKind::TooLarge, found, expected));
    }
}

/// Whether entries of the task's directory are inside that directory, not symlinks to another place.
/// An absent entry is inside, as is a symlink to one. Symlinks deeper in the parts are checked when
/// the parts are packed.
fn all_inside(
    dir: &Path,
    root: &ConfinedDir,
    entries: impl Iterator<Item = PathBuf>,
    problems: &mut Diagnostics,
) -> bool {
    let mut found = Vec::new();
    for entry in entries {
        let leads_out = root.kind(&entry).is_err_and(|error| leads_outside(&error));
        // The entries below one that leads out have the same fault.
        let is_below = |above: &PathBuf| entry.starts_with(above);
        if leads_out && !found.iter().any(is_below) {
            problems.error(outside_task(&dir.join(&entry)));
            found.push(entry);
        }
    }
    found.is_empty()
}

/// Checks the variables of a task file. Its author is not the job's, so it may use only variables
/// that the job lists: another one that is set concerns the run. A variable that is not set concerns the task
/// alone, because there is nothing to allow.
fn check_variables(
    context: &TaskLoadContext<'_>,
    dir: &Path,
    file: &TaskFile,
    (own, problems): (&mut Diagnostics, &mut Diagnostics),
) {
    let path = dir.join(TASK_FILE);
    let solved = context.job.agents.iter().any(|agent| agent.spec.kind == AgentKind::Oracle);
    let solution = file.solution_variables.iter().filter(|_| solved);
    for variable in file.variables.iter().chain(solution) {
        check_variable(context, &path, variable, (&mut *own, &mut *problems));
    }
}

/// The errors of variables of a task's solution that are not set. Only the oracle uses them.
pub(crate) fn unset_solution_variables(
    task: &DatasetTask,
    is_set: &dyn Fn(&str) -> bool,
) -> Vec<ConfigError> {
    let file = task.dir.join(TASK_FILE);
    let unset = |variable: &Variable| {
        let names = variable.template.variables().into_iter();
        let names = names.filter(|(name, has_default)| !has_default && !is_set(name));
        let error =
            |(name, _): (String, bool)| unset_variable(&file, variable, &name, export_hint(&name));
        names.map(error).collect::<Vec<_>>()
    };
    task.file.solution_variables.iter().flat_map(unset).collect()
}

fn unset_variable(file: &Path, variable: &Variable, name: &str, hint: String) -> ConfigError {
    let found = format!("`${{{name}}}`, which is not set in the environment");
    let expected = "variables that are set";
    let error = variable.location.error(file, ErrorKind::UnsetVariable, found, expected);
    ConfigError { hint: Some(hint), ..error }
}

fn export_hint(name: &str) -> String {
    format!("export {name}, or write `${{{name}:-default}}`")
}

fn check_variable(
    context: &TaskLoadContext<'_>,
    file: &Path,
    variable: &Variable,
    (own, problems): (&mut Diagnostics, &mut Diagnostics),
) {
    let job = shown(&context.job.file);
    for (name, has_default) in variable.template.variables() {
        let listed = context.options.trust_tasks || context.job.task_env.contains(&name);
        let is_set = context.is_set(&name);
        let listing = format!(
            "add {name} to `task_env` in {job}, or pass `-y` to allow every variable that tasks use"
        );
        if !has_default && !is_set {
            let hint = match listed {
                true => export_hint(&name),
                false => format!("export {name}, and {listing}"),
            };
            own.error(unset_variable(file, variable, &name, hint));
        } else if !listed {
            let concerned = if is_set { &mut *problems } else { &mut *own };
            let found = format!("`${{{name}}}`, which the job does not allow tasks to use");
            let expected = "variables listed in the job's `task_env`";
            let kind = ErrorKind::VariableNotListed;
            let error = variable.location.error(file, kind, found, expected);
            concerned.error(ConfigError { hint: Some(listing), ..error });
        }
    }
}
