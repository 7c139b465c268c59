//! Fetching of repository contents for a whole job: one query per repository for its heads, one
//! clone per repository and commit, several of them concurrently.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::supervise;

use super::FetchError;
use super::abbreviations::{self, AllCommits};
use super::cache::RepositoryCache;
use super::clone::{RepositoryClone, ancestors};
use super::origin::{Origin, Revision};
use super::remote::RemoteAccess;
use super::{heads, lfs};
use crate::config::FetchAccess;

/// Repositories contacted concurrently: enough to hide their latency, few enough for a single
/// server that hosts all of them.
const CONCURRENT_REPOSITORIES: usize = 8;

/// A request for contents of a repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchRequest {
    /// The repository.
    pub origin: Origin,
    /// The revision.
    pub revision: Revision,
    /// The contents of that revision.
    pub target: FetchTarget,
}

/// Requested contents of a commit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FetchTarget {
    /// A directory; empty for the root.
    Directory(String),
    /// All task directories below a path; empty for the root.
    Tasks(String),
}

/// A checkout at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedCheckout {
    /// The full commit id.
    pub commit: String,
    /// The directories in the cache.
    pub directories: Vec<FetchedDirectory>,
}

/// A directory in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedDirectory {
    /// Its path in the repository.
    pub path: String,
    /// Its path in the cache.
    pub dir: PathBuf,
    /// Its Git LFS pointer files, left because `git-lfs` is missing.
    pub pointers: Vec<String>,
}

/// Results by request.
pub type FetchResults = BTreeMap<FetchRequest, Result<FetchedCheckout, FetchError>>;

/// Fetches everything that the cache at `root` lacks. Also returns warnings. Blocks on the network.
pub fn fetch(
    root: &Path,
    requests: Vec<FetchRequest>,
    access: &FetchAccess,
) -> (FetchResults, Vec<String>) {
    let requests: BTreeSet<FetchRequest> = requests.into_iter().collect();
    let mut warnings = Vec::new();
    let commits = resolve_commits(root, &requests, access, &mut warnings);
    let mut answers = FetchResults::new();
    let mut groups: BTreeMap<(Origin, String), Vec<FetchRequest>> = BTreeMap::new();
    for request in requests {
        match &commits[&(request.origin.clone(), request.revision.clone())] {
            Ok(commit) => {
                let group = (request.origin.clone(), commit.clone());
                groups.entry(group).or_default().push(request);
            }
            Err(error) => {
                answers.insert(request, Err(error.clone()));
            }
        }
    }
    let (cache, access) = (root.to_owned(), access.clone());
    let done = in_parallel(groups, move |((origin, commit), requests)| {
        let remote = RemoteAccess::new(&origin, &access);
        let cache = RepositoryCache::new(&cache, &origin, remote.cache_scope());
        let (answers, warnings) = fetch_checkout(&cache, &remote, &commit, &requests);
        (requests.into_iter().zip(answers).collect::<Vec<_>>(), warnings)
    });
    for (some, odd) in done {
        answers.extend(some);
        warnings.extend(odd);
    }
    (answers, warnings)
}

type ResolvedCommits = BTreeMap<(Origin, Revision), Result<String, FetchError>>;

/// The commits of all revisions. For an unreachable repository, the last known commits are used.
fn resolve_commits(
    root: &Path,
    requests: &BTreeSet<FetchRequest>,
    access: &FetchAccess,
    warnings: &mut Vec<String>,
) -> ResolvedCommits {
    let mut commits = ResolvedCommits::new();
    let mut unresolved: BTreeMap<Origin, BTreeSet<Revision>> = BTreeMap::new();
    for FetchRequest { origin, revision, .. } in requests {
        match revision {
            Revision::Commit(id) => {
                commits.insert((origin.clone(), revision.clone()), Ok(id.clone()));
            }
            _ => {
                unresolved.entry(origin.clone()).or_default().insert(revision.clone());
            }
        }
    }
    let (cache, access) = (root.to_owned(), access.clone());
    let resolved = in_parallel(unresolved, move |(origin, revisions)| {
        let remote = RemoteAccess::new(&origin, &access);
        let cache = RepositoryCache::new(&cache, &origin, remote.cache_scope());
        let (found, warnings) = resolve_revisions(&cache, &remote, &revisions);
        (origin, revisions, found, warnings)
    });
    for (origin, revisions, found, odd) in resolved {
        let keys = revisions.into_iter().map(|revision| (origin.clone(), revision));
        commits.extend(keys.zip(found));
        warnings.extend(odd);
    }
    commits
}

fn resolve_revisions(
    cache: &RepositoryCache,
    remote: &RemoteAccess,
    revisions: &BTreeSet<Revision>,
) -> (Vec<Result<String, FetchError>>, Vec<String>) {
    let wanted: Vec<&Revision> = revisions.iter().collect();
    match heads::query_commits(remote, &wanted) {
        Ok(mut found) => {
            resolve_abbreviations(cache, remote, &wanted, &mut found);
            for (revision, commit) in wanted.iter().zip(&found) {
                if let Ok(commit) = commit {
                    // Best effort: only a later run without network needs it.
                    let _unkept = cache.store_commit(revision, commit);
                }
            }
            (found, Vec::new())
        }
        // Its cached content may not be used either, or its run has ended.
        Err(error) if !error.is_outage() => {
            (wanted.iter().map(|_| Err(error.clone())).collect(), Vec::new())
        }
        Err(error) => {
            let known =
                |revision: &&Revision| cache.cached_commit(revision).ok_or_else(|| error.clone());
            let found: Vec<_> = wanted.iter().map(known).collect();
            let any = found.iter().any(Result::is_ok);
            let warning = any.then(|| {
                format!(
                    "{} does not answer; using its last known head",
                    remote.origin().redacted_url()
                )
            });
            (found, warning.into_iter().collect())
        }
    }
}

/// Replaces the errors of names that are abbreviated ids of commits, and of no branch or tag. The commits are
/// fetched once, for the ids that are not in the cache.
fn resolve_abbreviations(
    cache: &RepositoryCache,
    remote: &RemoteAccess,
    wanted: &[&Revision],
    found: &mut [Result<String, FetchError>],
) {
    let mut commits: Option<Result<AllCommits<'_>, FetchError>> = None;
    for (revision, answer) in wanted.iter().zip(found) {
        let Revision::Named(name) = revision else { continue };
        let is_unknown = matches!(answer, Err(FetchError::UnknownReference { .. }));
        if !is_unknown || !abbreviations::is_abbreviation(name) {
            continue;
        }
        let id = name.to_ascii_lowercase();
        let known = cache.cached_commit(revision).filter(|commit| commit.starts_with(&id));
        if let Some(known) = known {
            *answer = Ok(known);
            continue;
        }
        let fetched = commits.get_or_insert_with(|| {
            let id_digits = heads::query_id_digits(remote)?;
            AllCommits::fetch(cache, remote, id_digits)
        });
        let commit = match fetched {
            Ok(all) => all.find(&id),
            Err(error) => Err(error.clone().of_lookup(name)),
        };
        match commit {
            Ok(Some(commit)) => *answer = Ok(commit),
            // The name has its own error.
            Ok(None) => {}
            Err(error) => *answer = Err(error),
        }
    }
}

/// The requested contents of one commit, from the cache or by one clone.
fn fetch_checkout(
    cache: &RepositoryCache,
    remote: &RemoteAccess,
    commit: &str,
    requests: &[FetchRequest],
) -> (Vec<Result<FetchedCheckout, FetchError>>, Vec<String>) {
    let origin = remote.origin();
    if let Err(error) = remote.check() {
        let error = error.into_unreachable(origin);
        return (requests.iter().map(|_| Err(error.clone())).collect(), Vec::new());
    }
    let mut warnings = Vec::new();
    let mut failures = BTreeMap::new();
    if requests.iter().any(|request| is_incomplete(cache, remote, commit, &request.target)) {
        match fetch_missing(cache, remote, commit, requests) {
            Ok(missing) => failures = missing,
            Err(error) => {
                failures = requests.iter().map(|r| (r.target.clone(), error.clone())).collect();
            }
        }
    }
    let answer = |request: &FetchRequest| match find_cached(cache, commit, &request.target) {
        Some(directories) => Ok(FetchedCheckout { commit: commit.to_owned(), directories }),
        None => Err(failures.get(&request.target).cloned().unwrap_or_else(|| FetchError::Git {
            url: origin.redacted_url(),
            commit: commit.to_owned(),
            said: "the requested path is not a plain directory".to_owned(),
        })),
    };
    let answers: Vec<_> = requests.iter().map(answer).collect();
    let found = answers.iter().flatten().flat_map(|fetched| &fetched.directories);
    let pointers: usize = found.map(|directory| directory.pointers.len()).sum();
    if pointers > 0 {
        warnings.push(format!(
            "{}: {pointers} files are in Git LFS and `git-lfs` is not installed: their tasks fail; \
             install it and run again",
            origin.redacted_url()
        ));
    }
    (answers, warnings)
}

/// Whether the cache lacks some of it, or has pointers that can now be replaced by their files.
fn is_incomplete(
    cache: &RepositoryCache,
    remote: &RemoteAccess,
    commit: &str,
    what: &FetchTarget,
) -> bool {
    let Some(found) = find_cached(cache, commit, what) else { return true };
    let pointers = found.iter().find(|directory| !directory.pointers.is_empty());
    pointers.is_some_and(|directory| lfs::is_available(remote, &directory.dir))
}

/// The requested directories, if the cache has all of them.
fn find_cached(
    cache: &RepositoryCache,
    commit: &str,
    what: &FetchTarget,
) -> Option<Vec<FetchedDirectory>> {
    let paths = match what {
        FetchTarget::Directory(path) => vec![path.clone()],
        FetchTarget::Tasks(below) => cache.task_list(commit, below)?,
    };
    cache.remove_unfinished(commit);
    let found = paths.into_iter().map(|path| {
        let (dir, pointers) = (cache.find(commit, &path)?, cache.pointers(commit, &path));
        Some(FetchedDirectory { path, dir, pointers })
    });
    found.collect()
}

/// Adds missing directories to the cache. Returns the ones that the commit lacks.
fn fetch_missing(
    cache: &RepositoryCache,
    remote: &RemoteAccess,
    commit: &str,
    requests: &[FetchRequest],
) -> Result<BTreeMap<FetchTarget, FetchError>, FetchError> {
    let lock = cache.lock(commit)?;
    let lacking = |request: &&FetchRequest| is_incomplete(cache, remote, commit, &request.target);
    let lacking: Vec<&FetchTarget> = requests.iter().filter(lacking).map(|r| &r.target).collect();
    if lacking.is_empty() {
        // Another process was faster.
        return Ok(BTreeMap::new());
    }
    let staging_dir = cache.staging_dir(commit, &lock)?;
    let clone = RepositoryClone::fetch(remote, commit, staging_dir.path())?;
    let mut wanted = BTreeSet::new();
    let mut lists = Vec::new();
    for what in &lacking {
        match what {
            FetchTarget::Directory(path) => {
                wanted.insert(path.clone());
            }
            FetchTarget::Tasks(below) => {
                let tasks = clone.tasks(below)?;
                wanted.extend(tasks.iter().cloned());
                lists.push((below, tasks));
            }
        }
    }
    let wanted: Vec<String> = wanted.into_iter().collect();
    let missing = clone.missing(&wanted)?;
    let failures =
        missing.iter().map(|path| (FetchTarget::Directory(path.clone()), clone.missing_path(path)));
    let failures = failures.collect();
    let lacks = |path: &&String| {
        !missing.contains(path)
            && is_incomplete(cache, remote, commit, &FetchTarget::Directory((*path).clone()))
    };
    let outermost = outermost(wanted.iter().filter(lacks));
    if !outermost.is_empty() {
        clone.store(&outermost, cache, staging_dir.path())?;
    }
    for (below, tasks) in lists {
        cache.store_list(commit, below, &tasks)?;
    }
    Ok(failures)
}

/// The paths that are not inside another one.
fn outermost<'a>(paths: impl Iterator<Item = &'a String>) -> Vec<String> {
    let all: BTreeSet<&str> = paths.map(String::as_str).collect();
    let inner = |path: &str| ancestors(path).any(|above| above != path && all.contains(above));
    all.iter().filter(|path| !inner(path)).map(|path| (*path).to_owned()).collect()
}

/// Applies a function to every item, several at a time.
fn in_parallel<T, R>(
    work: impl IntoIterator<Item = T>,
    each: impl Fn(T) -> R + Send + Sync + 'static,
) -> Vec<R>
where
    T: Send + 'static,
    R: Send + 'static,
{
    let work: VecDeque<T> = work.into_iter().collect();
    let threads = work.len().min(CONCURRENT_REPOSITORIES);
    let queue = Arc::new(Mutex::new(work));
    let each: Arc<ParallelFn<T, R>> = Arc::new(each);
    let others: Vec<_> = (1..threads)
        .map_while(|_| {
            let (queue, each) = (Arc::clone(&queue), Arc::clone(&each));
            supervise::thread("fetch", move || drain(&queue, &*each)).ok()
        })
        .collect();
    let mut results = drain(&queue, &*each);
    for other in others {
        match other.join() {
            Ok(some) => results.extend(some),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    results
}

type ParallelFn<T, R> = dyn Fn(T) -> R + Send + Sync;

fn drain<T, R>(queue: &Mutex<VecDeque<T>>, each: &ParallelFn<T, R>) -> Vec<R> {
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::iter::from_fn(next).map(each).collect()
}
