//! Resolution of a job's datasets to directories on this disk; tasks in repositories are fetched,
//! for all datasets together.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollout_protocol::name;
use rollout_protocol::spec::task::TaskFormat;
use rollout_worker::confined::{ConfinedDir, leads_outside};
use rollout_worker::shown_path::shown;

use super::discover;
use crate::config::{
    ConfigError, ConfigWarning, DatasetRef, DatasetSource, Diagnostics, ErrorKind, FetchAccess,
    HostAccess, HostSource, Job, JobOptions, PatternLocations, RegistryRef, SourceBounds,
    SourceLocation, TaskRef, TaskSelection, TaskSource, is_address, is_inside,
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
    /// Selection of its tasks.
    pub(super) selection: TaskSelection,
    /// Its location in the job file.
    pub(super) location: SourceLocation,
    /// Locations of the patterns that select its tasks.
    pub(super) pattern_locations: PatternLocations,
    /// All of its tasks.
    pub(super) tasks: Vec<TaskCandidate>,
    /// Directories beside them that are not tasks.
    pub(super) skipped: Vec<PathBuf>,
}

/// A task that may be selected.
pub(super) struct TaskCandidate {
    /// Name given by a registry.
    pub(super) name: Option<String>,
    /// Its directory.
    pub(super) dir: PathBuf,
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
struct PendingDataset {
    dataset: ResolvedDataset,
    pending: Vec<PendingTask>,
}

struct PendingTask {
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
    let mut pending: Vec<PendingDataset> =
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

    /// Records that tasks of a repository cannot be fetched.
    fn fetch_fault(&mut self, location: &SourceLocation, error: &FetchError) {
        let (message, hint) = (error.to_string(), error.hint());
        if error.is_missing() {
            let expected = "a repository with the job's tasks";
            self.fault(location, ErrorKind::NotFound, message, expected, hint);
        } else {
            self.failure(location, ErrorKind::FetchFailed, message, hint);
        }
    }

    fn dataset(&mut self, reference: &DatasetRef) -> Option<PendingDataset> {
        let mut source = ResolvedDataset {
            name: reference.name.clone().unwrap_or_default(),
            version: reference.version.clone(),
            description: None,
            registered: false,
            selection: reference.selection.clone(),
            location: reference.location.clone(),
            pattern_locations: reference.pattern_locations.clone(),
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
                Some(PendingDataset { dataset: source, pending: Vec::new() })
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
                let wanted = vec![PendingTask { name: None, request, location, format }];
                Some(PendingDataset { dataset: source, pending: wanted })
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
        let shown = format!("`{}`", shown(&path));
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

    /// Resolves a dataset of a registry.
    fn registry_dataset(
        &mut self,
        reference: &DatasetRef,
        registry: &RegistryRef,
        mut source: ResolvedDataset,
    ) -> Option<PendingDataset> {
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
        let mut pending = Vec::new();
        for task in entry.tasks {
            let path = task.path.as_deref().map(normalize_path).unwrap_or_default();
            let name = task.name.clone();
            let refused = || self.refused_address(&task, base.is_some());
            if let Some(found) = unavailable_reason(&task, &path, base.is_some()).or_else(refused) {
                let expected = "tasks inside repositories";
                self.fault(&reference.location, ErrorKind::BadValue, found, expected, None);
                continue;
            }
            let base = base.as_deref().unwrap_or(Path::new("/"));
            let Some(url) = &task.git_url else {
                if let Some(found) = self.refused_path(base, &path) {
                    let expected = "tasks in the directory of the registry";
                    self.fault(&reference.location, ErrorKind::BadValue, found, expected, None);
                    continue;
                }
                let task = local_task(base.join(path), format);
                source.tasks.push(TaskCandidate { name, ..task });
                continue;
            };
            let request = FetchRequest {
                origin: Origin::new(url, base),
                revision: Revision::new(task.git_commit_id.as_deref()),
                target: FetchTarget::Directory(path),
            };
            pending.push(PendingTask {
                name,
                request,
                location: reference.location.clone(),
                format,
            });
        }
        Some(PendingDataset { dataset: source, pending })
    }

    /// Why a job may not use the repository of a task. A registry of this host may name any.
    fn refused_address(&self, task: &TaskEntry, is_file: bool) -> Option<String> {
        let url = task.git_url.as_deref().filter(|_| !is_file)?;
        self.host.source_refusal(HostSource::Repository, url)
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
    fn single_tasks(&mut self) -> Option<PendingDataset> {
        let first = self.job.tasks.first()?;
        let mut source = ResolvedDataset {
            name: SINGLE_TASKS_DATASET.to_owned(),
            version: None,
            description: None,
            registered: false,
            selection: TaskSelection::default(),
            location: first.location.clone(),
            pattern_locations: PatternLocations {
                names: first.location.clone(),
                exclude: first.location.clone(),
            },
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
                    let request = FetchRequest {
                        origin: Origin::new(url, self.job.base_dir()),
                        revision: Revision::new(commit.as_deref()),
                        target: FetchTarget::Directory(
                            path.as_deref().map(normalize_path).unwrap_or_default(),
                        ),
                    };
                    let location = location.clone();
                    pending.push(PendingTask { name: None, request, location, format: *format });
                }
            }
        }
        Some(PendingDataset { dataset: source, pending })
    }

    /// Adds the fetched tasks; `None` if errors leave no tasks.
    fn finish(
        &mut self,
        pending: PendingDataset,
        answers: &FetchResults,
    ) -> Option<ResolvedDataset> {
        let PendingDataset { dataset: mut source, pending: wanted } = pending;
        let mut reported = BTreeSet::new();
        for PendingTask { name, request, location, format } in wanted {
            match &answers[&request] {
                Ok(fetched) => {
                    for FetchedDirectory { path, dir, pointers } in &fetched.directories {
                        let name = name.clone().or_else(|| Some(file_name(dir)));
                        let source_text = format!("{} `{path}`", request.origin.redacted_url());
                        let commit = Some(fetched.commit.clone());
                        source.tasks.push(TaskCandidate {
                            name,
                            dir: dir.clone(),
                            source: source_text,
                            pointers: pointers.clone(),
                            commit,
                            format,
                        });
                    }
                }
                Err(error) => {
                    if reported.insert(error.to_string()) {
                        self.fetch_fault(&location, error);
                    }
                }
            }
        }
        if source.tasks.is_empty() && reported.is_empty() {
            let expected = "directories with a task.toml";
            let found = "no task".to_owned();
            self.fault(&source.location, ErrorKind::NoTasks, found, expected, None);
        }
        (!source.tasks.is_empty()).then_some(source)
    }
}

/// The reason why a task of a registry is unavailable.
fn unavailable_reason(task: &TaskEntry, path: &str, has_base: bool) -> Option<String> {
    if !path.is_empty() && !is_inside(path) {
        return Some(format!("the task path `{path}` in the registry"));
    }
    match &task.git_url {
        Some(url) if !is_address(url) => Some(format!("the `git_url` {url:?} in the registry")),
        None if !has_base => {
            Some(format!("the task `{path}` without `git_url`, in a registry that is not a file"))
        }
        _ => None,
    }
}

fn local_task(dir: PathBuf, format: Option<TaskFormat>) -> TaskCandidate {
    let place = shown(&dir).to_string();
    let (pointers, commit) = (Vec::new(), None);
    TaskCandidate { name: None, dir, source: place, pointers, commit, format }
}

fn file_name(dir: &Path) -> String {
    dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Normalizes a path inside a repository; empty for its root.
fn normalize_path(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.collect::<Vec<_>>().join("/")
}
