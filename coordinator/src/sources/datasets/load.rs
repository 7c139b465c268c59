//! Loading of all datasets of a job.

use std::collections::HashMap;
use std::path::Path;

use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::limits::TASK_NAME_BYTES;
use rollout_protocol::name::{self, InvalidPathComponent};

use super::faults::FaultyTasks;
use super::git::{CheckedOutCommits, RepositoryElsewhere};
use super::image_rules::ImageRules;
use super::resolve::{ResolvedDataset, TaskCandidate, resolve_datasets};
use super::task::{self, TaskLoadContext};
use super::{Dataset, DatasetTask, PlannedFormats};
use crate::config::{
    ConfigError, ConfigWarning, Diagnostics, ErrorKind, FormatHints, Job, JobOptions,
    SourceLocation,
};

/// Loads the datasets of a job and records all errors. Tasks in the run's plan are read in the
/// format recorded there. Blocks on the file system, and on the network if tasks must be fetched, until
/// the fetches of the job are cancelled.
pub fn load(
    job: &Job,
    options: &JobOptions<'_>,
    planned: &PlannedFormats,
    problems: &mut Diagnostics,
) -> Vec<Dataset> {
    let mut commits = CheckedOutCommits::default();
    let images = &ImageRules::new(&options.images, &options.fetch);
    let mut names = HashMap::new();
    let mut datasets: Vec<Dataset> = Vec::new();
    let mut faulty = FaultyTasks::default();
    for source in resolve_datasets(job, options, problems) {
        if !check_name(job, &source, &mut names, problems) {
            continue;
        }
        warn_of_skipped(&source, problems);
        let (name, version) = (source.name.clone(), source.version.clone());
        let description = source.description.clone();
        let mut taken = HashMap::new();
        let mut tasks: Vec<DatasetTask> = Vec::new();
        for candidate in source.tasks {
            if has_ended(job, options, problems) {
                return datasets;
            }
            let key = (name.clone(), candidate.name.clone());
            let format = FormatHints {
                requested: candidate.format,
                planned: planned.get(&key).copied().unwrap_or_default(),
            };
            let context = TaskLoadContext { job, options, dataset: &name, format, images };
            let mut found =
                FoundSoFar { names: &mut taken, commits: &mut commits, faulty: &mut faulty };
            tasks.extend(load_one(&context, candidate, &mut found, problems));
        }
        datasets.push(Dataset { name, version, description, tasks });
    }
    faulty.finish(datasets.iter().map(|dataset| dataset.tasks.len()).sum(), problems);
    // The last task may not have been checked as a whole.
    has_ended(job, options, problems);
    datasets
}

/// Whether the tasks are no longer to be read, which is an error.
fn has_ended(job: &Job, options: &JobOptions<'_>, problems: &mut Diagnostics) -> bool {
    let has_ended = options.fetch.is_cancelled();
    if has_ended {
        let location = SourceLocation { key: String::new(), line: None };
        let found = "the tasks are no longer read: the run has ended";
        problems.error(location.failure(&job.file, ErrorKind::FetchFailed, found));
    }
    has_ended
}

/// Whether the dataset's name is valid in the results.
fn check_name(
    job: &Job,
    source: &ResolvedDataset,
    names: &mut HashMap<String, String>,
    problems: &mut Diagnostics,
) -> bool {
    let (name, location) = (&source.name, &source.location);
    let hint = Some("give the dataset another `name`".to_owned());
    if let Err(why) = name::check(name) {
        let found = format!("a directory with the name {name:?}, which {why}");
        let error = location.error(&job.file, ErrorKind::BadValue, found, "a name for the dataset");
        problems.error(ConfigError { hint, ..error });
        return false;
    }
    if let Some(first) = names.insert(name::fold_case(name), location.key.clone()) {
        let found = format!("the dataset name `{name}`, which {first} also has");
        let expected = "names that differ in more than upper and lower case";
        let error = location.error(&job.file, ErrorKind::DuplicateName, found, expected);
        problems.error(ConfigError { hint, ..error });
    }
    true
}

fn warn_of_skipped(source: &ResolvedDataset, problems: &mut Diagnostics) {
    for dir in &source.skipped {
        problems.warning(ConfigWarning {
            file: dir.clone(),
            line: None,
            key: String::new(),
            message: "skipped: a directory without task.toml is not a task".to_owned(),
        });
    }
}

/// What is known of the tasks that were loaded before.
struct FoundSoFar<'a> {
    /// The names of the dataset, with their sources.
    names: &'a mut HashMap<String, String>,
    commits: &'a mut CheckedOutCommits,
    faulty: &'a mut FaultyTasks,
}

fn load_one(
    context: &TaskLoadContext<'_>,
    candidate: TaskCandidate,
    found: &mut FoundSoFar<'_>,
    problems: &mut Diagnostics,
) -> Option<DatasetTask> {
    let (name, too_long) = checked_name(context, &candidate, found.names, problems)?;
    let TaskCandidate { dir, commit, pointers, unfetched, .. } = candidate;
    if let Some(error) = unfetched {
        return Some(task::unfetched(context, name, error, found.faulty));
    }
    let task = match too_long {
        Some(error) => task::misnamed(context, name, dir, error, found.faulty),
        None => task::load(context, name, dir, found.faulty, problems)?,
    };
    let fault = task.fault.clone().or(pointers_fault(context, &task, &pointers, problems));
    let git_commit_id = match commit {
        Some(commit) => Some(commit),
        None => checked_out_commit(context, &task.dir, found.commits, problems)?,
    };
    Some(DatasetTask { git_commit_id, fault, ..task })
}

/// The commit of the repository around a task, if there is one; `None` with a recorded error if the
/// repository may not be used.
fn checked_out_commit(
    context: &TaskLoadContext<'_>,
    dir: &Path,
    commits: &mut CheckedOutCommits,
    problems: &mut Diagnostics,
) -> Option<Option<String>> {
    let Ok(real) = std::fs::canonicalize(dir) else { return Some(None) };
    match commits.find(&real, &context.options.host.bounds(&real)) {
        Ok(commit) => Some(commit),
        Err(RepositoryElsewhere(file)) => {
            let location = SourceLocation { key: String::new(), line: None };
            let found = "a file that leads to a repository in another directory";
            let expected = "a repository with all of its files, or none";
            problems.error(location.error(&file, ErrorKind::BadFile, found, expected));
            None
        }
    }
}

/// The fault of a task with files that are only Git LFS pointers; an error in a strict run.
fn pointers_fault(
    context: &TaskLoadContext<'_>,
    task: &DatasetTask,
    pointers: &[String],
    problems: &mut Diagnostics,
) -> Option<TrialError> {
    let first = pointers.first()?;
    if context.options.strict {
        let location = SourceLocation { key: String::new(), line: None };
        let (found, expected) = ("a pointer to Git LFS", "the file; install `git-lfs`");
        let path = task.dir.join(first);
        problems.error(location.error(&path, ErrorKind::MissingFile, found, expected));
    }
    let message = format!(
        "the task {}/{} has files in Git LFS and `git-lfs` is not installed: {} are pointers, the \
         first `{first}`; install git-lfs where the run is planned, and run it under another \
         `--name`",
        context.dataset,
        task.name,
        pointers.len()
    );
    Some(task::invalid(ErrorType::TaskInvalid, ErrorCode::MISSING_FILE, message))
}

/// The task's name in the results. A name that is too long is shortened, with its error, unless the run
/// is strict; no other invalid name is used.
fn checked_name(
    context: &TaskLoadContext<'_>,
    candidate: &TaskCandidate,
    seen_names: &mut HashMap<String, String>,
    problems: &mut Diagnostics,
) -> Option<(String, Option<ConfigError>)> {
    let location = SourceLocation { key: String::new(), line: None };
    let dir = &candidate.dir;
    let expected = "a directory whose name is valid in the results";
    if candidate.is_named_after_dir && dir.file_name().is_some_and(|name| name.to_str().is_none()) {
        let found = "a name that is not UTF-8";
        problems.error(location.error(dir, ErrorKind::BadValue, found, expected));
        return None;
    }
    let mut name = candidate.name.clone();
    let mut too_long = None;
    if let Err(why) = name::check_task(&name) {
        let found = format!("the name {name:?}, which {why}");
        let place = if candidate.is_named_after_dir { dir } else { Path::new(&candidate.source) };
        let error = location.error(place, ErrorKind::BadValue, found, expected);
        let is_long = matches!(why, InvalidPathComponent::TooLong(_));
        let short = shortened(&name);
        if !is_long || context.options.strict || name::check_task(&short).is_err() {
            problems.error(error);
            return None;
        }
        name = short;
        too_long = Some(error);
    }
    if let Some(first) = seen_names.insert(name::fold_case(&name), candidate.source.clone()) {
        let found = format!("the name `{name}` of {}, which {first} also has", candidate.source);
        let expected = "names that differ in more than upper and lower case";
        problems.error(location.error(dir, ErrorKind::DuplicateName, found, expected));
    }
    Some((name, too_long))
}

/// The beginning of a name, with a digest of the whole, for directories.
fn shortened(name: &str) -> String {
    let digest = Digest::sha256(name.as_bytes()).short();
    let end = name.floor_char_boundary(TASK_NAME_BYTES - digest.len() - 1);
    format!("{}-{digest}", &name[..end])
}
