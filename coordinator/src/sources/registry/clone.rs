//! A clone of a repository at one commit, with as little data as the server allows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::cache::RepositoryCache;
use super::disk_bound::ENTRY_BYTES;
use super::git::GitError;
use super::origin::Origin;
use super::remote::RemoteAccess;
use super::{FetchError, lfs};
use crate::config::nearest;

/// Directories per git call: their names must fit into a command line.
const PATHS_PER_CALL: usize = 500;

/// The file that makes a directory a task.
const TASK_FILE: &str = "task.toml";

/// Beginning of a fetch into a temporary repository.
pub(super) const QUIET_FETCH: [&str; 4] = ["fetch", "-q", "--no-tags", "--no-write-fetch-head"];

/// Arguments that fetch all branches and tags; not into branches, one of which counts as checked out.
pub(super) const ALL_REFERENCES: [&str; 3] =
    ["origin", "+refs/heads/*:refs/fetched/heads/*", "+refs/tags/*:refs/fetched/tags/*"];

/// Settings that a partial fetch leaves.
pub(super) const PARTIAL_FETCH_KEYS: [&str; 2] =
    ["remote.origin.promisor", "remote.origin.partialclonefilter"];

/// A repository with one commit fetched and nothing checked out.
pub(super) struct RepositoryClone<'a> {
    remote: &'a RemoteAccess,
    commit: &'a str,
    dir: PathBuf,
    /// Whether files of the commit may be missing: git fetches them when it needs them.
    is_partial: bool,
}

impl<'a> RepositoryClone<'a> {
    /// Fetches a commit into a new repository inside `workshop`.
    pub(super) fn fetch(
        remote: &'a RemoteAccess,
        commit: &'a str,
        staging_dir: &Path,
    ) -> Result<Self, FetchError> {
        let origin = remote.origin();
        let dir = staging_dir.join("repository");
        let mut clone = Self { remote, commit, dir, is_partial: false };
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
        clone.is_partial = clone.fetch_commit()?;
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
    /// fetches. Returns whether it did the former.
    fn fetch_commit(&self) -> Result<bool, FetchError> {
        let alone = ["--depth=1", "--filter=blob:none", "origin", self.commit];
        let max_bytes = self.remote.max_bytes();
        let fetch = |args: &[&str]| {
            self.remote.git_bounded(&self.dir, QUIET_FETCH.iter().chain(args), &[], max_bytes)
        };
        let Err(error) = fetch(&alone) else { return Ok(true) };
        let unreachable = |error: GitError| Err(error.into_unreachable(self.origin()));
        if !error.may_be_the_request() {
            return unreachable(error);
        }
        // Set by the partial fetch: git would ask a server of plain files for missing files without end.
        for key in PARTIAL_FETCH_KEYS {
            let _unset = self.remote.git(&self.dir, ["config", "--unset-all", key]);
        }
        match fetch(&ALL_REFERENCES) {
            Ok(_) => Ok(false),
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

    /// Lists the files of directories.
    fn list_files(&self, options: &[&str], paths: &[String]) -> Result<Vec<String>, FetchError> {
        let mut lines = Vec::new();
        for some in paths.chunks(PATHS_PER_CALL) {
            let mut args = vec!["ls-tree", "-r", "-z"];
            args.extend(options);
            args.extend([self.commit, "--"]);
            args.extend(some.iter().map(String::as_str).filter(|path| !path.is_empty()));
            let listing = self.git(&args)?;
            let listing = String::from_utf8_lossy(&listing);
            lines.extend(listing.split_terminator('\0').map(str::to_owned));
        }
        Ok(lines)
    }

    /// Checks the size of the files of directories before they are checked out.
    fn check_size(&self, paths: &[String], max_bytes: u64) -> Result<(), FetchError> {
        if self.is_partial {
            // Otherwise git would fetch each file alone to learn its size.
            self.fetch_files(&self.list_files(&[], paths)?, max_bytes)?;
        }
        let mut bytes = 0_u64;
        for line in self.list_files(&["-l"], paths)? {
            let file = line.split_once('\t').map_or(line.as_str(), |(file, _)| file);
            // A submodule has none.
            let size: Option<u64> =
                file.split_whitespace().nth(3).and_then(|size| size.parse().ok());
            bytes = bytes.saturating_add(size.unwrap_or(0).max(ENTRY_BYTES));
        }
        let too_large = || self.remote.too_large().into_unreachable(self.origin());
        if bytes > max_bytes { Err(too_large()) } else { Ok(()) }
    }

    /// Fetches listed files into the repository, in one call.
    fn fetch_files(&self, lines: &[String], max_bytes: u64) -> Result<(), FetchError> {
        const FETCH: [&str; 10] = [
            "-c",
            "fetch.negotiationAlgorithm=noop",
            "fetch",
            "-q",
            "--no-tags",
            "--no-write-fetch-head",
            "--recurse-submodules=no",
            "--filter=blob:none",
            "--stdin",
            "origin",
        ];
        let id = |line: &String| {
            let mut words = line.split([' ', '\t']);
            let is_file = words.nth(1) == Some("blob");
            words.next().filter(|_| is_file).map(str::to_owned)
        };
        let ids: BTreeSet<String> = lines.iter().filter_map(id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let input: String = ids.iter().map(|id| format!("{id}\n")).collect();
        let fetched = self.remote.git_bounded(&self.dir, FETCH, input.as_bytes(), Some(max_bytes));
        fetched.map(drop).map_err(|error| error.into_unreachable(self.origin()))
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
        let max_bytes = self.remote.max_bytes();
        if let Some(max_bytes) = max_bytes {
            self.check_size(paths, max_bytes)?;
        }
        let patterns = self.dir.join(".git/info");
        fs::create_dir_all(&patterns)
            .and_then(|()| fs::write(patterns.join("sparse-checkout"), sparse_patterns(paths)))
            .map_err(|error| failed(&patterns, &error))?;
        let settings = ["-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false"];
        let checkout = ["checkout", "-q", "--detach", self.commit];
        let args = settings.iter().chain(&checkout);
        // The objects and the files.
        let both = max_bytes.map(|max_bytes| max_bytes.saturating_mul(2));
        let checked_out = self.remote.git_bounded(&self.dir, args, &[], both);
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::config::FetchAccess;

    const MAX_BYTES: u64 = 1024 * 1024;

    /// Runs git in a repository, and returns its output.
    fn git(repository: &Path, args: &[&str]) -> String {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=user", "-c", "user.email=user@localhost"]).args(args);
        git.current_dir(repository).env("HOME", repository).env("GIT_CONFIG_NOSYSTEM", "1");
        let output = git.output().expect("git runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Bytes that do not compress.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    /// Fetches the directory `large`, with this file in it, and the directory `small`; returns both
    /// results.
    fn fetched(content: &[u8], filter: &str) -> [Result<(), FetchError>; 2] {
        let root = tempfile::tempdir().expect("a directory");
        let repository = root.path().join("repository");
        for directory in ["large", "small"] {
            fs::create_dir_all(repository.join(directory)).expect("created");
            fs::write(repository.join(directory).join("file"), "text").expect("written");
        }
        fs::write(repository.join("large/content"), content).expect("written");
        git(&repository, &["init", "-q", "-b", "main"]);
        git(&repository, &["add", "-A"]);
        git(&repository, &["commit", "-q", "-m", "files"]);
        git(&repository, &["config", "uploadpack.allowFilter", filter]);
        let commit = git(&repository, &["rev-parse", "HEAD"]);
        let origin = Origin::new(&format!("file://{}", repository.display()), Path::new("/"));
        // For a user of a server.
        let remote = RemoteAccess::new(&origin, &FetchAccess::default()).with_max_bytes(MAX_BYTES);
        ["large", "small"].map(|directory| {
            let staging = tempfile::tempdir_in(root.path()).expect("a directory");
            let clone = RepositoryClone::fetch(&remote, &commit, staging.path())?;
            clone.check_size(&[directory.to_owned()], MAX_BYTES)?;
            let checkout = ["checkout", "-q", "--detach", &commit];
            let both = Some(2 * MAX_BYTES);
            let made = remote.git_bounded(&clone.dir, checkout, &[], both);
            made.map(drop).map_err(|error| error.into_fetch_error(&origin, &commit))
        })
    }

    fn is_too_large(result: &Result<(), FetchError>) -> bool {
        matches!(result, Err(FetchError::TooLarge { max_bytes: MAX_BYTES, .. }))
    }

    #[test]
    fn objects_beyond_the_bound_end_a_fetch() {
        // Without partial fetches everything arrives at once.
        let results = fetched(&noise(3 << 20), "false");
        assert!(results.iter().all(is_too_large), "{results:?}");
        let [large, _small] = fetched(&noise(3 << 20), "true");
        assert!(is_too_large(&large), "{large:?}");
    }

    #[test]
    fn files_beyond_the_bound_are_not_checked_out() {
        for filter in ["true", "false"] {
            let [large, _small] = fetched(&vec![0_u8; 3 << 20], filter);
            assert!(is_too_large(&large), "{large:?}");
            let results = fetched(b"few bytes", filter);
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        }
        let text = FetchError::TooLarge { url: "u".to_owned(), max_bytes: MAX_BYTES }.to_string();
        assert!(text.contains("more than 1048576 bytes"), "{text}");
    }
}
