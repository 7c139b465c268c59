//! Cache of repository contents: `<root>/git/<digest of the address>/<commit>/`. Contents that were
//! fetched without credentials have another digest: they are for everybody, the others only for those who
//! may use the credentials.
//!
//! Below a commit, every requested directory is stored under the digest of its path, in a directory
//! with its own name. A directory inside another stored one is found there. Lists of all tasks of a
//! commit are files beside them, and so are lists of a directory's Git LFS pointer files.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rollout_protocol::digest::Digest;
use rustix::fs::{FlockOperation, flock};

use super::FetchError;
use super::origin::{Origin, Revision};

/// The cache of one repository.
#[derive(Debug, Clone)]
pub(super) struct RepositoryCache {
    dir: PathBuf,
    origin: Origin,
}

/// How the contents of a cache were fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheScope {
    /// With the credentials of the user of this process, or on this host.
    Credentials,
    /// Without credentials.
    Public,
}

/// The exclusive lock for adding to a commit; released on drop or when the process dies.
#[derive(Debug)]
pub(super) struct CommitLock(#[expect(dead_code, reason = "open files hold locks")] File);

impl RepositoryCache {
    /// The cache of a repository below `root`.
    pub(super) fn new(root: &Path, origin: &Origin, scope: CacheScope) -> Self {
        let dir = root.join("git").join(scope.key(origin.url()));
        Self { dir, origin: origin.clone() }
    }

    fn commit_dir(&self, commit: &str) -> PathBuf {
        self.dir.join(commit)
    }

    /// The path of a directory of a commit, if it is complete in the cache. This is a use of the
    /// commit.
    pub(super) fn find(&self, commit: &str, path: &str) -> Option<PathBuf> {
        let directory = self.commit_dir(commit);
        if !directory.exists() {
            return None;
        }
        // Before the look: a removal that does not see this use has moved the directory away.
        let lock = lock_path(&directory);
        let file = File::options().create(true).append(true).open(&lock);
        if let Err(error) = file.and_then(|file| file.set_modified(SystemTime::now())) {
            tracing::debug!(path = %lock.display(), %error, "cannot record the use of a commit");
        }
        self.locate(commit, path).map(|(_, found, _)| found)
    }

    /// The Git LFS pointer files of a cached directory, by their paths in it.
    pub(super) fn pointers(&self, commit: &str, path: &str) -> Vec<String> {
        let Some((place, _, rest)) = self.locate(commit, path) else { return Vec::new() };
        let text = fs::read_to_string(pointer_list_path(&place)).unwrap_or_default();
        let inside = text.split_terminator('\0').filter_map(|pointer| {
            let inside = Path::new(pointer).strip_prefix(&rest).ok()?;
            Some(inside.to_string_lossy().into_owned())
        });
        inside.collect()
    }

    /// The stored directory that contains a path, the path on disk, and the path below the stored
    /// one.
    fn locate(&self, commit: &str, path: &str) -> Option<(PathBuf, PathBuf, String)> {
        let mut rest = String::new();
        let mut at = path;
        loop {
            let stored = self.directory_path(commit, at);
            if stored.exists() {
                let found = stored.join(self.directory_name(at)).join(&rest);
                return is_inside(&stored, &found).then_some((stored, found, rest));
            }
            if at.is_empty() {
                return None;
            }
            let (parent, last) = at.rsplit_once('/').unwrap_or(("", at));
            rest = if rest.is_empty() { last.to_owned() } else { format!("{last}/{rest}") };
            at = parent;
        }
    }

    /// The parent of a stored directory of a commit in the cache.
    fn directory_path(&self, commit: &str, path: &str) -> PathBuf {
        self.commit_dir(commit).join(&Digest::sha256(path.as_bytes()).hex()[..32])
    }

    /// The name of a directory of the repository.
    pub(super) fn directory_name<'a>(&'a self, path: &'a str) -> &'a str {
        if path.is_empty() { self.origin.name() } else { path.rsplit('/').next().unwrap_or(path) }
    }

    fn list_path(&self, commit: &str, below: &str) -> PathBuf {
        let name = format!("tasks-{}", &Digest::sha256(below.as_bytes()).hex()[..32]);
        self.commit_dir(commit).join(name)
    }

    /// The directories of all tasks below a path of a commit, if they were listed.
    pub(super) fn task_list(&self, commit: &str, below: &str) -> Option<Vec<String>> {
        let text = fs::read_to_string(self.list_path(commit, below)).ok()?;
        Some(text.split_terminator('\0').map(str::to_owned).collect())
    }

    /// Stores a list of task directories.
    pub(super) fn store_list(
        &self,
        commit: &str,
        below: &str,
        tasks: &[String],
    ) -> Result<(), FetchError> {
        let text: String = tasks.iter().map(|task| format!("{task}\0")).collect();
        let file = self.list_path(commit, below);
        replace(&file, text.as_bytes()).map_err(|error| self.io_error(&file, &error))
    }

    /// Moves a finished directory into the cache; it may replace one with pointers. `made` contains
    /// it under its own name; `pointers` are its Git LFS pointer files.
    pub(super) fn store(
        &self,
        commit: &str,
        path: &str,
        staged: &Path,
        pointers: &[String],
    ) -> Result<(), FetchError> {
        let target = self.directory_path(commit, path);
        let list = pointer_list_path(&target);
        let move_into_cache = || {
            fs::create_dir_all(self.commit_dir(commit))?;
            if !pointers.is_empty() {
                let text: String = pointers.iter().map(|pointer| format!("{pointer}\0")).collect();
                replace(&list, text.as_bytes())?;
            }
            if target.exists() {
                fs::rename(&target, staged.with_extension("former"))?;
            }
            fs::rename(staged, &target)?;
            if pointers.is_empty() && list.exists() {
                fs::remove_file(&list)?;
            }
            Ok(())
        };
        move_into_cache().map_err(|error| self.io_error(&target, &error))
    }

    /// Waits for the lock for adding to a commit, and removes leftovers of crashed processes.
    pub(super) fn lock(&self, commit: &str) -> Result<CommitLock, FetchError> {
        let path = lock_path(&self.commit_dir(commit));
        let open = || {
            fs::create_dir_all(&self.dir)?;
            let file = File::options().create(true).append(true).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        let lock = open().map_err(|error: io::Error| self.io_error(&path, &error))?;
        for path in self.unfinished(commit) {
            // An orphaned git process may still write there; the next caller removes it.
            let _in_use = fs::remove_dir_all(path);
        }
        Ok(CommitLock(lock))
    }

    /// Removes unfinished leftovers of a cached commit, unless another process holds the lock.
    pub(super) fn remove_unfinished(&self, commit: &str) {
        let left = self.unfinished(commit);
        let lock = File::open(lock_path(&self.commit_dir(commit)));
        if let (false, Ok(lock)) = (left.is_empty(), lock)
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            for path in left {
                let _in_use = fs::remove_dir_all(path);
            }
        }
    }

    /// Staging directories of a commit, in use or left over.
    fn unfinished(&self, commit: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let is_one = |entry: &fs::DirEntry| {
            entry.file_name().to_string_lossy().starts_with(&temporary_name(commit))
        };
        entries.filter(is_one).map(|entry| entry.path()).collect()
    }

    /// A staging directory on the same file system; the caller must hold the lock.
    pub(super) fn staging_dir(
        &self,
        commit: &str,
        _lock: &CommitLock,
    ) -> Result<tempfile::TempDir, FetchError> {
        tempfile::Builder::new()
            .prefix(&temporary_name(commit))
            .tempdir_in(&self.dir)
            .map_err(|error| self.io_error(&self.dir, &error))
    }

    /// Syncs staged files to disk, before they get their final names.
    pub(super) fn sync(&self, staged: &Path) -> Result<(), FetchError> {
        let synced = File::open(staged).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
        synced.map_err(|error| self.io_error(staged, &error))
    }

    fn head_path(&self, revision: &Revision) -> PathBuf {
        let name = match revision {
            Revision::Head => "HEAD".to_owned(),
            Revision::Named(name) | Revision::Commit(name) => {
                Digest::sha256(name.as_bytes()).hex()[..32].to_owned()
            }
        };
        self.dir.join("heads").join(name)
    }

    /// The last known commit of a head, branch or tag.
    pub(super) fn cached_commit(&self, revision: &Revision) -> Option<String> {
        let text = fs::read_to_string(self.head_path(revision)).ok()?;
        Some(text.trim_end().to_owned()).filter(|commit| super::origin::is_commit(commit))
    }

    /// Stores the commit of a head, branch or tag.
    pub(super) fn store_commit(&self, revision: &Revision, commit: &str) -> Result<(), FetchError> {
        let file = self.head_path(revision);
        replace(&file, commit.as_bytes()).map_err(|error| self.io_error(&file, &error))
    }

    /// A file system error at `path`.
    pub(super) fn io_error(&self, path: &Path, error: &io::Error) -> FetchError {
        FetchError::Cache { path: path.to_owned(), reason: error.to_string() }
    }
}

impl CacheScope {
    /// The name of what was fetched from an address.
    pub(super) fn key(self, url: &str) -> String {
        match self {
            Self::Credentials => Digest::sha256(url.as_bytes()).hex(),
            // No address begins so.
            Self::Public => Digest::sha256(format!(" public {url}").as_bytes()).hex(),
        }
    }
}

/// The file that lists the pointers of a stored directory.
fn pointer_list_path(place: &Path) -> PathBuf {
    place.with_extension("pointers")
}

/// The lock file of a commit's directory. Its modification time is the time of the last use.
pub(super) fn lock_path(commit: &Path) -> PathBuf {
    commit.with_extension("lock")
}

/// The beginning of the names of unfinished and of removed directories of a commit.
pub(super) fn temporary_name(commit: &str) -> String {
    format!("{commit}.tmp-")
}

/// Whether `found` is a directory below `place` that is reached without symlinks.
fn is_inside(place: &Path, found: &Path) -> bool {
    let Ok(below) = found.strip_prefix(place) else { return false };
    let mut at = place.to_owned();
    below.components().all(|part| {
        at.push(part);
        fs::symlink_metadata(&at).is_ok_and(|metadata| metadata.is_dir())
    })
}

fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut temporary = tempfile::Builder::new().prefix(".tmp-").tempfile_in(directory)?;
    temporary.write_all(bytes)?;
    temporary.as_file().sync_all()?;
    temporary.persist(file).map(|_| ()).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_of(root: &Path, url: &str, scope: CacheScope) -> RepositoryCache {
        RepositoryCache::new(root, &Origin::new(url, Path::new("/")), scope)
    }

    #[test]
    fn content_fetched_with_credentials_is_not_found_without() {
        let root = tempfile::tempdir().expect("a directory");
        let commit = "0".repeat(40);
        let of = |scope| cache_of(root.path(), "https://h/o/repo.git", scope);
        let private = of(CacheScope::Credentials);
        let lock = private.lock(&commit).expect("locked");
        let staging = private.staging_dir(&commit, &lock).expect("made");
        let made = staging.path().join("0");
        fs::create_dir_all(made.join("repo/t")).expect("made");
        private.store(&commit, "", &made, &[]).expect("kept");
        private.store_list(&commit, "", &["t".to_owned()]).expect("kept");
        private.store_commit(&Revision::Head, &commit).expect("kept");
        let found = |cache: &RepositoryCache| {
            let list = cache.task_list(&commit, "").is_some();
            [
                cache.find(&commit, "t").is_some(),
                list,
                cache.cached_commit(&Revision::Head).is_some(),
            ]
        };
        assert_eq!(found(&private), [true; 3]);
        assert_eq!(found(&of(CacheScope::Public)), [false; 3]);
    }

    #[test]
    fn cached_directory_is_found_by_itself_or_inside_parent() {
        let root = tempfile::tempdir().expect("a directory");
        let cache = cache_of(root.path(), "https://h/o/repo.git", CacheScope::Credentials);
        let keep = |path: &str, below: &str| {
            let lock = cache.lock("c").expect("locked");
            let made = cache.staging_dir("c", &lock).expect("made").keep();
            fs::create_dir_all(made.join(cache.directory_name(path)).join(below)).expect("made");
            cache.store("c", path, &made, &[]).expect("kept");
        };
        assert_eq!(cache.find("c", "a/b"), None);
        keep("a/b", "");
        let found = cache.find("c", "a/b").expect("there");
        assert!(found.ends_with("b") && found.is_dir());
        assert_eq!(cache.find("c", "a"), None);
        keep("", "x/y");
        assert!(cache.find("c", "x/y").expect("inside the root").ends_with("repo/x/y"));
        assert_eq!(cache.find("c", "x/z"), None);
        std::os::unix::fs::symlink("/etc", cache.find("c", "x").expect("x").join("out"))
            .expect("a link");
        assert_eq!(cache.find("c", "x/out"), None, "links are not followed");
    }

    #[test]
    fn lfs_pointers_are_listed_until_files_are_fetched() {
        let root = tempfile::tempdir().expect("a directory");
        let cache = cache_of(root.path(), "https://h/o/repo.git", CacheScope::Credentials);
        let keep = |pointers: &[&str]| {
            let lock = cache.lock("c").expect("locked");
            let workshop = cache.staging_dir("c", &lock).expect("made");
            let made = workshop.path().join("0");
            fs::create_dir_all(made.join("repo/t/data")).expect("made");
            let pointers: Vec<String> = pointers.iter().map(|p| (*p).to_owned()).collect();
            cache.store("c", "", &made, &pointers).expect("kept");
        };
        keep(&["t/data/large", "other"]);
        assert_eq!(cache.pointers("c", "t"), ["data/large"]);
        assert_eq!(cache.pointers("c", ""), ["t/data/large", "other"]);
        keep(&[]);
        assert_eq!(cache.pointers("c", "t"), [""; 0]);
        assert!(cache.find("c", "t/data").is_some());
    }

    #[test]
    fn cache_temp_dir_of_dead_process_is_removed_by_next_lock() {
        let root = tempfile::tempdir().expect("a directory");
        let cache = cache_of(root.path(), "https://h/r", CacheScope::Credentials);
        let lock = cache.lock("c").expect("locked");
        let left = cache.staging_dir("c", &lock).expect("made").keep();
        let other = cache.lock("d").expect("another commit is not locked");
        assert!(left.exists());
        drop((lock, other));
        drop(cache.lock("c"));
        assert!(!left.exists());
    }
}
