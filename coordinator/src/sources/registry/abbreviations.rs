//! Lookup of abbreviated commit ids. Servers know whole ids only, so that all commits of a repository are
//! fetched, without their files if the server can leave them out.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::FetchError;
use super::cache::{CommitLock, RepositoryCache};
use super::clone::{ALL_REFERENCES, PARTIAL_FETCH_KEYS, QUIET_FETCH};
use super::git::GitError;
use super::remote::RemoteAccess;

/// Name of the lock and of the staging directory in the cache of a repository.
const STAGING_NAME: &str = "abbreviations";

/// Fewer digits are no abbreviation for git.
const MIN_DIGITS: usize = 4;

/// Fewer decimal digits are a number, such as a year, which would choose a commit by chance.
const MIN_DECIMAL_DIGITS: usize = 7;

/// Digits of the longest object id.
const MAX_DIGITS: usize = 64;

/// Longest time of all fetches of a lookup, which a misspelled name of a branch causes, too. A million
/// commits are some 500 MB, which take five minutes at 2 MB/s.
const LOOKUP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Whether a text may be an abbreviated commit id.
pub(super) fn is_abbreviation(text: &str) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let least = if is_number { MIN_DECIMAL_DIGITS } else { MIN_DIGITS };
    (least..MAX_DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// All commits that the branches and tags of a repository have, in a temporary repository.
pub(super) struct AllCommits<'a> {
    remote: &'a RemoteAccess,
    dir: PathBuf,
    _staging: TempDir,
    _lock: CommitLock,
}

impl<'a> AllCommits<'a> {
    /// Fetches the commits of a repository with object ids of `id_digits` digits.
    pub(super) fn fetch(
        cache: &RepositoryCache,
        remote: &'a RemoteAccess,
        id_digits: usize,
    ) -> Result<Self, FetchError> {
        Self::fetch_within(cache, remote, id_digits, LOOKUP_LIMIT)
    }

    fn fetch_within(
        cache: &RepositoryCache,
        remote: &'a RemoteAccess,
        id_digits: usize,
        limit: Duration,
    ) -> Result<Self, FetchError> {
        let lock = cache.lock(STAGING_NAME)?;
        let staging = cache.staging_dir(STAGING_NAME, &lock)?;
        let dir = staging.path().join("repository");
        let format = if id_digits == MAX_DIGITS { "sha256" } else { "sha1" };
        let init = [
            "init".to_owned(),
            "-q".to_owned(),
            "--template=".to_owned(),
            format!("--object-format={format}"),
            dir.to_string_lossy().into_owned(),
        ];
        let failed = |error: GitError| error.into_unreachable(remote.origin());
        remote.git(staging.path(), init).map_err(failed)?;
        let add = ["remote", "add", "origin", remote.origin().url()];
        remote.git(&dir, add).map_err(failed)?;
        let all = Self { remote, dir, _staging: staging, _lock: lock };
        all.fetch_commits(limit).map_err(failed)?;
        Ok(all)
    }

    fn fetch_commits(&self, limit: Duration) -> Result<(), GitError> {
        // The largest depth is the whole history. A server of plain files refuses any, and would be asked
        // for left-out files without end.
        const WITHOUT_FILES: [&str; 2] = ["--depth=2147483647", "--filter=tree:0"];
        let max_bytes = self.remote.max_bytes();
        let began = Instant::now();
        let fetch = |options: &[&str]| {
            let all = QUIET_FETCH.iter().chain(options).chain(ALL_REFERENCES.iter());
            let bounds = (max_bytes, Some(limit.saturating_sub(began.elapsed())));
            let fetched = self.remote.git_limited(&self.dir, all, &[], bounds);
            fetched.map(drop).map_err(|error| match error {
                // The limit of this call is what the calls before it left.
                GitError::TimedOut(_) => {
                    GitError::TimedOut(format!("the lookup of a commit timed out after {limit:?}"))
                }
                other => other,
            })
        };
        let Err(mut error) = fetch(&WITHOUT_FILES) else { return Ok(()) };
        if error.is_cut() {
            // The larger request below would be cut as well.
            let Err(again) = fetch(&WITHOUT_FILES) else { return Ok(()) };
            error = again;
        }
        if !error.may_be_the_request() || error.is_cut() {
            return Err(error);
        }
        for key in PARTIAL_FETCH_KEYS {
            let _unset = self.remote.git(&self.dir, ["config", "--unset-all", key]);
        }
        fetch(&[])
    }

    /// The commit whose id begins with `abbreviation`; `None` if there is none.
    pub(super) fn find(&self, abbreviation: &str) -> Result<Option<String>, FetchError> {
        let origin = self.remote.origin();
        let failed = |error: GitError| error.into_fetch_error(origin, abbreviation);
        let list = ["rev-parse".to_owned(), format!("--disambiguate={abbreviation}")];
        let objects = self.remote.git(&self.dir, list).map_err(failed)?;
        if objects.is_empty() {
            return Ok(None);
        }
        let types = ["cat-file", "--batch-check=%(objectname) %(objecttype)"];
        let types = self.remote.git_with_input(&self.dir, types, &objects).map_err(failed)?;
        let types = String::from_utf8_lossy(&types);
        let mut commits = types.lines().filter_map(|line| line.strip_suffix(" commit"));
        let first = commits.next().map(str::to_owned);
        if commits.next().is_some() {
            let (url, commit) = (origin.redacted_url(), abbreviation.to_owned());
            return Err(FetchError::AmbiguousCommit { url, commit });
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::path::Path;

    use super::super::cache::CacheScope;
    use super::super::origin::Origin;
    use super::*;
    use crate::config::{FetchAccess, FetchNetwork};

    #[test]
    fn lookup_that_reaches_its_limit_ends_without_a_second_fetch() {
        let root = tempfile::tempdir().expect("a directory");
        // The system accepts connections for it; no request gets an answer.
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let address = server.local_addr().expect("an address");
        let origin = Origin::new(&format!("git://{address}/x"), Path::new("/"));
        let access = FetchAccess { network: FetchNetwork::OwnUser, cancelled: None };
        let remote = RemoteAccess::new(&origin, &access);
        let cache = RepositoryCache::new(root.path(), &origin, CacheScope::Credentials);
        let fetched = AllCommits::fetch_within(&cache, &remote, 40, Duration::from_secs(2));
        let error = fetched.map(drop).expect_err("no answer");
        let said = error.to_string();
        assert!(said.ends_with("the lookup of a commit timed out after 2s"), "{said}");
        server.set_nonblocking(true).expect("a listener that does not wait");
        let connections = server.incoming().take_while(Result::is_ok).count();
        assert!(connections <= 1, "{connections} fetches");
    }

    #[test]
    fn abbreviation_has_4_hexadecimal_digits_or_7_decimal_ones() {
        for (text, expected) in [
            ("f505", true),
            ("F5052B6", true),
            ("f50", false),
            ("main", false),
            ("v1.0", false),
            ("2024", false),
            ("202411", false),
            ("2024113", true),
        ] {
            assert_eq!(is_abbreviation(text), expected, "{text}");
        }
    }
}
