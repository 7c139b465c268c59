//! A clone of a repository at one commit, with as little data as the server allows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::cache::RepositoryCache;
use super::git::GitError;
use super::origin::Origin;
use super::remote::RemoteAccess;
use super::{FetchError, lfs};
use crate::config::nearest;

/// Directories per git call: their names must fit into a command line.
const PATHS_PER_CALL: usize = 500;

/// The file that makes a directory a task.
const TASK_FILE: &str = "task.toml";

/// A repository with one commit fetched and nothing checked out.
pub(super) struct RepositoryClone<'a> {
    remote: &'a RemoteAccess,
    commit: &'a str,
    dir: PathBuf,
}

impl<'a> RepositoryClone<'a> {
    /// Fetches a commit into a new repository inside `workshop`.
    pub(super) fn fetch(
        remote: &'a RemoteAccess,
        commit: &'a str,
        staging_dir: &Path,
    ) -> Result<Self, FetchError> {
        let origin = remote.origin();
        let clone = Self { remote, commit, dir: staging_dir.join("repository") };
        let format = if commit.len() == 64 { "sha256" } else { "sha1" };
        let init = [
            "init".to_owned(),
            "-q".to_owned(),
            "--template=".to_owned(),
            format!("--object-format={format}"),
            clone.dir.to_string_lossy().into_owned(),
        ];
        clone
            .remote
            .git(staging_dir, init)
            .map_err(|error| error.into_fetch_error(origin, commit))?;
        clone.git(&["remote", "add", "origin", origin.url()])?;
        clone.fetch_commit()?;
        if clone.has_commit() {
            return Ok(clone);
        }
        let (url, commit) = (origin.redacted_url(), commit.to_owned());
        Err(FetchError::MissingCommit { url, commit })
    }

    fn git(&self, args: &[&str]) -> Result<Vec<u8>, FetchError> {
        let output = self.remote.git(&self.dir, args);
        output.map_err(|error| error.into_fetch_error(self.origin(), self.commit))
    }

    fn origin(&self) -> &Origin {
        self.remote.origin()
    }

    /// Fetches only the commit without its files, else everything: not every server supports partial
    /// fetches.
    fn fetch_commit(&self) -> Result<(), FetchError> {
        const QUIET: [&str; 4] = ["fetch", "-q", "--no-tags", "--no-write-fetch-head"];
        // Not into branches, one of which counts as checked out.
        const EVERYTHING: [&str; 3] =
            ["origin", "+refs/heads/*:refs/fetched/heads/*", "+refs/tags/*:refs/fetched/tags/*"];
        let alone = ["--depth=1", "--filter=blob:none", "origin", self.commit];
        let fetch = |args: &[&str]| self.remote.git(&self.dir, QUIET.iter().chain(args));
        let Err(error) = fetch(&alone) else { return Ok(()) };
        let unreachable = |error: GitError| Err(error.into_unreachable(self.origin()));
        if !error.may_be_the_request() {
            return unreachable(error);
        }
        // Set by the partial fetch: git would ask a server of plain files for missing files without end.
        for key in ["remote.origin.promisor", "remote.origin.partialclonefilter"] {
            let _unset = self.remote.git(&self.dir, ["config", "--unset-all", key]);
        }
        match fetch(&EVERYTHING) {
            Ok(_) => Ok(()),
            Err(error) => unreachable(error),
        }
    }

    fn has_commit(&self) -> bool {
        let object = format!("{}^{{commit}}", self.commit);
        self.remote.git(&self.dir, ["cat-file", "-e", &object]).is_ok()
    }

    /// The outermost directories of tasks below `below`.
    pub(super) fn tasks(&self, below: &str) -> Result<Vec<String>, FetchError> {
        let mut args = vec!["ls-tree", "-r", "-z", "--name-only", self.commit];
        let prefix = format!("{below}/");
        if !below.is_empty() {
            args.extend(["--", &prefix]);
        }
        let listing = self.git(&args)?;
        let listing = String::from_utf8_lossy(&listing);
        let mut tasks: Vec<String> = Vec::new();
        let mut found: Vec<&str> = listing
            .split_terminator('\0')
            .filter_map(|path| match path.strip_suffix(TASK_FILE)? {
                "" => Some(""),
                directory => directory.strip_suffix('/'),
            })
            .filter(|directory| !directory.split('/').any(|part| part.starts_with('.')))
            .collect();
        found.sort_unstable_by_key(|directory| (directory.matches('/').count(), *directory));
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        for directory in found {
            if !ancestors(directory).any(|parent| taken.contains(parent)) {
                taken.insert(directory);
                tasks.push(directory.to_owned());
            }
        }
        tasks.sort_unstable();
        Ok(tasks)
    }

    /// The directories that the commit lacks.
    pub(super) fn missing(&self, paths: &[String]) -> Result<Vec<String>, FetchError> {
        let mut there = BTreeSet::new();
        there.insert(String::new());
        for some in paths.chunks(PATHS_PER_CALL) {
            let mut args = vec!["ls-tree", "-d", "-z", self.commit, "--"];
            args.extend(some.iter().map(String::as_str).filter(|path| !path.is_empty()));
            let listing = self.git(&args)?;
            let listing = String::from_utf8_lossy(&listing);
            let trees = listing.split_terminator('\0').filter(|line| line.starts_with("040000"));
            there.extend(trees.filter_map(|line| Some(line.split_once('\t')?.1.to_owned())));
        }
        Ok(paths.iter().filter(|path| !there.contains(*path)).cloned().collect())
    }

    /// The error for a missing directory.
    pub(super) fn missing_path(&self, path: &str) -> FetchError {
        let all = self.git(&["ls-tree", "-r", "-d", "-z", "--name-only", self.commit]);
        let all = all.unwrap_or_default();
        let all = String::from_utf8_lossy(&all);
        let near = nearest(path, all.split_terminator('\0')).map(str::to_owned);
        FetchError::MissingPath {
            url: self.origin().redacted_url(),
            commit: self.commit.to_owned(),
            path: path.to_owned(),
            near,
        }
    }

    /// Checks out directories, none inside another, and moves each to its place in the cache, with
    /// the paths of its Git LFS pointer files.
    pub(super) fn store(
        &self,
        paths: &[String],
        cache: &RepositoryCache,
        staging_dir: &Path,
    ) -> Result<(), FetchError> {
        let failed = |path: &Path, error: &std::io::Error| cache.io_error(path, error);
        let patterns = self.dir.join(".git/info");
        fs::create_dir_all(&patterns)
            .and_then(|()| fs::write(patterns.join("sparse-checkout"), sparse_patterns(paths)))
            .map_err(|error| failed(&patterns, &error))?;
        let settings = ["-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false"];
        let checkout = ["checkout", "-q", "--detach", self.commit];
        let checked_out = self.remote.git(&self.dir, settings.iter().chain(&checkout));
        checked_out.map_err(|error| error.into_fetch_error(self.origin(), self.commit))?;
        let pointers = lfs::replace_pointers(self.remote, self.commit, &self.dir)?;
        cache.sync(&self.dir)?;
        let staged = staging_dir.join("made");
        for (n, path) in paths.iter().enumerate() {
            let holder = staged.join(n.to_string());
            let target = holder.join(cache.directory_name(path));
            fs::create_dir_all(&holder).map_err(|error| failed(&holder, &error))?;
            let moved = if path.is_empty() {
                fs::remove_dir_all(self.dir.join(".git"))
                    .and_then(|()| fs::rename(&self.dir, &target))
            } else {
                fs::rename(self.dir.join(path), &target)
            };
            moved.map_err(|error| failed(&target, &error))?;
            let inside = pointers.iter().filter_map(|pointer| pointer.strip_prefix(path).ok());
            let inside: Vec<_> =
                inside.map(|pointer| pointer.to_string_lossy().into_owned()).collect();
            cache.store(self.commit, path, &holder, &inside)?;
        }
        Ok(())
    }
}

/// The directories that contain a path, including itself and the root.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let inner = path.match_indices('/').map(|(at, _)| &path[..at]);
    std::iter::once("").chain(inner).chain(std::iter::once(path))
}

/// The patterns of a sparse checkout, with special characters escaped.
fn sparse_patterns(paths: &[String]) -> String {
    let mut text = String::new();
    for path in paths {
        text.push('/');
        for c in path.chars() {
            if matches!(c, '\\' | '*' | '?' | '[' | ']' | '!' | '#' | ' ') {
                text.push('\\');
            }
            text.push(c);
        }
        text.push_str(if path.is_empty() { "*\n" } else { "/\n" });
    }
    text
}
