//! Access to one repository: with the credentials of the user of this process, or without them through
//! a [`Guard`].

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use rollout_protocol::limits::FETCHED_REPOSITORY_BYTES;
use rollout_store::git::Git;
use ureq::Agent;

use super::cache::CacheScope;
use super::disk_bound::{self, Excess};
use super::git::GitError;
use super::guard::Guard;
use super::http;
use super::origin::Origin;
use crate::config::{FetchAccess, FetchNetwork};

/// Settings of calls to a host that the operator of a server lists: another one may not get the
/// credentials.
const LISTED_SETTINGS: [&str; 2] = ["-c", "http.followRedirects=false"];

/// Ends a fetch for a user of a server.
const FULL_DISK: &str = "the disk of this host is almost full";

/// A repository with the way to reach it, for blocking threads.
#[derive(Debug)]
pub(super) struct RemoteAccess {
    origin: Origin,
    access: FetchAccess,
    route: Result<Route, GitError>,
    max_bytes: Option<u64>,
}

/// The way to a repository.
#[derive(Debug)]
enum Route {
    /// As the user of this process reaches it.
    OwnUser,
    /// On this host, for somebody else.
    Local,
    /// The same for somebody else: the operator lists its host.
    Listed,
    /// Without credentials, through a proxy.
    Public(Guard),
}

impl RemoteAccess {
    /// The access to a repository. Connects to nothing.
    pub(super) fn new(origin: &Origin, access: &FetchAccess) -> Self {
        let route = Route::find(origin, access);
        let max_bytes = match access.network {
            FetchNetwork::OwnUser => None,
            FetchNetwork::Guarded(_) => Some(FETCHED_REPOSITORY_BYTES),
        };
        Self { origin: origin.clone(), access: access.clone(), route, max_bytes }
    }

    /// The same with another bound.
    #[cfg(test)]
    pub(super) fn with_max_bytes(self, max_bytes: u64) -> Self {
        Self { max_bytes: Some(max_bytes), ..self }
    }

    /// The bound of its objects, of its files and of its Git LFS files, each. The user of this process
    /// has none.
    pub(super) fn max_bytes(&self) -> Option<u64> {
        self.max_bytes
    }

    /// Checks that it may be reached, as far as its address tells.
    ///
    /// # Errors
    /// [`GitError::Refused`], and [`GitError::Host`] if this host cannot reach it.
    pub(super) fn check(&self) -> Result<(), GitError> {
        self.route.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// The repository.
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The part of the cache that has what is fetched so, and nothing else.
    pub(super) fn cache_scope(&self) -> CacheScope {
        match self.route {
            Ok(Route::Public(_)) => CacheScope::Public,
            Ok(Route::OwnUser | Route::Local | Route::Listed) | Err(_) => CacheScope::Credentials,
        }
    }

    /// Whether the files of the repository may configure how it is fetched.
    pub(super) fn obeys_repository(&self) -> bool {
        matches!(self.route, Ok(Route::OwnUser))
    }

    /// The HTTP client of a repository that is fetched without credentials.
    pub(super) fn public_agent(&self) -> Option<Agent> {
        match &self.route {
            Ok(Route::Public(guard)) => Some(http::transfer_agent(guard.url())),
            _ => None,
        }
    }

    /// The error of a transfer: a refused host, an end of the fetch, or else this reason.
    pub(super) fn transfer_error(&self, reason: String) -> GitError {
        if self.is_cancelled() {
            return GitError::Cancelled;
        }
        self.refusal().unwrap_or(GitError::Failed(reason))
    }

    /// Whether the fetch is to end.
    pub(super) fn is_cancelled(&self) -> bool {
        self.access.is_cancelled()
    }

    /// The error of a fetch that brings more than the bound.
    pub(super) fn too_large(&self) -> GitError {
        GitError::TooLarge(self.max_bytes.unwrap_or_default())
    }

    /// The error in place of that of a program, if a host was refused.
    fn refusal(&self) -> Option<GitError> {
        let Ok(Route::Public(guard)) = &self.route else { return None };
        let reason = guard.refusal()?.to_owned();
        Some(match guard.lacks_addresses() {
            true => GitError::Unresolved(reason),
            false => GitError::Refused(reason),
        })
    }

    /// Runs git in `dir` and returns its output.
    pub(super) fn git<A: AsRef<OsStr>>(
        &self,
        dir: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Vec<u8>, GitError> {
        self.git_with_input(dir, args, &[])
    }

    /// Runs git with an input. Must not be called on an async runtime thread.
    pub(super) fn git_with_input<A: AsRef<OsStr>>(
        &self,
        dir: &Path,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
    ) -> Result<Vec<u8>, GitError> {
        self.git_bounded(dir, args, input, None)
    }

    /// The same, ended when `dir` has more than these bytes.
    pub(super) fn git_bounded<A: AsRef<OsStr>>(
        &self,
        dir: &Path,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
        max_bytes: Option<u64>,
    ) -> Result<Vec<u8>, GitError> {
        self.git_limited(dir, args, input, (max_bytes, None))
    }

    /// The same, ended after a time.
    pub(super) fn git_limited<A: AsRef<OsStr>>(
        &self,
        dir: &Path,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
        (max_bytes, limit): (Option<u64>, Option<Duration>),
    ) -> Result<Vec<u8>, GitError> {
        let route = self.route.as_ref().map_err(Clone::clone)?;
        let git = match route {
            Route::Public(guard) => Git::public(dir, guard.url()),
            Route::OwnUser => Git::remote(dir),
            Route::Local | Route::Listed => Git::remote(dir).detached(),
        };
        let settings = match route {
            Route::Listed => &LISTED_SETTINGS[..],
            _ => &[],
        };
        let mut call = git.call(settings).args(args).input(input);
        if matches!(route, Route::Local) {
            call = call.variable("GIT_ALLOW_PROTOCOL", "file");
        }
        if let Some(limit) = limit {
            call = call.timeout(limit);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| GitError::Host(format!("cannot wait: {error}")))?;
        let ended = self.access.cancelled.clone();
        let cancelling = async move {
            match ended {
                Some(mut ended) => while ended.changed().await.is_ok() {},
                None => std::future::pending().await,
            }
        };
        let exceeding = async {
            match max_bytes {
                Some(max_bytes) => disk_bound::exceeds(dir, max_bytes).await,
                None => std::future::pending().await,
            }
        };
        let result = runtime.block_on(async {
            tokio::select! {
                biased;
                () = cancelling => Err(GitError::Cancelled),
                excess = exceeding => Err(match excess {
                    Excess::Bytes => self.too_large(),
                    Excess::FullDisk => GitError::Host(FULL_DISK.to_owned()),
                }),
                result = call.run() => result.map_err(|error| match error.into() {
                    GitError::Failed(said) => GitError::Failed(without_directory(&said, dir)),
                    other => other,
                }),
            }
        });
        // It may have ended between two looks.
        if result.is_ok() && max_bytes.is_some_and(|max_bytes| disk_bound::size(dir) > max_bytes) {
            return Err(self.too_large());
        }
        // Git's words about a refused host would tell how it answers.
        result.map_err(|error| match (error, self.refusal()) {
            (GitError::Failed(_) | GitError::TimedOut(_), Some(refused)) => refused,
            (error, _) => error,
        })
    }
}

impl Route {
    fn find(origin: &Origin, access: &FetchAccess) -> Result<Self, GitError> {
        let hosts = match &access.network {
            FetchNetwork::OwnUser => return Ok(Self::OwnUser),
            FetchNetwork::Guarded(_) if origin.is_local() => return Ok(Self::Local),
            FetchNetwork::Guarded(hosts) => hosts,
        };
        if let Some(refused) = access.network.refusal(origin.url()) {
            return Err(GitError::Refused(refused));
        }
        if access.network.uses_credentials(origin.url()) {
            return Ok(Self::Listed);
        }
        let guard = Guard::start(hosts.clone(), access.cancelled.clone());
        let failed = |error| GitError::Host(format!("cannot start a proxy for it: {error}"));
        guard.map(Self::Public).map_err(failed)
    }
}

/// Git's words without the directory that it ran in: a user of a server may see them. A temporary one has
/// a random name, which no user can guess.
fn without_directory(said: &str, dir: &Path) -> String {
    if dir.parent().is_none() {
        return said.to_owned();
    }
    said.replace(&*dir.to_string_lossy(), ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_git_name_no_directory_of_the_fetch() {
        let said = "fatal: could not open '/srv/cache/git/x.tmp-1/.git/config' for writing";
        let shown = without_directory(said, Path::new("/srv/cache/git/x.tmp-1"));
        assert_eq!(shown, "fatal: could not open './.git/config' for writing");
        assert_eq!(without_directory(said, Path::new("/")), said);
    }
}
