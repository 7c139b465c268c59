//! Static checks of tasks: validity, resolved settings and common mistakes. Nothing runs.

mod dockerfile;
mod lints;
mod scripts;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollout_environment::descriptor;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::{NetworkPolicy, TaskFormat};
use rollout_protocol::spec::timeout::Timeouts;
use serde::Serialize;
use serde_json::json;

use crate::config::{ConfigError, ConfigWarning, Diagnostics, Job, JobOptions, read_job};
use crate::sources::datasets::{self, DatasetTask, FormatView, PlannedFormats};

/// Input of a check.
#[derive(Debug, Clone)]
pub struct CheckRequest {
    /// A task, or a directory of tasks.
    pub path: PathBuf,
    /// Format of the tasks; detected for each task if absent.
    pub format: Option<TaskFormat>,
    /// Provider to check against.
    pub provider: ProviderKind,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckReport {
    /// The tasks, by name.
    pub tasks: Vec<TaskReport>,
    /// Errors outside the tasks.
    pub errors: Vec<ConfigError>,
    /// Warnings outside the tasks.
    pub warnings: Vec<ConfigWarning>,
}

/// Result of checking one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskReport {
    /// Its name.
    pub task: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Its resolved settings; `None` if it cannot be read.
    pub explained: Option<TaskExplanation>,
    /// Its errors.
    pub errors: Vec<ConfigError>,
    /// Its warnings.
    pub warnings: Vec<ConfigWarning>,
}

/// Resolved settings of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskExplanation {
    /// Its format.
    pub format: FormatView,
    /// Source of its image, as display text.
    pub image: String,
    /// Its resources, and which of them are ceilings.
    pub resources: Resources,
    /// Its time limits; those of the first step if it has several.
    pub timeouts: Timeouts,
    /// Network policy of its environment.
    pub network: NetworkPolicy,
    /// Names of its steps, if it has any.
    pub steps: Vec<String>,
    /// Whether a verifier has an environment of its own.
    pub separate_verifier: bool,
    /// Host variables that it uses; a job must list them in `task_env`, or trust its tasks.
    pub variables: BTreeSet<String>,
}

impl CheckReport {
    /// Number of errors.
    pub fn n_errors(&self) -> usize {
        self.errors.len() + self.tasks.iter().map(|task| task.errors.len()).sum::<usize>()
    }

    /// Number of warnings.
    pub fn n_warnings(&self) -> usize {
        self.warnings.len() + self.tasks.iter().map(|task| task.warnings.len()).sum::<usize>()
    }
}

/// Checks tasks, as a strict run loads them where `is_set` says which variables are set. Blocks on the file
/// system.
///
/// # Errors
/// If a temporary file cannot be written.
pub fn check(
    request: &CheckRequest,
    is_set: &dyn Fn(&str) -> bool,
) -> std::io::Result<CheckReport> {
    let path = std::path::absolute(&request.path)?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("job.json");
    let job = json!({
        "agents": [{ "name": "nop" }],
        "environment": { "type": request.provider },
        "datasets": [{
            "path": path,
            "name": "tasks",
            "format": request.format.map_or("auto", TaskFormat::as_str),
        }],
    });
    std::fs::write(&file, job.to_string())?;
    // Only a job can allow variables: the report lists them.
    let options =
        JobOptions { strict: true, trust_tasks: true, ..JobOptions::for_command_line(is_set) };
    let mut problems = Diagnostics::default();
    let job = read_job(&file, &options, &mut problems).expect("a job that was made right");
    let tasks = datasets::load(&job, &options, &PlannedFormats::new(), &mut problems);
    let tasks: Vec<DatasetTask> = tasks.into_iter().flat_map(|dataset| dataset.tasks).collect();
    // Tasks with a fault are reported already, and a run does not pack them.
    for task in tasks.iter().filter(|task| task.fault.is_none()) {
        let error = datasets::check_packing(task, &dir.path().join("packed"))?;
        error.into_iter().for_each(|error| problems.error(error));
    }
    // The agent of this job runs no solution.
    tasks
        .iter()
        .flat_map(|task| {
            let unset = datasets::unset_solution_variables(task, is_set);
            datasets::solution_line_end_errors(task).into_iter().chain(unset)
        })
        .for_each(|error| problems.error(error));
    let (mut errors, warnings) = problems.into_parts();
    for error in errors.iter_mut().filter(|error| error.file == file) {
        error.file.clone_from(&path);
        error.key = String::new();
        error.line = None;
        if path.is_file() {
            let hint = "give the directory of a task or of tasks; \
                        `rollout run FILE --dry-run` checks a job file";
            error.hint = Some(hint.to_owned());
        }
    }
    Ok(build_report(&job, tasks, errors, warnings))
}

fn build_report(
    job: &Job,
    tasks: Vec<DatasetTask>,
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigWarning>,
) -> CheckReport {
    let mut report = CheckReport { tasks: Vec::new(), errors: Vec::new(), warnings: Vec::new() };
    for task in tasks {
        report.tasks.push(TaskReport {
            explained: Some(explain(job, &task)),
            warnings: lints::lint_task(&task),
            errors: Vec::new(),
            task: task.name,
            dir: task.dir,
        });
    }
    for error in errors {
        match find_task_report(&mut report.tasks, &error.file) {
            Some(task) => task.errors.push(error),
            None => report.errors.push(error),
        }
    }
    for warning in warnings {
        match find_task_report(&mut report.tasks, &warning.file) {
            Some(task) => task.warnings.push(warning),
            None => report.warnings.push(warning),
        }
    }
    report.tasks.sort_by(|a, b| a.task.cmp(&b.task));
    report
}

/// The task that a file belongs to. A task that could not be read is found by its task file.
fn find_task_report<'a>(tasks: &'a mut Vec<TaskReport>, file: &Path) -> Option<&'a mut TaskReport> {
    if let Some(at) = tasks.iter().position(|task| file.starts_with(&task.dir)) {
        return tasks.get_mut(at);
    }
    let dir = file.ancestors().find(|dir| dir.join(datasets::TASK_FILE).exists())?;
    tasks.push(TaskReport {
        task: dir.file_name()?.to_string_lossy().into_owned(),
        dir: dir.to_owned(),
        explained: None,
        errors: Vec::new(),
        warnings: Vec::new(),
    });
    tasks.last_mut()
}

fn explain(job: &Job, task: &DatasetTask) -> TaskExplanation {
    let spec = datasets::specification(job, "tasks".to_owned(), task);
    let kind = job.settings.environment.provider.kind();
    let images = descriptor::for_kind(kind).capabilities.images;
    let image = match (&spec.environment.docker_image, &task.parts.context) {
        _ if !images.is_supported() => "none: the host's own files".to_owned(),
        (Some(image), _) => format!("{image}, pulled if absent"),
        (None, Some(context)) => format!("built from {}/Dockerfile", context.display()),
        (None, None) => "none".to_owned(),
    };
    let image = match &task.parts.workdir_files {
        Some(dir) => format!("{image}; files of {}/ in its working directory", dir.display()),
        None => image,
    };
    let image = match &task.parts.compose {
        Some(file) => format!("{image}; services of environment/{file}"),
        None => image,
    };
    let used = task.file.variables.iter().chain(&task.file.solution_variables);
    TaskExplanation {
        format: FormatView::new(&task.file.format),
        image,
        resources: spec.environment.resources,
        timeouts: Timeouts::for_task(&spec),
        network: spec.environment.network.clone(),
        steps: spec.steps.iter().filter_map(|step| step.name.clone()).collect(),
        separate_verifier: spec.steps.iter().any(|step| step.verifier.environment.is_some()),
        variables: used.flat_map(|v| v.template.variables()).map(|(name, _)| name).collect(),
    }
}
