//! All datasets of a job.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rollout_protocol::name;

use super::discover::{self, Found};
use super::git::Commits;
use super::task::{self, Context};
use super::{Dataset, Task};
use crate::config::{
    ConfigError, ConfigWarning, DatasetRef, DatasetSource, ErrorKind, Job, Options, Problems, Spot,
};

/// Loads the datasets of a job, faults of all of them recorded. This blocks on the file system.
pub fn load(job: &Job, options: &Options<'_>, problems: &mut Problems) -> Vec<Dataset> {
    let mut commits = Commits::default();
    let mut names = HashMap::new();
    let mut datasets = Vec::new();
    for reference in &job.datasets {
        let Some(found) = find(job, reference, problems) else { continue };
        if let Some(name) = dataset_name(job, reference, &found, &mut names, problems) {
            let format = reference.format;
            let context = Context { job, options, dataset: &name, format };
            let tasks = tasks(&context, found, &mut commits, problems);
            datasets.push(Dataset { name, version: reference.version.clone(), tasks });
        }
    }
    datasets
}

fn find(job: &Job, reference: &DatasetRef, problems: &mut Problems) -> Option<Found> {
    let DatasetSource::Path(written) = &reference.source else {
        let found = "a dataset that has to be fetched, which is not available yet";
        let spot = &reference.spot;
        let expected = "`path`, a local directory";
        problems.error(spot.error(&job.file, ErrorKind::Unavailable, found, expected));
        return None;
    };
    let path = job.base_dir().join(written);
    let shown = format!("`{}`", path.display());
    let mut fault = |kind, found: String, expected: &str, hint: Option<String>| {
        let error = reference.spot.error(&job.file, kind, found, expected);
        problems.error(ConfigError { hint, ..error });
        None
    };
    match discover::discover(&path) {
        Ok(found) if found.tasks.is_empty() => {
            let expected = "sub-directories with a task.toml";
            fault(ErrorKind::NoTasks, format!("no task in {shown}"), expected, None)
        }
        Ok(found) => Some(found),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let elsewhere = written.is_relative() && written.exists();
            let hint = "paths count from the job file's directory, not from the current one";
            let hint = elsewhere.then(|| hint.to_owned());
            fault(
                ErrorKind::NotFound,
                format!("{shown}, which does not exist"),
                "a directory",
                hint,
            )
        }
        Err(error) => {
            fault(ErrorKind::Unreadable, format!("{shown}: {error}"), "a directory", None)
        }
    }
}

fn dataset_name(
    job: &Job,
    reference: &DatasetRef,
    found: &Found,
    names: &mut HashMap<String, String>,
    problems: &mut Problems,
) -> Option<String> {
    let name = reference.name.clone().or_else(|| found.name.clone()).unwrap_or_default();
    let spot = &reference.spot;
    let hint = Some("give the dataset another `name`".to_owned());
    if let Err(why) = name::check(&name) {
        let found = format!("a directory with the name {name:?}, which {why}");
        let error = spot.error(&job.file, ErrorKind::BadValue, found, "a name for the dataset");
        problems.error(ConfigError { hint, ..error });
        return None;
    }
    if let Some(first) = names.insert(name::fold(&name), spot.key.clone()) {
        let found = format!("the dataset name `{name}`, which {first} has too");
        let expected = "names that differ in more than upper and lower case";
        let error = spot.error(&job.file, ErrorKind::DuplicateName, found, expected);
        problems.error(ConfigError { hint, ..error });
    }
    Some(name)
}

fn tasks(
    context: &Context<'_>,
    found: Found,
    commits: &mut Commits,
    problems: &mut Problems,
) -> Vec<Task> {
    for dir in found.skipped {
        problems.warning(ConfigWarning {
            file: dir,
            line: None,
            key: String::new(),
            message: "skipped: a directory without task.toml is not a task".to_owned(),
        });
    }
    let mut names: HashMap<String, PathBuf> = HashMap::new();
    let mut tasks = Vec::new();
    for dir in found.tasks {
        let Some(name) = task_name(&dir, &mut names, problems) else { continue };
        tasks.extend(task::load(context, name, dir, commits, problems));
    }
    tasks
}

fn task_name(
    dir: &Path,
    names: &mut HashMap<String, PathBuf>,
    problems: &mut Problems,
) -> Option<String> {
    let spot = Spot { key: String::new(), line: None };
    let raw = dir.file_name().unwrap_or_default();
    let expected = "a directory whose name can be a directory of the results";
    let Some(name) = raw.to_str() else {
        let found = "a name that is not UTF-8";
        problems.error(spot.error(dir, ErrorKind::BadValue, found, expected));
        return None;
    };
    if let Err(why) = name::check(name) {
        let found = format!("the name {name:?}, which {why}");
        problems.error(spot.error(dir, ErrorKind::BadValue, found, expected));
        return None;
    }
    if let Some(first) = names.insert(name::fold(name), dir.to_owned()) {
        let found = format!("a name that differs only in case from {}", first.display());
        let expected = "names that differ in more than upper and lower case";
        problems.error(spot.error(dir, ErrorKind::DuplicateName, found, expected));
    }
    Some(name.to_owned())
}
