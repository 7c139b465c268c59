//! Resolution of a job's datasets to directories on this disk; tasks in repositories are fetched,
//! for all datasets together.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollout_base::confined::{ConfinedDir, leads_outside};
use rollout_base::shown_path::shown;
use rollout_protocol::name;
use rollout_protocol::spec::task::TaskFormat;

use super::select::{NamedTask, select_tasks};
use super::{discover, registry_names};
use crate::config::{
    ConfigError, ConfigWarning, DatasetRef, DatasetSource, Diagnostics, ErrorKind, FetchAccess,
    FetchNetwork, HostAccess, HostSource, Job, JobOptions, RegistryRef, SourceBounds,
    SourceLocation, TaskRef, TaskSource, is_address, is_inside, without_secrets,
};
use crate::sources::registry::{
    self, FetchError, FetchRequest, FetchResults, FetchTarget, FetchedDirectory, IndexError,
    Origin, Revision, TaskEntry,
};

/// Name of the dataset of a job's single tasks.
const SINGLE_TASKS_DATASET: &str = "tasks";

/// A dataset with its tasks on this disk.
pub(super) struct ResolvedDataset {
    /// Name.
    pub(super) name: String,
    /// Version, informational.
    pub(super) version: Option<String>,
    /// Description in the registry.
    pub(super) description: Option<String>,
    /// Whether it comes from a registry, so that its versions can be told apart by name.
    pub(super) registered: bool,
    /// Its location in the job file.
    pub(super) location: SourceLocation,
    /// Its selected tasks.
    pub(super) tasks: Vec<TaskCandidate>,
    /// Directories beside them that are not tasks.
    pub(super) skipped: Vec<PathBuf>,
}

/// A task of a dataset.
pub(super) struct TaskCandidate {
    /// Its name: that of its directory, or of its entry in a registry.
    pub(super) name: String,
    /// Whether it is named after its directory on this disk.
    pub(super) is_named_after_dir: bool,
    /// Its directory; empty if it could not be fetched.
    pub(super) dir: PathBuf,
    /// Why it could not be fetched.
    pub(super) unfetched: Option<ConfigError>,
    /// Its source, as display text.
    pub(super) source: String,
    /// Its files that are only Git LFS pointers.
    pub(super) pointers: Vec<String>,
    /// Commit that it was fetched at, or that the job names for a local directory.
    pub(super) commit: Option<String>,
    /// The format set by the job or the registry.
    pub(super) format: Option<TaskFormat>,
}

/// A dataset with tasks that may have to be fetched.
struct PendingDataset<'a> {
    dataset: ResolvedDataset,
    /// The reference by which tasks are selected when all of their names are known.
    selected_by: Option<&'a DatasetRef>,
    pending: Vec<PendingTask>,
}

struct PendingTask {
    /// Its name; `None` for all tasks of a repository.
    name: Option<String>,
    request: FetchRequest,
    location: SourceLocation,
    format: Option<TaskFormat>,
}

/// Resolves the datasets of a job and fetches missing tasks.
pub(super) fn resolve_datasets(
    job: &Job,
    options: &JobOptions<'_>,
    problems: &mut Diagnostics,
) -> Vec<ResolvedDataset> {
    let cache = options.cache.clone().unwrap_or_else(|| job.jobs_dir.join(".rollout/cache"));
    let fetch = &options.fetch;
    let mut finder = DatasetResolver { job, host: options.host, fetch, cache, problems };
    let mut pending: Vec<PendingDataset<'_>> =
        job.datasets.iter().filter_map(|reference| finder.dataset(reference)).collect();
    pending.extend(finder.single_tasks());
    let requests: Vec<FetchRequest> =
        pending.iter().flat_map(|p| &p.pending).map(|wanted| wanted.request.clone()).collect();
    let answers = if requests.is_empty() {
        FetchResults::new()
    } else {
        let (answers, warnings) = registry::fetch(&finder.cache, requests, fetch);
        warnings.into_iter().for_each(|message| finder.warn(message));
        answers
    };
    let finished = pending.into_iter().filter_map(|pending| finder.finish(pending, &answers));
    let mut sources: Vec<ResolvedDataset> = finished.collect();
    disambiguate_versions(&mut sources);
    sources
}

/// Appends the version to the names of registry datasets that the job uses in several versions.
fn disambiguate_versions(sources: &mut [ResolvedDataset]) {
    let several: Vec<bool> = (sources.iter())
        .map(|source| {
            let same = |other: &&ResolvedDataset| {
                other.registered && name::fold_case(&other.name) == name::fold_case(&source.name)
            };
            let versions: BTreeSet<_> = sources.iter().filter(same).map(|s| &s.version).collect();
            source.registered && versions.len() > 1
        })
        .collect();
    for (source, _) in sources.iter_mut().zip(several).filter(|(_, several)| *several) {
        if let Some(version) = &source.version {
            source.name = format!("{}@{}", source.name, version.replace(['/', '\\'], "_"));
        }
    }
}

struct DatasetResolver<'a> {
    job: &'a Job,
    /// The access of the job to paths of this host.
    host: HostAccess<'a>,
    fetch: &'a FetchAccess,
    cache: PathBuf,
    problems: &'a mut Diagnostics,
}

impl DatasetResolver<'_> {
    fn warn(&mut self, message: String) {
        let file = self.job.file.clone();
        self.problems.warning(ConfigWarning { file, line: None, key: String::new(), message });
    }

    fn fault(
        &mut self,
        location: &SourceLocation,
        kind: ErrorKind,
        found: String,
        expected: &str,
        hint: Option<String>,
    ) {
        let error = location.error(&self.job.file, kind, found, expected);
        self.problems.error(ConfigError { hint, ..error });
    }

    /// Records a failure whose message is a whole sentence.
    fn failure(
        &mut self,
        location: &SourceLocation,
        kind: ErrorKind,
        message: String,
        hint: Option<String>,
    ) {
        let error = location.failure(&self.job.file, kind, message);
        self.problems.error(ConfigError { hint, ..error });
    }

    /// Records that a dataset of a registry cannot be found.
    fn registry_fault(&mut self, location: &SourceLocation, error: &IndexError) {
        let (kind, is_failure) = match error {
            IndexError::NotFound(_) => (ErrorKind::NotFound, true),
            IndexError::Unreadable { .. } => (ErrorKind::Unreadable, true),
            IndexError::FetchFailed { .. } | IndexError::Host { .. } => {
                (ErrorKind::FetchFailed, true)
            }
            IndexError::Malformed { .. } => (ErrorKind::Syntax, true),
            IndexError::Ambiguous { .. } => (ErrorKind::DuplicateName, false),
            IndexError::UnknownDataset { .. } | IndexError::UnknownVersion { .. } => {
                (ErrorKind::NotFound, false)
            }
        };
        let (message, hint) = (error.to_string(), error.hint());
        if is_failure {
            self.failure(location, kind, message, hint);
        } else {
            self.fault(location, kind, message, "a dataset of a registry", hint);
        }
    }

    /// The error of tasks of a repository that cannot be fetched.
    fn fetch_error(&self, location: &SourceLocation, error: &FetchError) -> ConfigError {
        let (message, hint) = (error.to_string(), error.hint());
        let found = if error.is_missing() {
            let expected = "a repository with the job's tasks";
            location.error(&self.job.file, ErrorKind::NotFound, message, expected)
        } else {
            location.failure(&self.job.file, ErrorKind::FetchFailed, message)
        };
        ConfigError { hint, ..found }
    }

    fn dataset<'r>(&mut self, reference: &'r DatasetRef) -> Option<PendingDataset<'r>> {
        let mut source = ResolvedDataset {
            name: reference.name.clone().unwrap_or_default(),
            version: reference.version.clone(),
            description: None,
            registered: false,
            location: reference.location.clone(),
            tasks: Vec::new(),
            skipped: Vec::new(),
        };
        match &reference.source {
            DatasetSource::Path(path) => {
                let found = self.discover_tasks(path, &reference.location)?;
                if reference.name.is_none() {
                    source.name = found.name.unwrap_or_default();
                }
                source.skipped = found.skipped;
                let commit = || reference.commit.clone();
                let task =
                    |dir| TaskCandidate { commit: commit(), ..local_task(dir, reference.format) };
                source.tasks = found.tasks.into_iter().map(task).collect();
                let (selected_by, pending) = (Some(reference), Vec::new());
                Some(PendingDataset { dataset: source, selected_by, pending })
            }
            DatasetSource::Registry(place) => self.registry_dataset(reference, place, source),
            DatasetSource::Repository { url, reference: revision, path } => {
                let origin = Origin::new(url, self.job.base_dir());
                let path = path.as_deref().map(|p| p.trim_end_matches('/')).unwrap_or_default();
                if reference.name.is_none() {
                    let last = path.rsplit('/').next().filter(|last| !last.is_empty());
                    source.name = last.unwrap_or(origin.name()).to_owned();
                }
                let revision = Revision::new(revision.as_deref());
                let request =
                    FetchRequest { origin, revision, target: FetchTarget::Tasks(path.to_owned()) };
                let (location, format) = (reference.location.clone(), reference.format);
                let pending = vec![PendingTask { name: None, request, location, format }];
                Some(PendingDataset { dataset: source, selected_by: Some(reference), pending })
            }
        }
    }

    /// Finds tasks in a local directory.
    fn discover_tasks(
        &mut self,
        written: &Path,
        location: &SourceLocation,
    ) -> Option<discover::Discovery> {
        let path = self.job.base_dir().join(written);
        // The address of a repository may have been given as a path.
        let shown = format!("`{}`", without_secrets(&shown(&path).to_string()));
        match discover::discover(&path) {
            Ok(found) if found.tasks.is_empty() => {
                let expected = "sub-directories with a task.toml";
                self.fault(
                    location,
                    ErrorKind::NoTasks,
                    format!("no task in {shown}"),
                    expected,
                    None,
                );
            }
            Ok(mut found) => {
                // The path itself was checked when the document was read.
                found.tasks.retain(|dir| !dir.is_symlink() || self.may_use(dir, location));
                return Some(found);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let exists_in_current_dir = written.is_relative() && written.exists();
                let hint =
                    "paths are relative to the job file's directory, not to the current directory";
                let hint = exists_in_current_dir.then(|| hint.to_owned());
                let found = format!("{shown}, which does not exist");
                self.fault(location, ErrorKind::NotFound, found, "a directory", hint);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                let found = format!("{shown}, which is a file");
                self.fault(location, ErrorKind::Unreadable, found, "a directory", None);
            }
            Err(error) => {
                let message = format!("cannot list {shown}: {error}");
                self.failure(location, ErrorKind::Unreadable, message, None);
            }
        }
        None
    }

    /// Whether the job may use a directory to which a link may lead; if not, an error is recorded.
    fn may_use(&mut self, dir: &Path, location: &SourceLocation) -> bool {
        let Some(why) = self.host.source_refusal(HostSource::Path, &dir.to_string_lossy()) else {
            return true;
        };
        let expected = "tasks in directories that the operator allows";
        self.fault(location, ErrorKind::BadValue, why, expected, None);
        false
    }

    /// Resolves a dataset of a registry. Only tasks that the job selects are looked at further.
    fn registry_dataset<'r>(
        &mut self,
        reference: &'r DatasetRef,
        registry: &RegistryRef,
        mut source: ResolvedDataset,
    ) -> Option<PendingDataset<'r>> {
        let name = reference.name.as_deref()?;
        let read = registry::read(registry, self.job.base_dir(), &self.cache, self.fetch);
        let read = read.and_then(|text| {
            let entry = text.index.find(name, reference.version.as_deref())?;
            let base = text.index.base().map(Path::to_owned);
            Ok((entry.clone(), base, text.warning))
        });
        let (entry, base, warning) = match read {
            Ok(read) => read,
            Err(error) => {
                self.registry_fault(&reference.location, &error);
                return None;
            }
        };
        warning.into_iter().for_each(|warning| self.warn(warning));
        source.registered = true;
        source.version = source.version.or(entry.version);
        source.description = entry.description.filter(|text| !text.trim().is_empty());
        let format = reference.format.or(entry.format);
        let named = registry_names::named(entry.tasks, base.as_deref().unwrap_or(Path::new("/")));
        let has_tasks = !named.is_empty();
        let selected = if has_tasks {
            let fetch = self.fetch;
            let place = (self.job, reference, source.name.as_str());
            select_tasks(place, named, &|| fetch.is_cancelled(), self.problems)
        } else {
            named
        };
        if has_tasks && selected.is_empty() {
            return None;
        }
        let mut pending = Vec::new();
        for NamedTask { name, task, .. } in selected {
            self.registry_task(
                (reference, format),
                (name, &task),
                base.as_deref(),
                (&mut source, &mut pending),
            );
        }
        Some(PendingDataset { dataset: source, selected_by: None, pending })
    }

    /// Adds a task of a registry in the directory `base`, if it is a file of this host: to the tasks of
    /// its dataset, or to those that must be fetched.
    fn registry_task(
        &mut self,
        (reference, format): (&DatasetRef, Option<TaskFormat>),
        (name, task): (String, &TaskEntry),
        base: Option<&Path>,
        (source, pending): (&mut ResolvedDataset, &mut Vec<PendingTask>),
    ) {
        let path = task.path.as_deref().map(normalize_path).unwrap_or_default();
        if let Some(error) = self.unusable_address(task, &path, &reference.location) {
            let address = task.git_url.as_deref().map(without_secrets).unwrap_or_default();
            source.tasks.push(unfetched_task(name, address, error, format));
            return;
        }
        let refused = || self.refused_address(task, base);
        if let Some(found) = unavailable_reason(task, &path, base.is_some()).or_else(refused) {
            let expected = "tasks inside repositories";
            self.fault(&reference.location, ErrorKind::BadValue, found, expected, None);
            return;
        }
        let base = base.unwrap_or(Path::new("/"));
        let Some(url) = &task.git_url else {
            if let Some(found) = self.refused_path(base, &path) {
                let expected = "tasks in the directory of the registry";
                self.fault(&reference.location, ErrorKind::BadValue, found, expected, None);
                return;
            }
            let task = local_task(base.join(path), format);
            source.tasks.push(TaskCandidate { name, is_named_after_dir: false, ..task });
            return;
        };
        let request = FetchRequest {
            origin: Origin::new(url, base),
            revision: Revision::new(task.git_commit_id.as_deref()),
            target: FetchTarget::Directory(path),
        };
        let location = reference.location.clone();
        pending.push(PendingTask { name: Some(name), request, location, format });
    }

    /// The error of a task with a `git_url` that is no address: it concerns that task alone. `None` if it
    /// refuses the run: a strict one, or one of a user of a server.
    fn unusable_address(
        &self,
        task: &TaskEntry,
        path: &str,
        location: &SourceLocation,
    ) -> Option<ConfigError> {
        let url = task.git_url.as_deref().filter(|url| !is_address(url))?;
        let is_own_user = matches!(self.fetch.network, FetchNetwork::OwnUser);
        if self.job.is_strict || !is_own_user || leaves_repository(path) {
            return None;
        }
        let url = without_secrets(url);
        let found = format!("the `git_url` {url:?} in the registry, which is not an address");
        let expected = "the address of a git repository";
        Some(location.error(&self.job.file, ErrorKind::BadValue, found, expected))
    }

    /// Why a job may not use the repository of a task. A registry of this host, in the directory
    /// `base`, may name any; but of a user of a server only directories: git reads a file as a bundle, to
    /// its end.
    fn refused_address(&self, task: &TaskEntry, base: Option<&Path>) -> Option<String> {
        let url = task.git_url.as_deref()?;
        let Some(base) = base else {
            return self.host.source_refusal(HostSource::Repository, url);
        };
        let origin = Origin::new(url, base);
        let path = origin.path().filter(|_| self.host.bounds(base) != SourceBounds::Host)?;
        let url = without_secrets(url);
        (!path.is_dir())
            .then(|| format!("the `git_url` {url:?} in the registry, which is no directory"))
    }

    /// Why a job may not use a task beside a registry of this host.
    fn refused_path(&self, base: &Path, path: &str) -> Option<String> {
        if self.host.bounds(base) == SourceBounds::Host {
            return None;
        }
        let found = ConfinedDir::open(base).and_then(|base| base.directory(Path::new(path)));
        let leaves = found.is_err_and(|error| leads_outside(&error));
        leaves.then(|| format!("the task path `{path}` in the registry, which leads elsewhere"))
    }

    /// Resolves the single tasks as one dataset.
    fn single_tasks(&mut self) -> Option<PendingDataset<'static>> {
        let first = self.job.tasks.first()?;
        let mut source = ResolvedDataset {
            name: SINGLE_TASKS_DATASET.to_owned(),
            version: None,
            description: None,
            registered: false,
            location: first.location.clone(),
            tasks: Vec::new(),
            skipped: Vec::new(),
        };
        let mut pending = Vec::new();
        for TaskRef { source: place, commit: known, format, location } in &self.job.tasks {
            match place {
                TaskSource::Path(path) => {
                    let Some(found) = self.discover_tasks(path, location) else { continue };
                    let task =
                        |dir| TaskCandidate { commit: known.clone(), ..local_task(dir, *format) };
                    source.tasks.extend(found.tasks.into_iter().map(task));
                }
                TaskSource::Git { url, commit, path } => {
                    let base = self.job.base_dir();
                    let name =
                        registry_names::directory_name(Some(url.as_str()), path.as_deref(), base);
                    let request = FetchRequest {
                        origin: Origin::new(url, base),
                        revision: Revision::new(commit.as_deref()),
                        target: FetchTarget::Directory(
                            path.as_deref().map(normalize_path).unwrap_or_default(),
                        ),
                    };
                    let (name, location) = (Some(name), location.clone());
                    pending.push(PendingTask { name, request, location, format: *format });
                }
            }
        }
        Some(PendingDataset { dataset: source, selected_by: None, pending })
    }

    /// Adds the fetched tasks; `None` if errors leave no tasks.
    fn finish(
        &mut self,
        pending: PendingDataset<'_>,
        answers: &FetchResults,
    ) -> Option<ResolvedDataset> {
        let PendingDataset { dataset: mut source, selected_by, pending: wanted } = pending;
        let mut reported = BTreeSet::new();
        for PendingTask { name, request, location, format } in wanted {
            match &answers[&request] {
                Ok(fetched) => {
                    for FetchedDirectory { path, dir, pointers } in &fetched.directories {
                        let name = name.clone().unwrap_or_else(|| file_name(dir));
                        let source_text = format!("{} `{path}`", request.origin.redacted_url());
                        let commit = Some(fetched.commit.clone());
                        source.tasks.push(TaskCandidate {
                            name,
                            is_named_after_dir: false,
                            dir: dir.clone(),
                            unfetched: None,
                            source: source_text,
                            pointers: pointers.clone(),
                            commit,
                            format,
                        });
                    }
                }
                Err(error) => {
                    let found = self.fetch_error(&location, error);
                    match name.filter(|_| error.is_of_its_task() && !self.job.is_strict) {
                        Some(name) => {
                            let source_text = request.origin.redacted_url();
                            source.tasks.push(unfetched_task(name, source_text, found, format));
                        }
                        None if reported.insert(error.to_string()) => self.problems.error(found),
                        None => {}
                    }
                }
            }
        }
        if source.tasks.is_empty() && reported.is_empty() {
            let expected = "directories with a task.toml";
            let found = "no task".to_owned();
            self.fault(&source.location, ErrorKind::NoTasks, found, expected, None);
        }
        if let Some(reference) = selected_by.filter(|_| !source.tasks.is_empty()) {
            let tasks = std::mem::take(&mut source.tasks);
            let named = tasks.into_iter().map(|task| NamedTask {
                name: task.name.clone(),
                full_name: None,
                task,
            });
            let place = (self.job, reference, source.name.as_str());
            let fetch = self.fetch;
            let has_ended = || fetch.is_cancelled();
            let selected = select_tasks(place, named.collect(), &has_ended, self.problems);
            source.tasks = selected.into_iter().map(|named| named.task).collect();
        }
        (!source.tasks.is_empty()).then_some(source)
    }
}

/// The reason why a task of a registry is unavailable.
fn unavailable_reason(task: &TaskEntry, path: &str, has_base: bool) -> Option<String> {
    if leaves_repository(path) {
        return Some(format!("the task path `{path}` in the registry"));
    }
    match &task.git_url {
        Some(url) if !is_address(url) => {
            Some(format!("the `git_url` {:?} in the registry", without_secrets(url)))
        }
        None if !has_base => {
            Some(format!("the task `{path}` without `git_url`, in a registry that is not a file"))
        }
        _ => None,
    }
}

/// Whether the path of a task leads out of its repository.
fn leaves_repository(path: &str) -> bool {
    !path.is_empty() && !is_inside(path)
}

fn local_task(dir: PathBuf, format: Option<TaskFormat>) -> TaskCandidate {
    let place = shown(&dir).to_string();
    TaskCandidate {
        name: file_name(&dir),
        is_named_after_dir: true,
        dir,
        unfetched: None,
        source: place,
        pointers: Vec::new(),
        commit: None,
        format,
    }
}

fn unfetched_task(
    name: String,
    source: String,
    error: ConfigError,
    format: Option<TaskFormat>,
) -> TaskCandidate {
    let local = local_task(PathBuf::new(), format);
    TaskCandidate { name, is_named_after_dir: false, unfetched: Some(error), source, ..local }
}

fn file_name(dir: &Path) -> String {
    dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Normalizes a path inside a repository; empty for its root.
fn normalize_path(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.collect::<Vec<_>>().join("/")
}
