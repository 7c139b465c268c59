//! Removal of fetched commits from the cache.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rollout_base::backoff::error_chain;
use rollout_base::removal_limits::{EntryUse, RECENT_USE, RemovalLimits};
use rustix::fs::{FlockOperation, flock};

use super::cache::{lock_path, temporary_name};
use super::origin::is_commit;

/// End of the name of a commit that is being removed.
const LEAVING: &str = "removed";

/// The fetched directories of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedCommit {
    /// Their directory in the cache.
    pub path: PathBuf,
    /// The disk space that they occupy.
    pub bytes: u64,
    /// When a run of this user on this host last used one; earlier versions did not record it, and
    /// the time of the last fetch counts then.
    pub used: SystemTime,
}

/// Outcome of a removal of fetched commits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrunedCommits {
    /// Removed ones; in a dry run, those that would be removed.
    pub removed: Vec<FetchedCommit>,
    /// Paths that could not be removed, with the reason.
    pub failed: Vec<(PathBuf, String)>,
    /// The others.
    pub kept: Vec<FetchedCommit>,
}

/// Removes fetched commits from the cache below `root`. Those used within the last hour stay. Blocks.
///
/// # Errors
/// When the cache cannot be listed; nothing was removed then.
pub fn prune(root: &Path, limits: &RemovalLimits) -> io::Result<PrunedCommits> {
    let root = root.join("git");
    let commits = list(&root)?;
    if !limits.dry_run {
        remove_leftovers(&root)?;
    }
    let uses = commits.iter().map(|commit| EntryUse {
        bytes: commit.bytes,
        used: commit.used,
        in_use: false,
    });
    let unwanted = limits.choose(uses, SystemTime::now());
    let mut pruned = PrunedCommits::default();
    for (commit, unwanted) in commits.into_iter().zip(unwanted) {
        if !unwanted {
            pruned.kept.push(commit);
        } else if limits.dry_run {
            pruned.removed.push(commit);
        } else {
            match remove(&commit.path) {
                Ok(true) => pruned.removed.push(commit),
                Ok(false) => pruned.kept.push(commit),
                Err(error) => pruned.failed.push((commit.path, error_chain(&error))),
            }
        }
    }
    Ok(pruned)
}

/// The fetched commits below a directory, least recently used first. What another process removes
/// meanwhile is left out.
fn list(root: &Path) -> io::Result<Vec<FetchedCommit>> {
    let mut commits = Vec::new();
    for repository in entries(root)? {
        for path in entries(&repository)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !is_commit(&name) || !path.is_dir() {
                continue;
            }
            match (occupied(&path), last_use(&path)) {
                (Ok(bytes), Ok(used)) => commits.push(FetchedCommit { bytes, used, path }),
                (Err(error), _) | (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
                (Err(error), _) | (_, Err(error)) => return Err(error),
            }
        }
    }
    commits.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
    Ok(commits)
}

/// Removes what killed removals left below a directory.
fn remove_leftovers(root: &Path) -> io::Result<()> {
    for repository in entries(root)? {
        for path in entries(&repository)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let ending = format!("{}{LEAVING}", temporary_name(""));
            let Some(commit) = name.strip_suffix(&ending) else { continue };
            // The process that is removing it, if one is, may still move it back.
            let Ok(lock) = File::open(lock_path(&repository.join(commit))) else { continue };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _in_use = fs::remove_dir_all(path);
            }
        }
    }
    Ok(())
}

/// The entries of a directory; none if it does not exist.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn last_use(commit: &Path) -> io::Result<SystemTime> {
    let of = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let fetched = of(commit)?;
    Ok(of(&lock_path(commit)).map_or(fetched, |noted| noted.max(fetched)))
}

/// The disk space of a tree. Links are not followed.
fn occupied(root: &Path) -> io::Result<u64> {
    let (mut bytes, mut pending) = (0, vec![root.to_owned()]);
    while let Some(path) = pending.pop() {
        let metadata = fs::symlink_metadata(&path)?;
        bytes += metadata.blocks() * 512;
        if metadata.is_dir() {
            pending.extend(entries(&path)?);
        }
    }
    Ok(bytes)
}

/// Removes a commit; returns whether it was removed. One that is being fetched or was used meanwhile
/// stays.
fn remove(commit: &Path) -> io::Result<bool> {
    let lock = File::options().create(true).append(true).open(lock_path(commit))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    // Listing may have taken minutes.
    if last_use(commit)?.elapsed().unwrap_or_default() <= RECENT_USE {
        return Ok(false);
    }
    let name = commit.file_name().unwrap_or_default().to_string_lossy();
    let leaving = commit.with_file_name(format!("{}{LEAVING}", temporary_name(&name)));
    fs::rename(commit, &leaving)?;
    // From now on a use does not find the commit. One from before shows in the time.
    let used = fs::metadata(lock_path(commit)).and_then(|metadata| metadata.modified())?;
    if used.elapsed().unwrap_or_default() <= RECENT_USE {
        fs::rename(&leaving, commit)?;
        return Ok(false);
    }
    match fs::remove_dir_all(leaving) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::cache::{CacheScope, RepositoryCache};
    use super::super::origin::Origin;
    use super::*;

    const COMMIT: &str = "0123456789012345678901234567890123456789";

    /// A cache with a fetched commit that was last used `hours` ago.
    fn cache(root: &Path, repository: &str, hours: u64) -> RepositoryCache {
        let origin = Origin::new(repository, Path::new("/"));
        let cache = RepositoryCache::new(root, &origin, CacheScope::Public);
        let lock = cache.lock(COMMIT).expect("locked");
        let staged = cache.staging_dir(COMMIT, &lock).expect("made").keep();
        fs::create_dir_all(staged.join("task")).expect("made");
        fs::write(staged.join("task/file"), vec![1; 100_000]).expect("written");
        cache.store(COMMIT, "task", &staged, &[]).expect("stored");
        let found = cache.find(COMMIT, "task").expect("stored");
        let commit = found.ancestors().nth(2).expect("a commit");
        let used = SystemTime::now() - Duration::from_secs(3600 * hours);
        for path in [lock_path(commit), commit.to_owned()] {
            File::open(path).and_then(|file| file.set_modified(used)).expect("set");
        }
        cache
    }

    fn limits(hours: u64) -> RemovalLimits {
        let older_than = Some(Duration::from_secs(3600 * hours));
        RemovalLimits { older_than, ..RemovalLimits::default() }
    }

    #[test]
    fn unused_commits_are_removed_and_others_kept() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        assert_eq!(prune(root, &limits(1)).expect("empty"), PrunedCommits::default());
        let caches =
            [("https://h/a", 50), ("https://h/b", 40)].map(|(url, hours)| cache(root, url, hours));
        let dry = RemovalLimits { dry_run: true, ..limits(30) };
        assert_eq!(prune(root, &dry).expect("listed").removed.len(), 2);
        // A use counts, and so does a process that is fetching.
        assert!(caches[1].find(COMMIT, "task").is_some());
        let lock = caches[0].lock(COMMIT).expect("locked");
        assert_eq!(prune(root, &limits(30)).expect("pruned").kept.len(), 2);
        drop(lock);
        let pruned = prune(root, &limits(30)).expect("pruned");
        assert_eq!((pruned.removed.len(), pruned.kept.len(), pruned.failed.len()), (1, 1, 0));
        assert!(pruned.removed[0].bytes >= 100_000, "{pruned:?}");
        assert_eq!(caches.map(|cache| cache.find(COMMIT, "task").is_some()), [false, true]);
        // A removal was killed.
        let left = pruned.removed[0].path.with_extension("tmp-removed");
        fs::create_dir(&left).expect("made");
        prune(root, &limits(30)).expect("pruned");
        assert!(!left.exists());
    }
}
