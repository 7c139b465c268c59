//! `datasets` and `tasks` of a job file: sources and selection of tasks.

use std::path::PathBuf;

use rollout_protocol::spec::task::TaskFormat;

use super::super::address::{login_of_host, without_secrets};
use super::super::diagnostics::ErrorKind;
use super::super::location::SourceLocation;
use super::super::reader::{Field, Fields};
use super::super::value::quoted;
use super::{names, task_patterns};

keys! {
    /// The keys of a dataset.
    pub(crate) table DatasetKeys {
        path: Source("path", HostSource::Path), "one of path, registry, repo",
            "Directory of tasks, or of one task; with `repo`, the directory inside it.";
        registry: Value("table"), "",
            "Registry with the dataset: a JSON list of datasets and their tasks.",
            "registry" => RegistryKeys::ALL;
        repo: Source("text", HostSource::RepositoryAtReference), "",
            "Git repository with tasks anywhere in it: URL or URL@ref; a path is relative to the file.";
        reference as "ref": Value("text"), "HEAD", "Branch, tag or commit id of `repo`.";
        git_commit_id: Value("text"), "that of its repository",
            "With `path`, full commit id of its tasks, for their results: an uploaded directory has no repository.";
        name: Value("text"), "directory name",
            "Name of the dataset in the results; with `registry`, the name to look up. If the job has several versions of it, `@` and the version are appended.";
        version: Value("text"), "head, else the highest, else the last",
            "With `registry`, the version to look up; else informational.";
        format: Value("auto|rollout|harbor"), "auto",
            "Format of its tasks; auto detects it from each task's keys, else guesses it from its files.";
        task_names: Value("list of patterns"), "all",
            "Select tasks whose name matches a pattern; `*`, `?`, `[a-z]`.";
        exclude_task_names: Value("list of patterns"), "none",
            "Exclude tasks whose name matches a pattern.";
        n_tasks: Value("integer"), "all", "Maximum number of tasks, the first by name.";
    }

    /// The keys of `registry`.
    pub(crate) table RegistryKeys {
        path: Source("path", HostSource::OperatorPath), "", "Path of the registry file.";
        url: Source("text", HostSource::Registry), "", "URL of the registry: http, https or file.";
    }

    /// The keys of a single task.
    pub(crate) table TaskRefKeys {
        path: Source("path", HostSource::Path), "required, or the root of `git_url`",
            "Directory of the task; with `git_url`, the directory inside the repository.";
        git_url: Source("text", HostSource::Repository), "none", "Git repository with the task.";
        git_commit_id: Value("text"), "HEAD",
            "Commit id, branch or tag; without `git_url`, full commit id of the task, for its results.";
        format: Value("auto|rollout|harbor"), "auto", "Format of the task.";
    }
}

/// Largest number of tasks that a job can select from one dataset.
const MAX_TASKS: u64 = 1_000_000;

/// Words of `format`.
const FORMATS: &[(&str, Option<TaskFormat>)] =
    &[("auto", None), ("rollout", Some(TaskFormat::Rollout)), ("harbor", Some(TaskFormat::Harbor))];

/// A dataset as written in the job file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRef {
    /// Source of its tasks.
    pub source: DatasetSource,
    /// Commit of the tasks in a directory, for their results; that of its repository if absent.
    pub commit: Option<String>,
    /// Name in the results, instead of the source's; for a registry, the name to look up.
    pub name: Option<String>,
    /// Version: informational, or for a registry, the version to look up.
    pub version: Option<String>,
    /// Format of its tasks; detected for each task if absent.
    pub format: Option<TaskFormat>,
    /// Selection of its tasks.
    pub selection: TaskSelection,
    /// Location of its source in the job file.
    pub location: SourceLocation,
    /// Locations of the patterns of the selection.
    pub pattern_locations: PatternLocations,
}

/// Locations of the patterns that select tasks, or where they would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternLocations {
    /// `task_names`.
    pub names: SourceLocation,
    /// `exclude_task_names`.
    pub exclude: SourceLocation,
}

/// Source of a dataset's tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatasetSource {
    /// A directory of tasks, or of one task; relative to the job file's directory.
    Path(PathBuf),
    /// A dataset of a registry.
    Registry(RegistryRef),
    /// A git repository.
    Repository {
        /// URL or path.
        url: String,
        /// Branch, tag or commit; HEAD if absent.
        reference: Option<String>,
        /// Directory inside it; the whole repository if absent.
        path: Option<String>,
    },
}

/// Location of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryRef {
    /// A file; relative to the job file's directory.
    Path(PathBuf),
    /// A URL.
    Url(String),
}

/// Selection of a dataset's tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskSelection {
    /// Patterns; a task is selected if its name matches one. All tasks if empty.
    pub names: Vec<String>,
    /// Patterns; a task is excluded if its name matches one.
    pub exclude: Vec<String>,
    /// Maximum number of tasks, the first by name.
    pub max_tasks: Option<usize>,
}

/// A single task as written in the job file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRef {
    /// Source of the task.
    pub source: TaskSource,
    /// Commit of a task in a directory, for its results; that of its repository if absent.
    pub commit: Option<String>,
    /// Its format; detected if absent.
    pub format: Option<TaskFormat>,
    /// Location of its source in the job file.
    pub location: SourceLocation,
}

/// Source of a single task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskSource {
    /// A directory; relative to the job file's directory.
    Path(PathBuf),
    /// A directory of a git repository.
    Git {
        /// URL or path of the repository.
        url: String,
        /// Commit, branch or tag; HEAD if absent.
        commit: Option<String>,
        /// Directory inside it; its root if absent.
        path: Option<String>,
    },
}

impl TaskSelection {
    /// Whether all tasks are selected.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// The datasets, in file order. May be empty if there are single tasks.
pub(crate) fn read(field: &Field<'_>, has_tasks: bool) -> Vec<DatasetRef> {
    const EXPECTED: &str = "a list of at least one dataset";
    if has_tasks && !field.is_present() {
        return Vec::new();
    }
    if !field.required(EXPECTED) {
        return Vec::new();
    }
    let Some(items) = field.items() else { return Vec::new() };
    if items.is_empty() && !has_tasks {
        field.reject(ErrorKind::BadValue, "an empty list", EXPECTED);
    }
    items.iter().filter_map(dataset).collect()
}

/// The single tasks, in file order.
pub(crate) fn read_tasks(field: &Field<'_>) -> Vec<TaskRef> {
    field.items().unwrap_or_default().iter().filter_map(task).collect()
}

fn dataset(item: &Field<'_>) -> Option<DatasetRef> {
    let mut fields = item.mapping()?;
    let found = source(&mut fields);
    let commit_field = fields.take(DatasetKeys::git_commit_id);
    let commit = commit_id(&commit_field);
    let name_field = fields.take(DatasetKeys::name);
    let name = names::read(&name_field);
    let version = fields.take(DatasetKeys::version).text();
    let format = format(&fields.take(DatasetKeys::format));
    let names = fields.take(DatasetKeys::task_names);
    let exclude = fields.take(DatasetKeys::exclude_task_names);
    let pattern_locations =
        PatternLocations { names: names.location(), exclude: exclude.location() };
    let selection = TaskSelection {
        names: task_patterns::read(&names),
        exclude: task_patterns::read(&exclude),
        max_tasks: fields
            .take(DatasetKeys::n_tasks)
            .integer(&(1..=MAX_TASKS))
            .and_then(|n| usize::try_from(n).ok()),
    };
    fields.finish();
    let (source, location) = found?;
    if commit_field.is_present() && !matches!(source, DatasetSource::Path(_)) {
        let found = "a commit of tasks that are fetched";
        commit_field.reject(ErrorKind::Conflict, found, "it with `path` alone");
    }
    if matches!(source, DatasetSource::Registry(_))
        && !name_field.required("the name of a dataset of the registry")
    {
        return None;
    }
    Some(DatasetRef {
        source,
        commit,
        name,
        version,
        format,
        selection,
        location,
        pattern_locations,
    })
}

fn source(fields: &mut Fields<'_>) -> Option<(DatasetSource, SourceLocation)> {
    let path = match fields.has(DatasetKeys::repo) {
        true => fields.take_inside(DatasetKeys::path),
        false => fields.take(DatasetKeys::path),
    };
    let registry = fields.take(DatasetKeys::registry);
    let repo = fields.take(DatasetKeys::repo);
    let reference = fields.take(DatasetKeys::reference);
    if !repo.is_present() && reference.is_present() {
        reference.reject(ErrorKind::Conflict, "a `ref` without `repo`", "both or neither");
    }
    if registry.is_present() && (path.is_present() || repo.is_present()) {
        let found = "a second source of the dataset";
        registry.reject(ErrorKind::Conflict, found, "one of `path`, `registry`, `repo`");
        return None;
    }
    if registry.is_present() {
        return Some((DatasetSource::Registry(self::registry(&registry)?), registry.location()));
    }
    if repo.is_present() {
        let (url, reference) = repository(&repo, &reference)?;
        let path = path.non_empty_string().filter(|_| check_inside(&path));
        return Some((DatasetSource::Repository { url, reference, path }, repo.location()));
    }
    if !path.is_present() {
        let expected = "`path`, `registry` with `name`, or `repo`";
        path.reject(ErrorKind::MissingKey, "nothing", expected);
        return None;
    }
    Some((DatasetSource::Path(path.path()?), path.location()))
}

fn registry(field: &Field<'_>) -> Option<RegistryRef> {
    let mut fields = field.mapping()?;
    let (path, url) = (fields.take(RegistryKeys::path), fields.take(RegistryKeys::url));
    fields.finish();
    match (path.is_present(), url.is_present()) {
        (true, false) => path.path().map(RegistryRef::Path),
        (false, true) => url.non_empty_string().map(RegistryRef::Url),
        (found, _) => {
            let found = if found { "both" } else { "neither" };
            field.reject(ErrorKind::Conflict, found, "one of `path` and `url`");
            None
        }
    }
}

/// URL and reference of `repo` and `ref`; the reference may follow the URL after an `@`.
fn repository(repo: &Field<'_>, reference: &Field<'_>) -> Option<(String, Option<String>)> {
    let text = repo.non_empty_string()?;
    let (url, own) = split_reference(&text);
    let (url, own) = (repo.typed_path(url), own.map(str::to_owned));
    check_url(repo, &url)?;
    let given = reference.non_empty_string();
    if own.is_some() && given.is_some() {
        let found = "a second reference besides the one in `repo`";
        reference.reject(ErrorKind::Conflict, found, "only one of the two");
    }
    let reference_of = if own.is_some() { repo } else { reference };
    let wanted = own.or(given);
    if let Some(wanted) = &wanted {
        check_reference(reference_of, wanted)?;
    }
    Some((url, wanted))
}

/// Splits `URL@ref`. The `@` of a user precedes the last `/` or `:`, that of a reference follows
/// the last `/` of the address; a reference may itself contain a `/`.
pub(crate) fn split_reference(text: &str) -> (&str, Option<&str>) {
    // A password may have a slash or a colon. In `host:path@reference` there is none.
    let login =
        login_of_host(text).filter(|login| login.start > 0 || text[login.end..].contains(':'));
    let (from, is_scp) = match (login, text.find("://")) {
        (Some(login), _) => (login.end, login.start == 0),
        (None, Some(at)) => (at + 3, false),
        (None, None) => (0, true),
    };
    let begins_path = |c: char| c == '/' || (is_scp && c == ':');
    let Some(path) = text[from..].find(begins_path) else { return (text, None) };
    let path = from + path;
    match text[path..].find('@') {
        Some(at) if path + at + 1 < text.len() => {
            (&text[..path + at], Some(&text[path + at + 1..]))
        }
        _ => (text, None),
    }
}

/// An address of a repository, and its reference if one follows it, without the user and password of the
/// address: a reference is no part of a login.
pub(crate) fn repository_without_secrets(text: &str) -> String {
    match split_reference(text) {
        (url, Some(reference)) => format!("{}@{reference}", without_secrets(url)),
        (url, None) => without_secrets(url),
    }
}

/// Whether an address is safe to pass to git: git cannot take it for an option or a program.
pub(crate) fn is_address(url: &str) -> bool {
    !url.is_empty()
        && !url.starts_with('-')
        && !url.contains("::")
        && !url.chars().any(|c| c.is_control() || c.is_whitespace())
}

fn check_url(field: &Field<'_>, url: &str) -> Option<()> {
    let good = is_address(url);
    if !good {
        let found = format!("the text {}", quoted(&without_secrets(url)));
        field.reject(ErrorKind::BadValue, found, "the address of a git repository");
    }
    good.then_some(())
}

fn check_reference(field: &Field<'_>, reference: &str) -> Option<()> {
    let good = !reference.starts_with('-')
        && !reference.contains("..")
        && !reference.chars().any(|c| c.is_control() || " ~^:?*[\\".contains(c));
    if !good {
        // The whole value of `repo` may have a login.
        let found = format!("the text {}", quoted(&without_secrets(reference)));
        field.reject(ErrorKind::BadValue, found, "a branch, a tag or a commit id");
    }
    good.then_some(())
}

/// Whether a directory is inside its repository; otherwise records an error.
fn check_inside(field: &Field<'_>) -> bool {
    let Some(path) = field.non_empty_string() else { return false };
    let good = is_inside(&path);
    if !good {
        field.bad_value("a directory inside the repository, without `..` or a leading `/`");
    }
    good
}

/// Whether a path stays inside its base and outside `.git`.
pub(crate) fn is_inside(path: &str) -> bool {
    let mut parts = path.trim_end_matches('/').split('/');
    !path.chars().any(char::is_control)
        && !path.contains('\\')
        && parts.all(|part| !matches!(part, "" | "..") && !part.eq_ignore_ascii_case(".git"))
}

fn task(item: &Field<'_>) -> Option<TaskRef> {
    let mut fields = item.mapping()?;
    let path = match fields.has(TaskRefKeys::git_url) {
        true => fields.take_inside(TaskRefKeys::path),
        false => fields.take(TaskRefKeys::path),
    };
    let url = fields.take(TaskRefKeys::git_url);
    let commit = fields.take(TaskRefKeys::git_commit_id);
    let format = format(&fields.take(TaskRefKeys::format));
    fields.finish();
    if !url.is_present() {
        let commit = commit_id(&commit);
        path.required("the directory of a task, local or in `git_url`");
        let source = TaskSource::Path(path.path()?);
        return Some(TaskRef { source, commit, format, location: path.location() });
    }
    let address = url.non_empty_string()?;
    check_url(&url, &address)?;
    let wanted = commit.text();
    if let Some(wanted) = &wanted {
        check_reference(&commit, wanted)?;
    }
    let directory = path.non_empty_string().filter(|_| check_inside(&path));
    let source = TaskSource::Git { url: address, commit: wanted, path: directory };
    Some(TaskRef { source, commit: None, format, location: url.location() })
}

/// Reads a full commit id.
fn commit_id(field: &Field<'_>) -> Option<String> {
    let text = field.non_empty_string()?;
    let good = matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !good {
        field.bad_value("a full commit id: 40 or 64 hexadecimal digits");
    }
    good.then(|| text.to_ascii_lowercase())
}

fn format(field: &Field<'_>) -> Option<TaskFormat> {
    field.keyword(FORMATS).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    fn faults(text: &str) -> Vec<(String, ErrorKind)> {
        read_field(text, |field| read(field, false)).1
    }

    #[test]
    fn dataset_source_of_every_kind_is_parsed() {
        let text = "[{path: ./a, name: b, version: 1.0, format: harbor, task_names: ['a*'], exclude_task_names: [b], n_tasks: 3}, \
                     {registry: {url: 'https://host/registry.json'}, name: n, version: head}, \
                     {registry: {path: r.json}, name: n}, \
                     {repo: 'https://host/o/r@v1', path: tasks}, {repo: 'git@host:o/r.git', ref: main}]";
        let (datasets, faults, _) = read_field(text, |field| read(field, false));
        assert_eq!(faults, []);
        assert_eq!(datasets[0].version.as_deref(), Some("1.0"));
        assert_eq!(datasets[0].format, Some(TaskFormat::Harbor));
        assert_eq!(datasets[0].selection.max_tasks, Some(3));
        assert_eq!(datasets[2].source, DatasetSource::Registry(RegistryRef::Path("r.json".into())));
        let repository = |url: &str, reference: &str, path: Option<&str>| {
            let (url, reference) = (url.to_owned(), Some(reference.to_owned()));
            DatasetSource::Repository { url, reference, path: path.map(str::to_owned) }
        };
        assert_eq!(datasets[3].source, repository("https://host/o/r", "v1", Some("tasks")));
        assert_eq!(datasets[4].source, repository("git@host:o/r.git", "main", None));
    }

    #[test]
    fn dataset_config_errors_are_all_reported() {
        let text = "[{path: ./a}, {registry: {url: x}}, {name: x}, {path: 1, verison: 2}, \
                     {path: a, registry: {path: b}, name: c}, {registry: {}, name: c}, \
                     {repo: '--upload-pack=x'}, {repo: 'ext::sh'}, {repo: 'https://h/r', path: ../x}, \
                     {repo: 'https://h/r', ref: '-x'}, {path: a, ref: b, n_tasks: 0, format: Harbor}]";
        let mut found = faults(text);
        found.sort();
        let mut expected = [
            ("x[1].name", ErrorKind::MissingKey),
            ("x[2].path", ErrorKind::MissingKey),
            ("x[3].verison", ErrorKind::UnknownKey),
            ("x[3].path", ErrorKind::WrongType),
            ("x[4].registry", ErrorKind::Conflict),
            ("x[5].registry", ErrorKind::Conflict),
            ("x[6].repo", ErrorKind::BadValue),
            ("x[7].repo", ErrorKind::BadValue),
            ("x[8].path", ErrorKind::BadValue),
            ("x[9].ref", ErrorKind::BadValue),
            ("x[10].ref", ErrorKind::Conflict),
            ("x[10].n_tasks", ErrorKind::BadValue),
            ("x[10].format", ErrorKind::BadValue),
        ]
        .map(|(key, kind)| (key.to_owned(), kind));
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(faults("[]"), [("x".to_owned(), ErrorKind::BadValue)]);
        assert_eq!(read_field("[]", |field| read(field, true)).1, []);
    }

    #[test]
    fn task_entry_by_path_or_git_commit_is_parsed() {
        let text = "[{path: a}, {git_url: 'https://h/r', git_commit_id: 0123, path: t/x, format: rollout}, \
                     {git_commit_id: abc, path: b}, {git_url: 'https://h/r', path: /etc}]";
        let (tasks, faults, _) = read_field(text, read_tasks);
        assert_eq!(
            faults,
            [
                ("x[2].git_commit_id".to_owned(), ErrorKind::BadValue),
                ("x[3].path".to_owned(), ErrorKind::BadValue),
            ]
        );
        let TaskSource::Git { commit, .. } = &tasks[1].source else { panic!("git") };
        assert_eq!(commit.as_deref(), Some("0123"));
    }

    #[test]
    fn repo_url_with_ref_suffix_is_split() {
        for (text, expected) in [
            ("https://host/o/r", ("https://host/o/r", None)),
            ("https://user:secret@host/o/r", ("https://user:secret@host/o/r", None)),
            ("https://user@host/o/r@feature/x", ("https://user@host/o/r", Some("feature/x"))),
            ("git@host:o/r.git@v1", ("git@host:o/r.git", Some("v1"))),
            ("file:///srv/r@main", ("file:///srv/r", Some("main"))),
            ("../r@main", ("../r", Some("main"))),
            ("r@", ("r@", None)),
            ("h:r@v1", ("h:r", Some("v1"))),
            ("h:/r@v1", ("h:/r", Some("v1"))),
            ("https://h:1/r@v1", ("https://h:1/r", Some("v1"))),
            ("me:pw@h:r@v1", ("me:pw@h:r", Some("v1"))),
            ("https:/me:pw@h/r@v1", ("https:/me:pw@h/r", Some("v1"))),
            ("https:/me:pw@h/r", ("https:/me:pw@h/r", None)),
            ("me:pw@h:r", ("me:pw@h:r", None)),
            ("https://me:p/w@host/r", ("https://me:p/w@host/r", None)),
            ("/srv//a:b@c", ("/srv//a:b", Some("c"))),
            ("git@host:o//r:x@v1", ("git@host:o//r:x", Some("v1"))),
            ("//me:pw@h/r", ("//me:pw@h/r", None)),
            ("http//me:pw@h/r", ("http//me:pw@h/r", None)),
            ("https:///me:pw@h/r@v1", ("https:///me:pw@h/r", Some("v1"))),
        ] {
            assert_eq!(split_reference(text), expected, "{text}");
        }
    }

    #[test]
    fn repository_is_shown_with_its_reference_and_without_its_login() {
        for (text, shown) in [
            ("h:r@v1", "h:r@v1"),
            ("work:tasks@feature/x", "work:tasks@feature/x"),
            ("git@h:r@v1", "git@h:r@v1"),
            ("me:pw@h:r@v1", "me@h:r@v1"),
            ("https://me:pw@h/r@v1", "https://h/r@v1"),
            ("https:/me:pw@h/r@v1", "https:/h/r@v1"),
            ("https://me:pw@h/r", "https://h/r"),
            ("//me:pw@h/r", "//h/r"),
            ("http//me:pw@h/r", "http//h/r"),
            ("/srv//a:b@c", "/srv//a:b@c"),
        ] {
            assert_eq!(repository_without_secrets(text), shown, "{text}");
        }
    }
}
